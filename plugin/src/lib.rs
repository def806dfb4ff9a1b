//! The memory-manager plug-in interface (NBEP 7) for millpond's stacks.
//!
//! [NBEP 7](https://numba.readthedocs.io/en/stable/proposals/external-memory-management.html) describes how a
//! framework such as Numba lets an external manager allocate its memory. This crate is the same interface in
//! Rust. A framework gets the manager of its device from [`get_memory_manager`]. The program chooses the
//! manager.
//!
//! | item | purpose |
//! |---|---|
//! | [`MemoryManager`] | the interface |
//! | [`MillpondMemoryManager`] | over any stack: `MILLPOND_MEMORY_MANAGER=cuda+pool:initial=1GiB,pages=off` |
//! | [`CudaMemoryManager`] | the default: plain CUDA, frees deferred as Numba does |
//! | [`HostOnlyMemoryManager`] | the host half, as a base for your own managers |
//! | [`MemoryPointer`], [`MappedMemory`], [`PinnedMemory`] | counted references to a manager's memory |
//! | [`Finalizer`], [`Token`] | ends an allocation with its last reference: by identity, not by address |
//! | [`IpcHandle`] | shares memory with another process |
//! | [`DeferredQueue`], [`DeferCleanup`] | deferred deallocation |
//! | [`with_stream`] | sets the stream of allocations, which the interface has no argument for |
//! | [`set_memory_manager`], [`ManagerRegistry`] | choose the manager of a process |
//!
//! # Rules
//! - Each device has one manager, which is made at its first use. A process can choose its managers once,
//!   before that.
//! - Pointers can be dropped on any thread, after a reset, and while the process exits. Dropping never panics
//!   and prints nothing. If a pointer outlives a reset, dropping it frees no memory, even if the address has
//!   a new owner.
//! - Managers call foreign code: builders, resources, finalizers. During such a call, they hold no lock that
//!   could block the drop of a pointer. A binding for a language with a global lock releases that lock around
//!   every call.
//! - Managers share memory with other processes through CUDA's legacy IPC handles. Such handles exist only
//!   for memory from `cuMemAlloc`. So use the default manager, or a stack with `pages=off`. If a program
//!   shares no memory, `cuda+pool` needs less memory: for the log dataframe_ops in
//!   docs/book/src/benchmarks.md, 1.04 times the live bytes instead of 1.51 times.
//!
//! ```no_run
//! use millpond_core::{DeviceId, stack::LayerTable};
//! use millpond_plugin::{MillpondMemoryManager, get_memory_manager, set_memory_manager};
//!
//! let layers = LayerTable::new(millpond_resources::LAYERS.iter().copied());
//! set_memory_manager(MillpondMemoryManager::factory("cuda+pool:initial=1GiB,pages=off".parse()?, layers))?;
//!
//! let manager = get_memory_manager(DeviceId::cuda(0))?;
//! let memory = manager.memalloc(1 << 20)?;
//! let second_half = memory.view(1 << 19..1 << 20)?;
//! drop(memory); // the view keeps the allocation alive
//! drop(second_half); // back to the pool
//! # Ok::<(), millpond_core::Error>(())
//! ```

mod cuda_manager;
mod deferred;
mod host_only;
mod ipc;
mod manager;
mod memory_pointer;
mod millpond_manager;
mod registry;
mod release_order;
mod staged;
mod stream_scope;

pub use cuda_manager::CudaMemoryManager;
pub use deferred::{DeferredOptions, DeferredQueue};
pub use host_only::HostOnlyMemoryManager;
pub use ipc::{IpcHandle, SourceInfo, get_ipc_handle};
pub use manager::{DeferCleanup, HostAllocFlags, INTERFACE_VERSION, ManagerFactory, MemoryManager};
pub use memory_pointer::{Finalizer, HostMemory, MappedMemory, MemoryPointer, Owner, PinnedMemory, Token};
pub use millpond_manager::{MillpondMemoryManager, StackBuilder};
pub use registry::{
    Environment, MEMORY_MANAGER_VARIABLE, ManagerRegistry, OpenDevice, get_memory_manager, set_memory_manager,
};
pub use stream_scope::{StreamScope, current_stream, with_stream};
