//! Defines the trait that every memory resource of millpond implements, and the types that the trait uses.
//!
//! This crate calls no CUDA function and allocates no device memory itself. All other crates build on its
//! types:
//!
//! | here | meaning |
//! |---|---|
//! | [`DeviceMemoryResource`] | the trait: its documentation is the contract between resource and caller |
//! | [`DeviceMemoryResourceExt`] | convenience methods of every resource |
//! | [`AnyResource`] | an owned, type-erased, shareable handle |
//! | [`Layer`] | builds a resource or an adaptor on top of another |
//! | [`stack`] | reads and prints a stack as text (`cuda+pool:initial=1GiB+statistics`) |
//! | [`DevicePtr`], [`Layout`], [`StreamRef`], [`DeviceId`] | the small values that calls pass |
//! | [`driver::Driver`] | the interface to CUDA or the simulated device |
//! | [`Error`] | the one error type |
//! | [`OutOfMemoryReport`] | why a request failed, and what would have helped |
//! | [`MemoryReport`] | the memory of a whole stack at one moment |
//! | [`MemoryMap`] | the segments and blocks of a stack by address |
//! | [`segments`] | reports when pools take and return memory |
//! | [`watch`] | shows the stacks of a running process to `millpond-replay top` |
//! | [`interrupt`] | ends a wait on the host early |
//! | [`misuse`] | reports a refused `deallocate` |
//! | [`forward_to_upstream!`] | writes the methods that your adaptor passes on to its upstream |
//!
//! # Looking into a stack
//! | you want | write |
//! |---|---|
//! | a layer with a trait | `find_trait::<dyn AllocationLimit>(&stack)`: [`find_trait`] |
//! | each layer, outermost first | `stack.stack()`: [`DeviceMemoryResourceExt::stack`] |
//! | each layer with a trait | `stack.stack().with::<dyn AllocationLimit>()`: [`Stack::with`] |
//! | the memory of each layer | `stack.memory_report()`: [`DeviceMemoryResourceExt::memory_report`] |
//! | segments and blocks by address | `stack.memory_map()`: [`DeviceMemoryResourceExt::memory_map`] |
//!
//! [`downcast`] returns a resource as its concrete type, so `stack.stack().find_map(downcast::<T>)` finds a
//! layer by its type. [`is_same`] returns whether two values are, or are handles to, the same resource.
//! [`is_equal`](DeviceMemoryResource::is_equal) returns whether each of two resources can free the other's
//! blocks.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod accessibility;
mod below;
mod debug_as_text;
mod device;
pub mod driver;
pub mod environment;
mod error;
mod ext;
mod failure_tally;
mod failures;
mod find;
mod format;
mod forward;
mod handles;
mod holder;
pub mod interrupt;
mod layer;
mod layout;
mod map_of_stack;
mod memory_map;
mod memory_report;
pub mod misuse;
mod out_of_memory;
pub mod own_file;
pub mod process;
mod provide;
mod ptr;
mod resource;
pub mod segments;
mod setters;
mod shareable;
mod size;
pub mod small_file;
pub mod stack;
mod statistics;
mod stream;
mod upstream;
pub mod watch;

pub use accessibility::Accessibility;
pub use below::{OthersBelow, PoolBelow, ScopesBelow};
pub use device::DeviceId;
pub use driver::{Driver, DriverError, DriverHandle, MemoryInfo};
pub use error::{Error, ErrorKind, Result};
pub use ext::{DeviceMemoryResourceExt, LayerResultExt};
pub use failure_tally::FailureTally;
pub use failures::{FailureCounts, FailureKind};
pub use find::{Stack, find_trait};
pub use format::format_bytes;
pub use handles::{ResourceId, downcast, is_same};
pub use holder::Holder;
pub use layer::{Identity, Layer, LayerFn, OptionLayer, layer_fn, option_layer};
pub use layout::{ALLOCATION_ALIGNMENT, Layout, align_up};
pub use memory_map::{BlockState, MemoryBlock, MemoryMap, MemorySegment};
pub use memory_report::{BlockInfo, LayerMemory, MemoryReport, ReportsMemory, ScopeMemory};
pub use out_of_memory::{FreeMemory, LiveBlock, OutOfMemoryReport, Remedy, RemedyAction};
pub use provide::is_shareable;
pub use ptr::DevicePtr;
pub use resource::{AnyResource, DeviceMemoryResource, Traits};
pub use shareable::Shareable;
pub use size::{ByteSize, gib, kib, mib, parse_block_bytes, parse_bytes, parse_memory};
pub use statistics::{FreeCounts, LadderCounts, ResourceStatistics};
pub use stream::{StreamId, StreamRef};
pub use upstream::trim_upstream;
