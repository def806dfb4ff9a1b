//! The memory-resource trait of millpond and the vocabulary around it.
//!
//! This crate names no CUDA function and allocates nothing on its own. It holds what every other
//! part agrees on:
//!
//! | here | what it is |
//! |---|---|
//! | [`DeviceMemoryResource`] | the trait: its documentation is the contract between resource and caller |
//! | [`DeviceMemoryResourceExt`] | everything convenient, implemented for every resource |
//! | [`AnyResource`] | the owned, erased, shareable handle |
//! | [`Layer`] | how a resource or an adaptor is put on top of another |
//! | [`stack`] | a stack as text (`cuda+pool:initial=1GiB+statistics`) and back |
//! | [`DevicePtr`], [`Layout`], [`StreamRef`], [`DeviceId`] | the small values that calls carry |
//! | [`driver::Driver`] | the seam behind which CUDA or the simulated device sits |
//! | [`Error`] | one error for everything |
//! | [`OutOfMemoryReport`] | what would have helped where memory was out |
//! | [`MemoryReport`] | the memory of a whole stack at one moment |
//! | [`interrupt`] | what ends a wait of the host early |
//! | [`misuse`] | where a refused `deallocate` is reported |
//! | [`forward_to_upstream!`] | the methods that an adaptor of your own leaves to its upstream |
//!
//! # Looking into a stack
//! | you want | write |
//! |---|---|
//! | what a layer can do | `find_trait::<dyn AllocationLimit>(&stack)`: [`find_trait`] |
//! | each layer, outermost first | `stack.stack()`: [`DeviceMemoryResourceExt::stack`] |
//! | each layer that can do something | `stack.stack().with::<dyn AllocationLimit>()`: [`Stack::with`] |
//! | the memory of each layer | `stack.memory_report()`: [`DeviceMemoryResourceExt::memory_report`] |
//!
//! [`downcast`] and [`is_same`] compare two resources, as [`is_equal`](DeviceMemoryResource::is_equal) does;
//! `stack.stack().find_map(downcast::<T>)` is the layer of a type that has no trait.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod accessibility;
mod below;
mod debug_as_text;
mod device;
pub mod driver;
pub mod environment;
mod error;
mod ext;
mod find;
mod format;
mod forward;
mod handles;
mod holder;
pub mod interrupt;
mod layer;
mod layout;
mod memory_report;
pub mod misuse;
mod out_of_memory;
mod provide;
mod ptr;
mod resource;
mod size;
pub mod stack;
mod statistics;
mod stream;
mod upstream;

pub use accessibility::Accessibility;
pub use below::{PoolBelow, ScopesBelow};
pub use device::DeviceId;
pub use driver::{Driver, DriverError, DriverHandle, MemoryInfo};
pub use error::{Error, ErrorKind, Result};
pub use ext::DeviceMemoryResourceExt;
pub use find::{Stack, find_trait};
pub use format::format_bytes;
pub use handles::{downcast, is_same};
pub use holder::Holder;
pub use layer::{Identity, Layer, LayerFn, OptionLayer, layer_fn, option_layer};
pub use layout::{ALLOCATION_ALIGNMENT, Layout, align_up};
pub use memory_report::{BlockInfo, LayerMemory, MemoryReport, ReportsMemory, ScopeMemory};
pub use out_of_memory::{FreeMemory, LiveBlock, OutOfMemoryReport, Remedy, RemedyAction};
pub use provide::is_shareable;
pub use ptr::DevicePtr;
pub use resource::{AnyResource, DeviceMemoryResource, Traits};
pub use size::{ByteSize, parse_block_bytes, parse_bytes, parse_memory};
pub use statistics::{FreeCounts, LadderCounts, ResourceStatistics};
pub use stream::{StreamId, StreamRef};
pub use upstream::trim_upstream;
