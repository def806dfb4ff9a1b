//! The part of a memory manager that allocates host memory.

use std::fmt;
use std::sync::Arc;

use dashmap::DashMap;
use millpond_core::driver::{
    CaptureModeGuard, DeviceAttribute, Driver, DriverResult, HostPtr, call, has_attribute,
};
use millpond_core::{DevicePtr, DriverError, DriverHandle, Error, ErrorKind, Layout, Result};
use parking_lot::RwLock;

use crate::memory_pointer::{Finalizer, Token};
use crate::{
    DeferCleanup, DeferredOptions, DeferredQueue, HostAllocFlags, HostMemory, MappedMemory, MemoryPointer,
    Owner, PinnedMemory,
};

/// The part of a memory manager that allocates host memory: pinned, mapped, registered and managed memory
/// from the driver. [`DeferredOptions`] limit how long deallocations wait.
///
/// This type allocates no device memory, so it is not a [`MemoryManager`](crate::MemoryManager). A memory
/// manager holds a value of this type, and forwards calls to it. In its own [`reset`](Self::reset) and
/// [`defer_cleanup`](Self::defer_cleanup), the memory manager calls the methods of this type. Clones share
/// their state.
#[derive(Clone, Debug)]
pub struct HostOnlyMemoryManager {
    shared: Arc<Shared>,
}

/// Memory from the driver, and how it is freed.
#[derive(Clone, Copy, Debug)]
enum Plain {
    /// Device or managed memory.
    Device { ptr: DevicePtr, bytes: u64 },
    /// Pinned host memory. `bytes` is 0 if the memory is not mapped, because only mapped memory counts as
    /// device memory.
    Host { ptr: HostPtr, bytes: u64 },
    /// Memory of the caller, which was pinned.
    Registered { ptr: HostPtr },
}

impl Plain {
    /// Returns the bytes that count as device memory.
    const fn bytes(self) -> u64 {
        match self {
            Self::Device { bytes, .. } | Self::Host { bytes, .. } => bytes,
            Self::Registered { .. } => 0,
        }
    }
}

/// Memory, and the driver that it came from. The driver is lost together with the context. So a free of
/// memory from before a reset frees no memory of the new context.
struct Kept {
    plain: Plain,
    driver: DriverHandle,
}

/// The state that pointers keep alive for their finalizers.
struct Shared {
    /// The driver. It is replaced after each reset of the context.
    driver: RwLock<Option<DriverHandle>>,
    live: DashMap<Token, Kept>,
    pending: DeferredQueue<Kept>,
}

impl HostOnlyMemoryManager {
    /// Makes a manager on a device. If there is no device, the manager can only report its version.
    pub fn new(driver: Option<DriverHandle>, options: DeferredOptions) -> Self {
        let pending = DeferredQueue::new(options);
        let driver = RwLock::new(driver);
        let shared = Shared { driver, live: DashMap::new(), pending };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the driver of the device. If the device's context was reset, opens the device again, and
    /// removes all earlier memory, which was lost with the context.
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidArgument`] if the manager was made without a device. Returns an error if
    /// the device cannot be opened.
    pub fn driver(&self) -> Result<DriverHandle> {
        let driver = self.shared.driver()?;
        if driver.was_reset() { self.open_again(&driver) } else { Ok(driver) }
    }

    fn open_again(&self, lost: &DriverHandle) -> Result<DriverHandle> {
        let fresh = millpond_driver::open(lost.device())?;
        {
            let mut driver = self.shared.driver.write();
            match &*driver {
                Some(known) if !Arc::ptr_eq(known, lost) => return Ok(Arc::clone(known)),
                _ => *driver = Some(Arc::clone(&fresh)),
            }
        }
        // This memory was lost with the context. It is dropped without a lock.
        let of_before = |kept: &Kept| Arc::ptr_eq(&kept.driver, lost);
        drop(self.shared.take_live(of_before));
        for kept in self.shared.pending.take_all().into_iter().filter(|kept| !of_before(kept)) {
            let bytes = kept.plain.bytes();
            self.shared.pending.park(kept, bytes);
        }
        Ok(fresh)
    }

    /// Reads the size of the device's memory. Pending deallocations may hold a share of this memory.
    ///
    /// # Errors
    /// Returns an error of the driver.
    pub fn initialize(&self) -> Result<()> {
        if !self.shared.pending.has_capacity() {
            let memory = call(&*self.driver()?, |driver| driver.mem_get_info())?;
            self.shared.pending.set_capacity(memory.total);
        }
        Ok(())
    }

    /// Works like [`MemoryManager::memhostalloc`](crate::MemoryManager::memhostalloc).
    ///
    /// # Errors
    /// Returns the errors of [`MemoryManager::memhostalloc`](crate::MemoryManager::memhostalloc).
    pub fn memhostalloc(&self, bytes: u64, flags: HostAllocFlags) -> Result<HostMemory> {
        if bytes == 0 {
            return Err(Error::invalid_argument("zero bytes cannot be pinned; request at least one byte"));
        }
        let driver = self.driver()?;
        check_mapping(&*driver, flags.mapped)?;
        let alloc = |driver: &dyn Driver| driver.mem_host_alloc(bytes, flags);
        let ptr = self.attempt(&driver, "pinned host memory", bytes, alloc)?;
        let counted = if flags.mapped { bytes } else { 0 };
        let plain = Plain::Host { ptr, bytes: counted };
        let device_ptr = flags.mapped.then(|| self.device_pointer_of(&driver, ptr, plain)).transpose()?;
        Ok(self.host_memory(&driver, plain, (ptr, device_ptr), bytes, None))
    }

    /// Works like [`MemoryManager::mempin`](crate::MemoryManager::mempin).
    ///
    /// # Errors
    /// Returns the errors of [`MemoryManager::mempin`](crate::MemoryManager::mempin).
    ///
    /// # Safety
    /// The rules of [`MemoryManager::mempin`](crate::MemoryManager::mempin) hold.
    pub unsafe fn mempin(&self, owner: Owner, ptr: HostPtr, bytes: u64, mapped: bool) -> Result<HostMemory> {
        if bytes == 0 {
            return Err(Error::invalid_argument("zero bytes cannot be pinned; pin at least one byte"));
        }
        let driver = self.driver()?;
        check_mapping(&*driver, mapped)?;
        let flags = HostAllocFlags::default().mapped(mapped);
        // SAFETY: the caller vouches for the range, and `owner` keeps the range until it is unpinned.
        let pin = |driver: &dyn Driver| unsafe { driver.mem_host_register(ptr, bytes, flags) };
        self.attempt(&driver, "a pin", bytes, pin).map_err(explain_pin)?;
        let plain = Plain::Registered { ptr };
        let device_ptr = mapped.then(|| self.device_pointer_of(&driver, ptr, plain)).transpose()?;
        Ok(self.host_memory(&driver, plain, (ptr, device_ptr), bytes, Some(owner)))
    }

    /// Works like [`MemoryManager::memallocmanaged`](crate::MemoryManager::memallocmanaged).
    ///
    /// # Errors
    /// Returns an error of the driver.
    pub fn memallocmanaged(&self, bytes: u64, attach_global: bool) -> Result<MemoryPointer> {
        let driver = self.driver()?;
        // If host and device can use managed memory at the same time, the attachment makes no difference.
        if !attach_global && !has_attribute(&*driver, DeviceAttribute::ConcurrentManagedAccess)? {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this device does not support host-only managed memory; pass attach_global = true",
            )
            .on_device(driver.device()));
        }
        self.alloc_device("managed memory", bytes, |driver| driver.mem_alloc_managed(bytes))
    }

    /// Allocates memory that `cuMemFree` frees.
    pub(crate) fn alloc_device(
        &self,
        what: &str,
        bytes: u64,
        alloc: impl Fn(&dyn Driver) -> DriverResult<DevicePtr>,
    ) -> Result<MemoryPointer> {
        let driver = self.driver()?;
        let device = driver.device();
        if bytes == 0 {
            return Ok(MemoryPointer::null(device));
        }
        let ptr = self.attempt(&driver, what, bytes, alloc)?;
        let token = self.shared.keep(&driver, Plain::Device { ptr, bytes });
        Ok(MemoryPointer::new(device, ptr, bytes, token, self.finalizer()))
    }

    /// Frees all live and pending memory, even if cleanup is deferred.
    pub fn reset(&self) {
        self.shared.end_all(self.shared.take_live(|_| true));
        self.shared.end_all(self.shared.pending.take_all());
    }

    /// Defers deallocation until this guard and every other guard are dropped. Memory is still unpinned at
    /// once.
    pub fn defer_cleanup(&self) -> DeferCleanup {
        self.shared.pending.defer();
        let shared = Arc::clone(&self.shared);
        DeferCleanup::new(move || {
            shared.end_all(shared.pending.resume());
        })
    }

    /// Runs pending deallocations, unless deallocation is deferred. Returns the number of these
    /// deallocations.
    pub fn flush(&self) -> usize {
        self.shared.end_all(self.shared.pending.take())
    }

    /// Returns the number of pending deallocations.
    pub fn pending(&self) -> usize {
        self.shared.pending.len()
    }

    /// Returns the number of allocations and pins that were neither dropped nor reset.
    pub fn live(&self) -> usize {
        self.shared.live.len()
    }

    /// Calls the driver. If there is too little memory, runs the pending deallocations, and calls the driver
    /// again.
    fn attempt<T>(
        &self,
        driver: &DriverHandle,
        what: &str,
        bytes: u64,
        body: impl Fn(&dyn Driver) -> DriverResult<T>,
    ) -> Result<T> {
        let driver = &**driver;
        let _captures = CaptureModeGuard::relaxed(driver);
        let mut outcome = call(driver, &body);
        if outcome.as_ref().is_err_and(Error::is_out_of_memory) && self.flush() > 0 {
            outcome = call(driver, &body);
        }
        outcome.map_err(|error| error.for_layout(Layout::new(bytes)).context(what))
    }

    /// Returns the device's address of mapped memory. If there is none, frees the memory.
    fn device_pointer_of(&self, driver: &DriverHandle, ptr: HostPtr, plain: Plain) -> Result<DevicePtr> {
        call(&**driver, |driver| driver.mem_host_get_device_pointer(ptr)).map_err(|error| {
            self.shared.end(Kept { plain, driver: Arc::clone(driver) });
            error.context("mapped host memory")
        })
    }

    fn host_memory(
        &self,
        driver: &DriverHandle,
        plain: Plain,
        (ptr, device_ptr): (HostPtr, Option<DevicePtr>),
        bytes: u64,
        owner: Option<Owner>,
    ) -> HostMemory {
        let (device, finalizer) = (driver.device(), self.finalizer());
        let token = self.shared.keep(driver, plain);
        match device_ptr {
            None => HostMemory::Pinned(PinnedMemory::new(device, ptr, bytes, owner, token, finalizer)),
            Some(device_ptr) => {
                let pointers = (ptr, device_ptr);
                HostMemory::Mapped(MappedMemory::new(device, pointers, bytes, owner, token, finalizer))
            }
        }
    }

    fn finalizer(&self) -> Arc<dyn Finalizer> {
        Arc::<Shared>::clone(&self.shared)
    }
}

/// Returns the error of a manager that was made without a device.
pub(crate) fn no_device() -> Error {
    Error::invalid_argument(
        "this memory manager has no device, because it was made only to report its version; get a memory \
         manager from get_memory_manager",
    )
}

/// Adds advice to the error that a range is pinned twice.
fn explain_pin(error: Error) -> Error {
    let already = DriverError::HOST_MEMORY_ALREADY_REGISTERED;
    if error.driver_error().is_some_and(|driver| driver.code() == already) {
        error.context("a part of the range is pinned already; drop the earlier pin first")
    } else {
        error
    }
}

/// If the device cannot map host memory, refuses mapped memory, as NBEP 7's own manager does.
fn check_mapping(driver: &dyn Driver, is_mapped: bool) -> Result<()> {
    if !is_mapped || has_attribute(driver, DeviceAttribute::CanMapHostMemory)? {
        return Ok(());
    }
    let why = "the device cannot map host memory (CAN_MAP_HOST_MEMORY is 0); request memory that is not \
               mapped, and copy";
    Err(Error::new(ErrorKind::Unsupported, why).on_device(driver.device()))
}

impl Shared {
    fn driver(&self) -> Result<DriverHandle> {
        self.driver.read().clone().ok_or_else(no_device)
    }

    fn keep(&self, driver: &DriverHandle, plain: Plain) -> Token {
        let token = Token::next();
        self.live.insert(token, Kept { plain, driver: Arc::clone(driver) });
        token
    }

    /// Removes live memory. Finalizers do not find it any more.
    fn take_live(&self, is_wanted: impl Fn(&Kept) -> bool) -> Vec<Kept> {
        let wanted = self.live.iter().filter(|entry| is_wanted(entry.value()));
        let tokens: Vec<Token> = wanted.map(|entry| *entry.key()).collect();
        tokens.iter().filter_map(|token| self.live.remove(token)).map(|(_, kept)| kept).collect()
    }

    fn end_all(&self, due: Vec<Kept>) -> usize {
        let count = due.len();
        let driver = self.driver().ok();
        let _captures = driver.as_deref().map(CaptureModeGuard::relaxed);
        due.into_iter().for_each(|kept| self.end(kept));
        count
    }

    fn end(&self, kept: Kept) {
        let Kept { plain, driver } = kept;
        let _captures = CaptureModeGuard::relaxed(&*driver);
        // SAFETY: this code took `plain` out of `live` or `pending`, or never put it there. So it has the
        // only copy, and the memory ends once. The last pointer is dropped or no longer live, so no code uses
        // the memory.
        let outcome = call(&*driver, |driver| unsafe {
            match plain {
                Plain::Device { ptr, .. } => driver.mem_free(ptr),
                Plain::Host { ptr, .. } => driver.mem_free_host(ptr),
                Plain::Registered { ptr } => driver.mem_host_unregister(ptr),
            }
        });
        let Err(error) = outcome else { return };
        if error.driver_error().is_some_and(DriverError::is_capture_refusal) {
            // Memory cannot be freed while a graph is captured, so it is freed with the next deallocations.
            self.pending.park(Kept { plain, driver: Arc::clone(&driver) }, plain.bytes());
        } else {
            // This error is expected while the process exits, or after another library reset the context. It
            // cannot be prevented.
            tracing::debug!(target: "millpond::plugin", %error, ?plain, "could not free memory");
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.driver().ok().map(|driver| driver.device());
        f.debug_struct("Shared")
            .field("device", &device)
            .field("live", &self.live.len())
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plain.fmt(f)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Every pointer keeps the state alive, so only pending deallocations are left here.
        self.end_all(self.pending.take_all());
    }
}

impl Finalizer for Shared {
    fn finalize(&self, token: Token) {
        let Some((_, kept)) = self.live.remove(&token) else { return };
        let plain = kept.plain;
        match plain {
            // If memory stayed pinned, the next pin of the same memory would fail.
            Plain::Registered { .. } => self.end(kept),
            Plain::Device { .. } | Plain::Host { .. } => {
                self.end_all(self.pending.push(kept, plain.bytes()));
            }
        }
    }

    fn is_live(&self, token: Token) -> bool {
        self.live.contains_key(&token)
    }
}
