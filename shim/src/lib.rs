//! CUDA's entry points over a driver of millpond, and a judge of other projects' allocators.
//!
//! As a cdylib, the crate exports the functions of CUDA's runtime. A program or an allocator that finds this
//! library instead of `libcudart.so` runs on the calling thread's current device, which may be simulated.
//! A program that opens the library can put its own [table](EntryPoints) behind the exports. The judge does
//! that: its table works on the devices that its own checks watch.

mod current;
mod entry;
mod error;
mod foreign;
mod judge;
mod runtime;

pub use current::Entered;
pub use entry::{EntryPoints, Shim};
pub use foreign::{Allocator, Foreign};
pub use judge::{Finding, Judge, Verdict};
