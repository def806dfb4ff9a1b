//! Many threads over one resource on the simulated device, with too little memory.
//!
//! Programs are deterministic, so they never interleave inside a call of the resource. In a race, each thread
//! has a stream, and all threads want the same few sizes. So streams take each other's blocks, while other
//! threads free and allocate. In a wide race, a thread also frees another thread's block, on the stream of
//! either thread. Threads also replace their streams, and trim the resource. The oracles are the same as for
//! programs. But in each run, a wrong resource may break a different rule.

mod hand_over;
mod plan;
mod run;
mod runner;

pub use plan::Race;
