//! The interface of a memory manager, as NBEP 7 describes it.

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::HostPtr;
use millpond_core::{DriverHandle, MemoryInfo, Result};

use crate::{HostMemory, IpcHandle, MemoryPointer, Owner};

pub use millpond_core::driver::HostFlags as HostAllocFlags;

/// The version of NBEP 7's interface that this crate implements.
pub const INTERFACE_VERSION: u32 = 1;

/// A memory manager as NBEP 7 describes it. A framework takes all its memory on one device from it.
///
/// One instance serves one device. Methods are called on any thread. Pointers are dropped on any thread at
/// any time, even after the manager itself was dropped and while the process exits.
///
/// To write a manager for a library that knows device memory only, hold a
/// [`HostOnlyMemoryManager`](crate::HostOnlyMemoryManager) and leave the host half to it.
pub trait MemoryManager: fmt::Debug + Send + Sync + 'static {
    /// Allocates device memory. Zero bytes give a null pointer that owns nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) after all pending deallocations have run, or an
    /// error of the driver.
    fn memalloc(&self, bytes: u64) -> Result<MemoryPointer>;

    /// Allocates pinned host memory, mapped into the device's address space if the flags ask for it.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for zero bytes,
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) for mapped memory if the device cannot map it,
    /// or an error of the driver.
    fn memhostalloc(&self, bytes: u64, flags: HostAllocFlags) -> Result<HostMemory>;

    /// Allocates managed memory, which has one address for host and device. With `attach_global`, any stream
    /// of any device may use it at once.
    ///
    /// # Errors
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) for host-only memory on a device that treats it
    /// differently, or an error of the driver.
    fn memallocmanaged(&self, bytes: u64, attach_global: bool) -> Result<MemoryPointer>;

    /// Pins host memory that the caller allocated, and keeps `owner` until the pin is lifted. The pin is
    /// lifted at once when the last reference is dropped, never deferred, so that the memory can be pinned
    /// again.
    ///
    /// # Errors
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) for a mapped pin if the device cannot map it,
    /// or an error of the driver, for instance if part of the range is already pinned.
    ///
    /// # Safety
    /// `bytes` bytes at `ptr` are host memory that stays allocated as long as `owner` lives.
    unsafe fn mempin(&self, owner: Owner, ptr: HostPtr, bytes: u64, mapped: bool) -> Result<HostMemory>;

    /// Makes the manager ready for its device. It is called before every use of the device, so it must be
    /// cheap and keep existing state.
    ///
    /// # Errors
    /// An error of the driver, or of building the stack.
    fn initialize(&self) -> Result<()>;

    /// Returns the free and total memory in bytes.
    ///
    /// # Errors
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) from a manager that cannot tell, or an error of
    /// the driver.
    fn get_memory_info(&self) -> Result<MemoryInfo>;

    /// Returns a handle by which another process opens this memory. The handle keeps the memory alive.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the memory was freed,
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) if CUDA cannot share it this way: a stack's
    /// pools need `pages=off`.
    fn get_ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle>;

    /// Frees all memory of this manager, even if pointers to it remain. Those are not live afterwards, and
    /// dropping them does nothing. It is called before the context is reset, perhaps before
    /// [`initialize`](Self::initialize). The manager can be used again afterwards.
    fn reset(&self);

    /// Defers costly cleanup until this guard and every other one is dropped. Guards nest.
    fn defer_cleanup(&self) -> DeferCleanup;

    /// Returns the version of the interface. A manager without a device must answer without touching CUDA.
    fn interface_version(&self) -> u32;
}

/// Defers cleanup while it lives; see [`MemoryManager::defer_cleanup`].
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

/// Makes the manager of one device. It is called with `None` to read the interface's version, and once for
/// each device at its first use. If threads race for a device, it is called more than once, and one result
/// stays. It must not touch CUDA: that is for [`MemoryManager::initialize`].
pub type ManagerFactory = Arc<dyn Fn(Option<DriverHandle>) -> Result<Arc<dyn MemoryManager>> + Send + Sync>;
