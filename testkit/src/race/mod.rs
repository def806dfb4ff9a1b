//! Many threads over one resource on the simulated device, with too little memory.
//!
//! Programs are deterministic, and so never interleave inside a call of the resource. Here each thread has a
//! stream, and all want the same few sizes, so that blocks are taken from other streams while those free and
//! allocate. In a wide race, threads also give each other blocks to free, on either's stream, renew streams,
//! and trim. The oracles are the same; which of them a wrong resource breaks depends on the run.

mod hand_over;
mod plan;
mod run;
mod runner;

pub use plan::Race;
