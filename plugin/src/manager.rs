//! The interface of a memory manager, as NBEP 7 describes it.

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::HostPtr;
use millpond_core::{DriverHandle, MemoryInfo, Result};

use crate::{HostMemory, IpcHandle, MemoryPointer, Owner};

pub use millpond_core::driver::HostFlags as HostAllocFlags;

/// The version of NBEP 7's interface that this crate implements.
pub const INTERFACE_VERSION: u32 = 1;

/// A memory manager as NBEP 7 describes it. A framework allocates all its memory on one device from the
/// device's manager.
///
/// One instance serves one device. Its methods are called on any thread. Pointers are dropped on any thread
/// at any time, even after the manager itself was dropped, and while the process exits.
///
/// If a library allocates only device memory, its manager can hold a
/// [`HostOnlyMemoryManager`](crate::HostOnlyMemoryManager), and forward all calls for host memory to it.
pub trait MemoryManager: fmt::Debug + Send + Sync + 'static {
    /// Allocates device memory. For zero bytes, returns a null pointer that owns no memory.
    ///
    /// # Errors
    /// Returns [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) after all pending deallocations have
    /// run, or an error of the driver.
    fn memalloc(&self, bytes: u64) -> Result<MemoryPointer>;

    /// Allocates pinned host memory. If the flags ask for it, the memory is also mapped into the device's
    /// address space.
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for zero bytes. Returns
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) for mapped memory if the device cannot map it.
    /// Otherwise returns an error of the driver.
    fn memhostalloc(&self, bytes: u64, flags: HostAllocFlags) -> Result<HostMemory>;

    /// Allocates managed memory, which has one address for host and device. With `attach_global`, any stream
    /// of any device may use the memory at once.
    ///
    /// # Errors
    /// Returns [`Unsupported`](millpond_core::ErrorKind::Unsupported) for host-only memory on a device that
    /// treats such memory differently. Otherwise returns an error of the driver.
    fn memallocmanaged(&self, bytes: u64, attach_global: bool) -> Result<MemoryPointer>;

    /// Pins host memory that the caller allocated, and keeps `owner` until the memory is unpinned. When the
    /// last reference is dropped, the memory is unpinned at once, so that it can be pinned again. This is
    /// never deferred.
    ///
    /// # Errors
    /// Returns [`Unsupported`](millpond_core::ErrorKind::Unsupported) for a mapped pin if the device cannot
    /// map the memory. Otherwise returns an error of the driver, for instance if a part of the range is
    /// already pinned.
    ///
    /// # Safety
    /// The `bytes` bytes at `ptr` are host memory that stays allocated as long as `owner` lives.
    unsafe fn mempin(&self, owner: Owner, ptr: HostPtr, bytes: u64, mapped: bool) -> Result<HostMemory>;

    /// Prepares the manager for its device. The framework calls this before every use of the device. So it
    /// must be cheap, and keep existing state.
    ///
    /// # Errors
    /// Returns an error of the driver, or an error of building the stack.
    fn initialize(&self) -> Result<()>;

    /// Returns the free and total memory in bytes.
    ///
    /// # Errors
    /// Returns [`Unsupported`](millpond_core::ErrorKind::Unsupported) if the manager does not know its
    /// memory. Otherwise returns an error of the driver.
    fn get_memory_info(&self) -> Result<MemoryInfo>;

    /// Returns a handle with which another process can open this memory. The handle keeps the memory alive.
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the memory was freed.
    /// Returns [`Unsupported`](millpond_core::ErrorKind::Unsupported) if CUDA cannot share the memory this
    /// way: the pools of a stack need `pages=off`.
    fn get_ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle>;

    /// Frees all memory of this manager, even if pointers to it remain. After that, these pointers are not
    /// live, and dropping them does nothing. The framework calls this before it resets the context, perhaps
    /// before [`initialize`](Self::initialize). After that, the manager can be used again.
    fn reset(&self);

    /// Defers costly cleanup until this guard and every other guard are dropped. Guards can be nested.
    fn defer_cleanup(&self) -> DeferCleanup;

    /// Returns the version of the interface. A manager without a device must answer without a call of CUDA.
    fn interface_version(&self) -> u32;
}

/// Defers cleanup while this guard lives; see [`MemoryManager::defer_cleanup`].
#[must_use = "cleanup is deferred only while the guard lives"]
pub struct DeferCleanup {
    on_exit: Vec<Box<dyn FnOnce() + Send>>,
}

impl DeferCleanup {
    /// Makes a guard that calls `on_exit` when it is dropped.
    pub fn new(on_exit: impl FnOnce() + Send + 'static) -> Self {
        Self { on_exit: vec![Box::new(on_exit)] }
    }

    /// Combines this guard with another guard, for a manager that wraps another manager. `other` ends first.
    pub fn and(mut self, mut other: Self) -> Self {
        self.on_exit.append(&mut other.on_exit);
        self
    }
}

impl Drop for DeferCleanup {
    fn drop(&mut self) {
        for exit in self.on_exit.drain(..).rev() {
            exit();
        }
    }
}

impl fmt::Debug for DeferCleanup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeferCleanup").finish_non_exhaustive()
    }
}

/// Makes the manager of one device. The registry calls the factory with `None` to read the version of the
/// interface. At the first use of each device, the registry calls the factory once with the device's driver.
/// If several threads use a new device at once, the registry may call the factory several times, but keeps
/// one result. The factory must not call CUDA, because [`MemoryManager::initialize`] does that.
pub type ManagerFactory = Arc<dyn Fn(Option<DriverHandle>) -> Result<Arc<dyn MemoryManager>> + Send + Sync>;
