//! CUDA's entry points over a driver of millpond, and a judge of other projects' allocators.
//!
//! As a cdylib, the crate exports the functions of CUDA's runtime and of CUDA's driver. A program or an
//! allocator that finds this library as `libcudart.so` or `libcuda.so.1` runs on a simulated device. The
//! variable `MILLPOND_DEVICE` names the device, for example `sim:8GiB`; without it, the device is an H200.
//!
//! A program that opens the library can put its own [table](EntryPoints) behind the exports. The judge does
//! that: its table works on the devices that its own checks watch.

mod abi;
mod calls;
mod contexts;
mod current;
mod entry;
mod error;
mod foreign;
mod judge;
mod plant;
mod shim;
mod table;
mod unsupported;

pub use abi::{
    AccessDesc, DeviceProperties, FabricInfo, HostFunction, Location, Opaque, PhysicalProp,
    PointerAttributes, PoolProps, ProcessInfo,
};
pub use current::Entered;
pub use entry::EntryPoints;
pub use foreign::{Allocator, Foreign};
pub use judge::{Finding, Judge, Verdict};
pub use plant::Plant;
pub use shim::Shim;
