//! Many threads over one resource on the simulated device, which has too little memory for all of them.
//!
//! Programs are deterministic, so their operations never interleave inside a call of the resource. In a race,
//! each thread has a stream, and all threads request the same few sizes. So streams take each other's blocks
//! while other threads free and allocate. In a wide race, a thread also frees blocks of other threads, on its
//! own stream or on theirs. Threads also replace their streams, and trim the resource. The oracles are the
//! same as for programs. But a wrong resource may break a different rule in each run.

mod hand_over;
mod plan;
mod run;
mod runner;

pub use plan::Race;
