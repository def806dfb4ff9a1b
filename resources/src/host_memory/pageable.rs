//! Memory of the system's allocator.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use millpond_core::driver::{CaptureModeGuard, DeviceAttribute, Health, HostPtr, call, has_attribute};
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{
    Accessibility, DeviceMemoryResource, DevicePtr, DriverHandle, Error, ErrorKind, Layout, MemoryInfo,
    ResourceStatistics, Result, StreamRef, Traits, downcast,
};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use crate::debug_as_text::debug_as_text;
use crate::{out_of_memory, process};

/// Builds `host` from text.
pub(crate) const HOST: LayerEntry = LayerEntry {
    name: "host",
    about: "memory of the system's allocator, for the host only",
    params: &[],
    kind: LayerKind::Base(|_, driver| Ok(Arc::new(PageableHostMemoryResource::new(Arc::clone(driver))))),
};

/// Builds `system` from text.
pub(crate) const SYSTEM: LayerEntry = LayerEntry {
    name: "system",
    about: "memory of the system's allocator, on a device that can access it",
    params: &[],
    kind: LayerKind::Base(|_, driver| Ok(Arc::new(SystemMemoryResource::new(Arc::clone(driver))?))),
};

/// The live blocks of all resources of the process, since an equal resource may free a block. A pointer that
/// is not here never reaches the system's allocator: it would corrupt the heap.
static LIVE: LazyLock<DashMap<DevicePtr, Live, FxBuildHasher>> = LazyLock::new(DashMap::default);

struct Live {
    layout: Layout,
    /// Identifies the opening of the device that the block was allocated for.
    health: Weak<Health>,
}

/// Freed blocks that the device may still use: a graph capture prevented the wait for the device. The next
/// call tries again.
static DEFERRED: Mutex<Vec<(DevicePtr, Live)>> = Mutex::new(Vec::new());

/// The state of a resource.
#[derive(Debug)]
pub(super) struct Pageable {
    pub(super) driver: DriverHandle,
    /// Whether the device may use a block. Then a free waits for the device's work.
    reaches_device: bool,
    misuses: AtomicU64,
    process: process::Origin,
}

impl Pageable {
    fn new(driver: DriverHandle, reaches_device: bool) -> Self {
        Self { driver, reaches_device, misuses: AtomicU64::new(0), process: process::Origin::here() }
    }

    /// Returns memory for host and device.
    pub(super) fn for_device(driver: DriverHandle) -> Result<Self> {
        if !has_attribute(&*driver, DeviceAttribute::PageableMemoryAccess)? {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} cannot access pageable host memory; use `managed` or `pinned_host` instead",
                    driver.device()
                ),
            ));
        }
        Ok(Self::new(driver, true))
    }

    pub(super) fn allocate(&self, layout: Layout, stream: StreamRef, name: &str) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let health = self.driver.health();
        let fail =
            |error: Error| error.for_request(layout, stream).on_device(self.driver.device()).in_stack(name);
        if health.is_lost() {
            return Err(fail(health.error()));
        }
        if layout.rounded_bytes().is_none() {
            return Err(fail(Error::request_too_large(layout, stream)));
        }
        self.free_deferred();
        let allocated = self.driver.pageable_alloc(layout).map_err(|error| {
            health.note(&error);
            out_of_memory::reported(fail(error.into()), &*self.driver, Accessibility::HOST)
        })?;
        let ptr = DevicePtr::new(allocated.0 as u64);
        LIVE.insert(ptr, Live { layout, health: Arc::downgrade(health) });
        Ok(ptr)
    }

    pub(super) fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef, name: &str) {
        // In a forked child, a thread that no longer exists may hold a lock.
        if ptr.is_null() || self.process.is_elsewhere() {
            return;
        }
        let live = match self.take(ptr, layout) {
            Ok(live) => live,
            Err(kind) => {
                self.misuses.fetch_add(1, Ordering::Relaxed);
                return misuse::report(&Misuse::new(kind, ptr, layout.bytes(), stream, name));
            }
        };
        self.free_deferred();
        if self.wait() {
            self.free(ptr, live.layout);
        } else {
            DEFERRED.lock().push((ptr, live));
        }
    }

    /// Removes a block from the live ones, unless the free is a mistake.
    fn take(&self, ptr: DevicePtr, layout: Layout) -> Result<Live, MisuseKind> {
        let Entry::Occupied(live) = LIVE.entry(ptr) else { return Err(MisuseKind::ForeignPointer) };
        if live.get().health.as_ptr() != Arc::as_ptr(self.driver.health()) {
            return Err(MisuseKind::WrongDevice);
        }
        let allocated_bytes = live.get().layout.bytes();
        if allocated_bytes != layout.bytes() {
            return Err(MisuseKind::WrongSize { allocated_bytes });
        }
        Ok(live.remove())
    }

    fn free(&self, ptr: DevicePtr, layout: Layout) {
        // SAFETY: the block came from this driver's `pageable_alloc` with this layout, it is no longer live,
        // and no work uses it.
        unsafe { self.driver.pageable_free(HostPtr(ptr.address() as usize), layout) }
    }

    /// Waits until no work of the device uses freed memory. Returns whether that is certain.
    ///
    /// It waits for the device, not for the stream: the stream may be destroyed, and any stream may use
    /// memory that is not stream-ordered.
    fn wait(&self) -> bool {
        // On a lost device no work runs any more.
        if !self.reaches_device || self.driver.health().is_lost() {
            return true;
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        self.driver.synchronize_beside_captures().unwrap_or_else(|error| {
            self.driver.health().note(&error);
            self.driver.health().is_lost()
        })
    }

    /// Frees the deferred blocks, if a wait for the device is possible now.
    fn free_deferred(&self) {
        if !self.reaches_device {
            return;
        }
        let is_own =
            |(_, live): &mut (DevicePtr, Live)| live.health.as_ptr() == Arc::as_ptr(self.driver.health());
        let own: Vec<_> = DEFERRED.lock().extract_if(.., is_own).collect();
        if own.is_empty() {
            return;
        }
        if self.wait() {
            own.into_iter().for_each(|(ptr, live)| self.free(ptr, live.layout));
        } else {
            DEFERRED.lock().extend(own);
        }
    }

    pub(super) fn memory_info(&self, name: &str) -> Result<MemoryInfo> {
        call(&*self.driver, |driver| driver.host_memory_info()).map_err(|error| error.in_stack(name))
    }

    pub(super) fn is_equal(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.driver.health(), other.driver.health())
    }

    pub(super) fn statistics(&self) -> Option<ResourceStatistics> {
        let misuses = self.misuses.load(Ordering::Relaxed);
        (misuses > 0).then(|| ResourceStatistics::default().misuses(misuses))
    }
}

impl Drop for Pageable {
    fn drop(&mut self) {
        if self.process.is_elsewhere() {
            return;
        }
        self.free_deferred();
    }
}

macro_rules! pageable_resource {
    ($(#[$doc:meta])* $name:ident, $text:expr, $accessibility:expr) => {
        $(#[$doc])*
        pub struct $name(Pageable);

        debug_as_text!($name);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($text)
            }
        }

        // SAFETY: the system's allocator hands out disjoint ranges with the layout's alignment. If the device
        // may use them, a free waits for its work, so any stream may use them at once.
        #[deny(clippy::missing_trait_methods)]
        unsafe impl DeviceMemoryResource for $name {
            fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
                self.0.allocate(layout, stream, $text)
            }

            unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
                self.0.deallocate(ptr, layout, stream, $text);
            }

            fn driver(&self) -> &DriverHandle {
                &self.0.driver
            }

            fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
                None
            }

            fn memory_info(&self) -> Result<MemoryInfo> {
                self.0.memory_info($text)
            }

            fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
                downcast::<Self>(other).is_some_and(|other| self.0.is_equal(&other.0))
            }

            fn is_stream_ordered(&self) -> bool {
                false
            }

            fn accessibility(&self) -> Accessibility {
                $accessibility
            }

            fn statistics(&self) -> Option<ResourceStatistics> {
                self.0.statistics()
            }

            fn trim(&self, _keep_bytes: u64) -> Result<u64> {
                Ok(0)
            }

            fn provide(&self, traits: &mut Traits) {
                traits.share::<Self>();
            }
        }
    };
}

pageable_resource! {
    /// Memory of the system's allocator with the requested alignment, for the host only. The resource ignores
    /// the stream, and a free does not wait. So free a block only after all copies to and from the block are
    /// done.
    ///
    /// The resource records its live blocks, and refuses to free any other pointer.
    ///
    /// ```
    /// use millpond_core::{Accessibility, DeviceMemoryResource};
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    /// use millpond_resources::{HostMemoryResource, HostResource, PageableHostMemoryResource};
    ///
    /// let pageable = PageableHostMemoryResource::new(SimDevice::new(SimConfig::h200()));
    /// assert_eq!(pageable.accessibility(), Accessibility::HOST);
    /// let host = HostResource::new(pageable)?;
    /// let layout = millpond_core::Layout::new(1000);
    /// let block = host.allocate(layout)?;
    /// // SAFETY: the block has 1000 bytes, and is freed once.
    /// unsafe {
    ///     block.write_bytes(7, 1000);
    ///     host.deallocate(block, layout);
    /// }
    /// # Ok::<(), millpond_core::Error>(())
    /// ```
    ///
    #[doc = include_str!("../../layers/host.md")]
    PageableHostMemoryResource, HOST.name, Accessibility::HOST
}

impl PageableHostMemoryResource {
    /// Creates the resource. A pool on top of the resource uses the streams of the driver's device.
    pub fn new(driver: DriverHandle) -> Self {
        Self(Pageable::new(driver, false))
    }
}

pageable_resource! {
    /// Memory of the system's allocator, on a device that can access such memory. When the host or the device
    /// first uses a page, the system places the page in the memory of that user.
    ///
    /// A free waits for all work of the device, like a free of plain CUDA memory. If the wait would end the
    /// capture of a graph, a later call frees the block instead. The resource records its live blocks, and
    /// refuses to free any other pointer. Two resources of the same device are equal.
    ///
    #[doc = include_str!("../../layers/system.md")]
    SystemMemoryResource, SYSTEM.name, Accessibility::DEVICE_AND_HOST
}

impl SystemMemoryResource {
    /// Creates the resource for the driver's device.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) if the device cannot access pageable memory, and the driver's
    /// errors.
    pub fn new(driver: DriverHandle) -> Result<Self> {
        Pageable::for_device(driver).map(Self)
    }
}
