//! The resources that pass each call to the driver: plain, managed and pinned memory.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use dashmap::DashMap;
use millpond_core::driver::{CaptureModeGuard, Driver, DriverResult, Health, HostFlags, HostPtr};
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{
    ALLOCATION_ALIGNMENT, Accessibility, DeviceId, DeviceMemoryResource, DevicePtr, DriverError,
    DriverHandle, Error, Layout, MemoryInfo, ResourceStatistics, Result, StreamRef, Traits, downcast,
};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;

use crate::debug_as_text::debug_as_text;
use crate::out_of_memory;

/// Builds `cuda` from text.
pub(crate) const CUDA: LayerEntry = LayerEntry {
    name: "cuda",
    about: "plain device memory from the driver (cuMemAlloc, cuMemFree)",
    params: &[],
    kind: LayerKind::Base(|_, driver| Ok(Arc::new(CudaMemoryResource::new(Arc::clone(driver))))),
};

/// Builds `managed` from text.
pub(crate) const MANAGED: LayerEntry = LayerEntry {
    name: "managed",
    about: "memory that host and device share (cuMemAllocManaged)",
    params: &[],
    kind: LayerKind::Base(|_, driver| Ok(Arc::new(ManagedMemoryResource::new(Arc::clone(driver))))),
};

/// Builds `pinned_host` from text.
pub(crate) const PINNED_HOST: LayerEntry = LayerEntry {
    name: "pinned_host",
    about: "pinned host memory that the device can access (cuMemHostAlloc, cuMemFreeHost)",
    params: &[],
    kind: LayerKind::Base(|_, driver| Ok(Arc::new(PinnedHostMemoryResource::new(Arc::clone(driver))))),
};

/// The driver calls for one kind of memory.
#[derive(Debug)]
struct Calls {
    /// The resource's name in text.
    name: &'static str,
    allocate: fn(&dyn Driver, u64) -> DriverResult<DevicePtr>,
    /// Frees a block; the driver waits for all work of the device.
    free: unsafe fn(&dyn Driver, DevicePtr) -> DriverResult<()>,
    memory_info: fn(&dyn Driver) -> DriverResult<MemoryInfo>,
    /// Whether a request takes device memory, and host memory.
    takes: Accessibility,
    accessibility: Accessibility,
}

const PLAIN_CALLS: Calls = Calls {
    name: "cuda",
    allocate: |driver, bytes| driver.mem_alloc(bytes),
    // SAFETY: the caller's promise.
    free: |driver, ptr| unsafe { driver.mem_free(ptr) },
    memory_info: |driver| driver.mem_get_info(),
    takes: Accessibility::DEVICE,
    accessibility: Accessibility::DEVICE,
};

const MANAGED_CALLS: Calls = Calls {
    name: "managed",
    allocate: |driver, bytes| driver.mem_alloc_managed(bytes),
    takes: Accessibility::DEVICE_AND_HOST,
    accessibility: Accessibility::DEVICE_AND_HOST,
    ..PLAIN_CALLS
};

const PINNED_CALLS: Calls = Calls {
    name: "pinned_host",
    allocate: |driver, bytes| {
        let flags = HostFlags::default().portable(true).mapped(true);
        driver.mem_host_alloc(bytes, flags).map(|ptr| DevicePtr::new(ptr.0 as u64))
    },
    // SAFETY: the caller's promise.
    free: |driver, ptr| unsafe { driver.mem_free_host(HostPtr(ptr.address() as usize)) },
    memory_info: |driver| driver.host_memory_info(),
    takes: Accessibility::HOST,
    accessibility: Accessibility::DEVICE_AND_HOST,
};

/// The start of the driver's block for each over-aligned block. All resources of the process share the table,
/// since an equal resource may free the block. Entries of a reset context stay until their address is used
/// again.
static OVER_ALIGNED: LazyLock<DashMap<(DeviceId, DevicePtr), OverAligned, FxBuildHasher>> =
    LazyLock::new(DashMap::default);

struct OverAligned {
    base: DevicePtr,
    /// Identifies the opening of the device that the block came from.
    health: Weak<Health>,
}

/// A block that the driver refused to free during a graph capture. The next deallocation tries again, and so
/// does an allocation when memory is short.
struct Refused {
    /// Identifies the opening of the device that the block came from.
    health: Weak<Health>,
    base: DevicePtr,
    calls: &'static Calls,
}

static REFUSED: Mutex<Vec<Refused>> = Mutex::new(Vec::new());

/// The state of a resource except its calls, which differ by kind of memory.
#[derive(Debug)]
struct DriverMemory {
    driver: DriverHandle,
    calls: &'static Calls,
    misuses: AtomicU64,
}

impl DriverMemory {
    fn new(driver: DriverHandle, calls: &'static Calls) -> Self {
        Self { driver, calls, misuses: AtomicU64::new(0) }
    }

    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let name = self.calls.name;
        let allocate = |bytes| (self.calls.allocate)(&*self.driver, bytes);
        let fail =
            |error: Error| error.for_request(layout, stream).on_device(self.driver.device()).in_stack(name);
        if self.driver.health().is_lost() {
            return Err(fail(self.driver.health().error()));
        }
        let over = if layout.alignment() > ALLOCATION_ALIGNMENT { layout.alignment() } else { 0 };
        let bytes = layout
            .rounded_bytes()
            .and_then(|bytes| bytes.checked_add(over))
            .ok_or_else(|| fail(Error::request_too_large(layout, stream)))?;
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let again = |error: DriverError| match error.is_out_of_memory() && self.free_refused() {
            true => allocate(bytes),
            false => Err(error),
        };
        let base = allocate(bytes).or_else(again).map_err(|error| {
            self.driver.health().note(&error);
            out_of_memory::reported(fail(error.into()), &*self.driver, self.calls.takes)
        })?;
        if over == 0 {
            return Ok(base);
        }
        let ptr = DevicePtr::new((base.address() + over - 1) & !(over - 1));
        let health = Arc::downgrade(self.driver.health());
        OVER_ALIGNED.insert((self.driver.device(), ptr), OverAligned { base, health });
        Ok(ptr)
    }

    fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() || self.driver.health().is_lost() {
            return;
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let _ = self.free_refused();
        // A later context may have an entry under the same address.
        let is_ours = |over: &OverAligned| over.health.as_ptr() == Arc::as_ptr(self.driver.health());
        let over_aligned = OVER_ALIGNED.remove_if(&(self.driver.device(), ptr), |_, over| is_ours(over));
        let base = over_aligned.map_or(ptr, |(_, over)| over.base);
        // SAFETY: by the contract of `deallocate`, `ptr` came from `allocate` and is no longer used; the
        // driver refuses any other pointer.
        let Err(error) = (unsafe { (self.calls.free)(&*self.driver, base) }) else { return };
        self.driver.health().note(&error);
        if error.is_capture_refusal() {
            let health = Arc::downgrade(self.driver.health());
            REFUSED.lock().push(Refused { health, base, calls: self.calls });
        } else if error.code() == DriverError::INVALID_VALUE || error.code() == DriverError::NOT_FOUND {
            self.misuses.fetch_add(1, Ordering::Relaxed);
            let (kind, bytes) = (MisuseKind::ForeignPointer, layout.bytes());
            misuse::report(&Misuse::new(kind, ptr, bytes, stream, self.calls.name));
        } else {
            // After a reset the driver has freed the memory already.
            if error.code() != DriverError::CONTEXT_IS_DESTROYED {
                tracing::error!(target: "millpond::driver", %ptr, %error, "freeing device memory failed");
            }
        }
    }

    /// Frees blocks that the driver refused to free earlier. Returns whether it freed any.
    fn free_refused(&self) -> bool {
        let is_own = |block: &mut Refused| block.health.as_ptr() == Arc::as_ptr(self.driver.health());
        let own: Vec<_> = REFUSED.lock().extract_if(.., is_own).collect();
        if own.is_empty() {
            return false;
        }
        let before = own.len();
        let is_refused = |Refused { base, calls, .. }: &Refused| {
            // SAFETY: the caller freed the block, and the driver refused it.
            let freed = unsafe { (calls.free)(&*self.driver, *base) };
            freed.is_err_and(|error| {
                self.driver.health().note(&error);
                error.is_capture_refusal()
            })
        };
        let refused: Vec<_> = own.into_iter().filter(is_refused).collect();
        let has_freed = refused.len() < before;
        REFUSED.lock().extend(refused);
        has_freed
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        let misuses = self.misuses.load(Ordering::Relaxed);
        (misuses > 0).then(|| ResourceStatistics::default().misuses(misuses))
    }
}

impl CudaMemoryResource {
    /// Frees blocks that the driver refused to free earlier. Returns whether it freed any.
    pub(crate) fn free_refused(&self) -> bool {
        self.0.free_refused()
    }
}

macro_rules! driver_memory_resource {
    ($(#[$doc:meta])* $name:ident, $calls:ident) => {
        $(#[$doc])*
        pub struct $name(DriverMemory);

        debug_as_text!($name);

        impl $name {
            /// Creates the resource for the driver's device.
            pub fn new(driver: DriverHandle) -> Self {
                Self(DriverMemory::new(driver, &$calls))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($calls.name)
            }
        }

        // SAFETY: the driver hands out disjoint, aligned ranges and synchronises with the device when it
        // frees them, so any stream may use them at once; an over-aligned block lies inside the driver's
        // block.
        #[deny(clippy::missing_trait_methods)]
        unsafe impl DeviceMemoryResource for $name {
            fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
                self.0.allocate(layout, stream)
            }

            unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
                self.0.deallocate(ptr, layout, stream);
            }

            fn driver(&self) -> &DriverHandle {
                &self.0.driver
            }

            fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
                None
            }

            fn memory_info(&self) -> Result<MemoryInfo> {
                if self.0.driver.health().is_lost() {
                    return Err(self.0.driver.health().error().in_stack($calls.name));
                }
                (self.0.calls.memory_info)(&*self.0.driver).map_err(|error| {
                    self.0.driver.health().note(&error);
                    Error::from(error).in_stack($calls.name)
                })
            }

            fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
                // The same device, opened in the same context: a reset ends all blocks from before.
                downcast::<Self>(other)
                    .is_some_and(|other| Arc::ptr_eq(self.0.driver.health(), other.0.driver.health()))
            }

            fn is_stream_ordered(&self) -> bool {
                false
            }

            fn accessibility(&self) -> Accessibility {
                self.0.calls.accessibility
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

driver_memory_resource! {
    /// Plain device memory: `cuMemAlloc` and `cuMemFree`. `allocate` and `deallocate` synchronise with the
    /// device, so any stream may be passed to them. Two resources of the same device are equal.
    ///
    /// ```
    /// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    /// use millpond_resources::CudaMemoryResource;
    ///
    /// let resource = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    /// let ptr = resource.allocate_bytes(1000, StreamRef::LEGACY)?;
    /// assert!(ptr.is_aligned_to(256));
    /// // SAFETY: the block came from this resource with this size, and nothing uses it.
    /// unsafe { resource.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
    /// # Ok::<(), millpond_core::Error>(())
    /// ```
    ///
    #[doc = include_str!("../layers/cuda.md")]
    CudaMemoryResource, PLAIN_CALLS
}

driver_memory_resource! {
    /// Managed memory, which host and device access at the same address: `cuMemAllocManaged` and `cuMemFree`.
    /// Any stream may be passed to `allocate` and `deallocate`. Two resources of the same device are equal.
    ///
    /// The sum of all managed memory may exceed the device's memory. The driver then moves data between
    /// device and host.
    ///
    #[doc = include_str!("../layers/managed.md")]
    ManagedMemoryResource, MANAGED_CALLS
}

driver_memory_resource! {
    /// Pinned host memory, which host and device access at the same address: `cuMemHostAlloc` and
    /// `cuMemFreeHost`. Any stream may be passed to `allocate` and `deallocate`. Two resources of the same
    /// device are equal.
    ///
    /// To allocate or free 1 MiB takes some hundred microseconds, so put a pool on top. The memory counts as
    /// pinned for every CUDA device of the process.
    ///
    /// ```
    /// use millpond_core::{Accessibility, DeviceMemoryResource, DeviceMemoryResourceExt};
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    /// use millpond_resources::{PinnedHostMemoryResource, PoolLayer};
    ///
    /// let pinned = PinnedHostMemoryResource::new(SimDevice::new(SimConfig::h200()));
    /// let staging = pinned.layer(PoolLayer::new())?;
    /// assert_eq!(staging.accessibility(), Accessibility::DEVICE_AND_HOST);
    /// # Ok::<(), millpond_core::Error>(())
    /// ```
    ///
    #[doc = include_str!("../layers/pinned_host.md")]
    PinnedHostMemoryResource, PINNED_CALLS
}
