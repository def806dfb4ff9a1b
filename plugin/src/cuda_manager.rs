//! A memory manager over plain CUDA memory.

use std::sync::Arc;

use millpond_core::driver::HostPtr;
use millpond_core::{DriverHandle, Error, Layout, MemoryInfo, Result, StreamRef};

use crate::{
    DeferCleanup, DeferredOptions, HostAllocFlags, HostMemory, HostOnlyMemoryManager, INTERFACE_VERSION,
    IpcHandle, ManagerFactory, MemoryManager, MemoryPointer, Owner, get_ipc_handle,
};
use millpond_core::driver::call;

/// More bytes than any device can address. Drivers give different errors for such sizes.
const ADDRESS_SPACE: u64 = 1 << 57;

/// The default manager, which allocates plain CUDA memory, as Numba's own manager does.
///
/// Each allocation is a `cuMemAlloc`. A dropped allocation waits in a queue, together with host memory. All
/// memory in the queue is freed in three cases: more than ten allocations wait; more than a fifth of the
/// device's memory waits; there is too little memory for a request.
///
/// While cleanup is deferred, no memory is freed, even if there is too little memory for a request.
///
/// ```
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_plugin::{CudaMemoryManager, MemoryManager};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let manager = CudaMemoryManager::new(Some(device.clone()));
/// manager.initialize()?;
/// drop(manager.memalloc(4096)?);
/// assert_eq!((manager.pending(), device.live_allocations()), (1, 1));
/// manager.flush();
/// assert_eq!((manager.pending(), device.live_allocations()), (0, 0));
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CudaMemoryManager {
    host: HostOnlyMemoryManager,
}

impl CudaMemoryManager {
    /// Makes a manager on a device. If there is no device, the manager can only report its version.
    pub fn new(driver: Option<DriverHandle>) -> Self {
        Self::with_options(driver, DeferredOptions::default())
    }

    /// Makes a manager with its own limits on pending deallocations.
    pub fn with_options(driver: Option<DriverHandle>, options: DeferredOptions) -> Self {
        Self { host: HostOnlyMemoryManager::new(driver, options) }
    }

    /// Returns a factory that makes a manager for each device; see
    /// [`set_memory_manager`](crate::set_memory_manager).
    pub fn factory() -> ManagerFactory {
        Arc::new(|driver| Ok(Arc::new(Self::new(driver))))
    }

    /// Runs pending deallocations, unless cleanup is deferred. Returns the number of these deallocations.
    pub fn flush(&self) -> usize {
        self.host.flush()
    }

    /// Returns the number of pending deallocations.
    pub fn pending(&self) -> usize {
        self.host.pending()
    }
}

impl MemoryManager for CudaMemoryManager {
    fn memalloc(&self, bytes: u64) -> Result<MemoryPointer> {
        let allocated = if bytes > ADDRESS_SPACE {
            Err(Error::request_too_large(Layout::new(bytes), StreamRef::LEGACY).in_stack("cuda"))
        } else {
            self.host.alloc_device("device memory", bytes, |driver| driver.mem_alloc(bytes))
        };
        allocated.map_err(|error| {
            error.report_if_missing(|report| {
                let known = self.host.driver().ok().and_then(|driver| driver.mem_get_info().ok());
                report.note_device(known);
            })
        })
    }

    fn memhostalloc(&self, bytes: u64, flags: HostAllocFlags) -> Result<HostMemory> {
        self.host.memhostalloc(bytes, flags)
    }

    fn memallocmanaged(&self, bytes: u64, attach_global: bool) -> Result<MemoryPointer> {
        self.host.memallocmanaged(bytes, attach_global)
    }

    unsafe fn mempin(&self, owner: Owner, ptr: HostPtr, bytes: u64, mapped: bool) -> Result<HostMemory> {
        // SAFETY: the caller's promise about the same range.
        unsafe { self.host.mempin(owner, ptr, bytes, mapped) }
    }

    fn initialize(&self) -> Result<()> {
        self.host.initialize()
    }

    fn get_memory_info(&self) -> Result<MemoryInfo> {
        call(&*self.host.driver()?, |driver| driver.mem_get_info())
    }

    fn get_ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle> {
        get_ipc_handle(&*self.host.driver()?, memory)
    }

    fn reset(&self) {
        self.host.reset();
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        self.host.defer_cleanup()
    }

    fn interface_version(&self) -> u32 {
        INTERFACE_VERSION
    }
}
