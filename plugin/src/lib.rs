//! The memory-manager plug-in interface (NBEP 7) over millpond's stacks.
//!
//! [NBEP 7](https://numba.readthedocs.io/en/stable/proposals/external-memory-management.html) describes how a
//! framework, Numba first of all, leaves its memory to an external manager. This is that interface in Rust: a
//! framework asks [`get_memory_manager`] for the manager of its device; a program chooses which one that is.
//!
//! | here | what it is |
//! |---|---|
//! | [`MemoryManager`] | the interface |
//! | [`MillpondMemoryManager`] | over any stack: `MILLPOND_MEMORY_MANAGER=cuda+pool:initial=1GiB,pages=off` |
//! | [`CudaMemoryManager`] | the default: plain CUDA, frees deferred as Numba does |
//! | [`HostOnlyMemoryManager`] | the host half, as a base for your own managers |
//! | [`MemoryPointer`], [`MappedMemory`], [`PinnedMemory`] | the counted references that managers hand out |
//! | [`Finalizer`], [`Token`] | the end of an allocation with its last reference: by identity, not by address
//! |
//! | [`IpcHandle`] | memory for another process |
//! | [`DeferredQueue`], [`DeferCleanup`] | deallocation that waits |
//! | [`with_stream`] | memory in the order of a stream, which the interface has no argument for |
//! | [`set_memory_manager`], [`ManagerRegistry`] | the choice of a process's manager |
//!
//! # Rules
//! - One manager per device, made at its first use. The choice is made once per process, before that.
//! - Pointers may be dropped on any thread, after a reset, and while the process exits: that never panics and
//!   prints nothing. A pointer that outlives a reset frees nothing, even if its address has a new owner.
//! - Managers call foreign code (builders, resources, finalizers) with no lock held that dropping a
//!   pointer needs exclusively. A binding for a language with a global lock releases it around every call.
//!
//! - The interface shares memory with other processes by CUDA's legacy IPC handles, which exist for memory of
//!   `cuMemAlloc` only. So stacks for it need `pages=off`; the default manager and the stacks named here give
//!   handles. A program that shares no memory takes less with `cuda+pool` (on one of the logs of
//!   docs/BENCHMARKS.md 1.04 times the bytes in use instead of 1.51).
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
//! drop(memory); // the view keeps the allocation
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
