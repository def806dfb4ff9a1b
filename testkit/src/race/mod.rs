//! Many threads over one resource on the simulated device, with too little memory.
//!
//! Programs are deterministic, so they never interleave inside a call of the resource. In a race, each thread
//! has a stream, and all threads want the same few sizes. So they take blocks from other streams while those
//! free and allocate. In a wide race, threads also free each other's blocks on either's stream, renew
//! streams, and trim. The oracles are the same, but a wrong resource may break different ones in each run.

mod hand_over;
mod plan;
mod run;
mod runner;

pub use plan::Race;
