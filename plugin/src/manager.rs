//! The interface of a memory manager, as NBEP 7 describes it.

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::HostPtr;
use millpond_core::{DriverHandle, MemoryInfo, Result};

use crate::{HostMemory, IpcHandle, MemoryPointer, Owner};

pub use millpond_core::driver::HostFlags as HostAllocFlags;

/// The version of the interface that this crate speaks: NBEP 7's.
pub const INTERFACE_VERSION: u32 = 1;

/// A memory manager as NBEP 7 describes it, from which a framework takes all its memory on one device.
///
/// One instance serves one device. Methods are called from any thread, and pointers are dropped on any
/// thread, at any time, also after the manager itself was dropped and while the process exits.
///
/// To write one for a library that knows device memory only, hold a
/// [`HostOnlyMemoryManager`](crate::HostOnlyMemoryManager) and hand the host half to it.
pub trait MemoryManager: fmt::Debug + Send + Sync + 'static {
    /// Device memory. Zero bytes give a null pointer that owns nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) after all pending deallocations were carried
    /// out, or those of the driver.
    fn memalloc(&self, bytes: u64) -> Result<MemoryPointer>;

    /// Pinned host memory, mapped into the device's addresses if the flags ask for it.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for zero bytes,
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) for mapped memory where the device cannot map
    /// it, or those of the driver.
    fn memhostalloc(&self, bytes: u64, flags: HostAllocFlags) -> Result<HostMemory>;

    /// Managed memory: one address for host and device. With `attach_global`, any stream of any device may
    /// use it at once.
    ///
    /// # Errors
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) for memory attached to the host only, on a
    /// device where that differs, or those of the driver.
    fn memallocmanaged(&self, bytes: u64, attach_global: bool) -> Result<MemoryPointer>;

    /// Pins host memory that the caller allocated. `owner` is kept until the pin is lifted, which happens
    /// when the last reference is dropped, at once and never deferred, so that it can be pinned again.
    ///
    /// # Errors
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) for a mapped pin where the device cannot map
    /// it, and those of the driver, for instance that a part of the range is pinned already.
    ///
    /// # Safety
    /// `bytes` bytes at `ptr` are host memory that stays allocated as long as `owner` lives.
    unsafe fn mempin(&self, owner: Owner, ptr: HostPtr, bytes: u64, mapped: bool) -> Result<HostMemory>;

    /// Makes the manager ready for its device. It is called before every use of the device, so it must be
    /// cheap and keep existing state.
    ///
    /// # Errors
    /// Those of the driver, or of building the stack.
    fn initialize(&self) -> Result<()>;

    /// Free and total memory in bytes.
    ///
    /// # Errors
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) from a manager that cannot tell, or those of
    /// the driver.
    fn get_memory_info(&self) -> Result<MemoryInfo>;

    /// A handle by which another process opens this memory. It keeps the memory alive.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for memory that was freed,
    /// [`Unsupported`](millpond_core::ErrorKind::Unsupported) for memory that CUDA cannot share this way: a
    /// stack's pools need `pages=off`.
    fn get_ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle>;

    /// Frees all memory of this manager, also memory with pointers left: they are not live afterwards and
    /// dropping them does nothing. Called before the context is reset, perhaps before
    /// [`initialize`](Self::initialize). The manager can be used again afterwards.
    fn reset(&self);

    /// Defers costly cleanup until the guard, and every other one, is dropped. It nests.
    fn defer_cleanup(&self) -> DeferCleanup;

    /// The version of the interface. It is read from a manager without a device, and must not touch CUDA.
    fn interface_version(&self) -> u32;
}

/// Defers cleanup while it lives; see [`MemoryManager::defer_cleanup`].
#[must_use = "cleanup is deferred only while the guard lives"]
pub struct DeferCleanup {
    on_exit: Vec<Box<dyn FnOnce() + Send>>,
}

impl DeferCleanup {
    /// A guard that calls `on_exit` when it is dropped.
    pub fn new(on_exit: impl FnOnce() + Send + 'static) -> Self {
        Self { on_exit: vec![Box::new(on_exit)] }
    }

    /// Combines this guard with another, for a manager that wraps another manager. `other` ends first.
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

/// Makes the manager of one device. Called with `None` to read the interface's version, and once for each
/// device at its first use (by threads that race for it, more than once; one result stays). Making a
/// manager must not touch CUDA: that is for [`MemoryManager::initialize`].
pub type ManagerFactory = Arc<dyn Fn(Option<DriverHandle>) -> Result<Arc<dyn MemoryManager>> + Send + Sync>;
