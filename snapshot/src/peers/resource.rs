//! Converts a model of an allocator to a resource.

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::{CaptureModeGuard, DriverResult};
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{
    ALLOCATION_ALIGNMENT, AnyResource, DeviceMemoryResource, DevicePtr, Driver, DriverHandle, Error, Layout,
    MemoryInfo, OutOfMemoryReport, Remedy, ResourceStatistics, Result, StreamRef, Traits, is_same,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// The rules of an allocator. A lock protects them. Sizes and addresses are in bytes, and blocks start at
/// multiples of 256.
pub(super) trait Model: fmt::Debug + Send + 'static {
    /// Serves a request; `None` if there is no memory.
    fn allocate(&mut self, driver: &dyn Driver, bytes: u64, stream: StreamRef) -> DriverResult<Option<u64>>;
    /// Frees a block that was allocated with this size.
    fn free(&mut self, driver: &dyn Driver, address: u64, bytes: u64, stream: StreamRef) -> DriverResult<()>;
    /// Returns free memory to the driver, as far as the allocator does.
    fn trim(&mut self, _driver: &dyn Driver) -> DriverResult<()> {
        Ok(())
    }
    /// Returns the bytes reserved from the driver.
    fn reserved_bytes(&self) -> u64;
    /// Returns the largest free block in bytes, and the number of free blocks.
    fn free_blocks(&self) -> (u64, u64);
    /// Returns all memory to the driver, including blocks in use.
    fn release_all(&mut self, driver: &dyn Driver);
}

#[derive(Debug)]
struct Inner<M> {
    model: M,
    /// The requested size of each live block.
    live: FxHashMap<u64, u64>,
    statistics: ResourceStatistics,
}

/// A model as a resource.
#[derive(Debug)]
pub(super) struct Peer<M: Model> {
    driver: DriverHandle,
    text: String,
    inner: Mutex<Inner<M>>,
}

impl<M: Model> Peer<M> {
    /// Makes a resource whose text is `text`.
    pub(super) fn erased(driver: &DriverHandle, text: String, model: M) -> AnyResource {
        let inner = Inner { model, live: FxHashMap::default(), statistics: ResourceStatistics::default() };
        Arc::new(Self { driver: Arc::clone(driver), text, inner: Mutex::new(inner) })
    }

    fn noted<T>(&self, result: DriverResult<T>) -> Result<T> {
        result.map_err(|error| {
            self.driver.health().note(&error);
            Error::from(error)
        })
    }

    fn refuse(&self, kind: MisuseKind, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.inner.lock().statistics.misuses += 1;
        misuse::report(&Misuse::new(kind, ptr, bytes, stream, &self.text));
    }

    /// Fills in the report of a failed request. The memory that the model itself reserved does not count as
    /// memory of other users.
    fn explain(&self, report: &mut OutOfMemoryReport) {
        let device = self.driver.mem_get_info().inspect_err(|error| self.driver.health().note(error)).ok();
        let inner = self.inner.lock();
        report.device = device;
        report.held_bytes = inner.model.reserved_bytes();
        report.live_bytes = inner.statistics.bytes_requested;
        report.live_blocks = Some(inner.live.len() as u64);
        report.largest_free_block = Some(inner.model.free_blocks().0);
        let Some(MemoryInfo { free, total }) = device else { return };
        let short = report.requested_bytes.saturating_sub(free);
        if short == 0 || report.requested_bytes > total {
            return;
        }
        report.short_bytes = Some(short);
        let others = total.saturating_sub(free).saturating_sub(report.held_bytes);
        if others >= short {
            report.remedies.push(Remedy::free_device_memory(short, others, true));
        }
    }

    fn serve(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let health = self.driver.health();
        if health.is_lost() {
            return Err(health.error());
        }
        if layout.alignment() > ALLOCATION_ALIGNMENT {
            return Err(Error::invalid_argument(format!(
                "this model aligns blocks to {ALLOCATION_ALIGNMENT} bytes, not to {}",
                layout.alignment()
            )));
        }
        if layout.rounded_bytes().is_none_or(|bytes| bytes > u64::MAX >> 8) {
            return Err(Error::request_too_large(layout, stream));
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let mut inner = self.inner.lock();
        let served = inner.model.allocate(&*self.driver, layout.bytes(), stream);
        let Some(address) = self.noted(served)? else { return Err(Error::out_of_memory(layout, stream)) };
        inner.live.insert(address, layout.bytes());
        inner.statistics.allocations += 1;
        inner.statistics.bytes_requested += layout.bytes();
        let now = inner.statistics.bytes_requested;
        let statistics = &mut inner.statistics;
        statistics.peak_bytes_in_use = statistics.peak_bytes_in_use.max(now);
        let reserved = inner.model.reserved_bytes();
        inner.statistics.peak_bytes_reserved = inner.statistics.peak_bytes_reserved.max(reserved);
        Ok(DevicePtr::new(address))
    }
}

impl<M: Model> fmt::Display for Peer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// SAFETY: each model hands out ranges of its driver's memory that no live block has. If an earlier owner has
// another stream, the model waits for that stream, or makes the new stream wait.
unsafe impl<M: Model> DeviceMemoryResource for Peer<M> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        self.serve(layout, stream).map_err(|error| {
            let error = error.for_request(layout, stream).on_device(self.driver.device());
            error.report_if_missing(|report| self.explain(report)).in_stack(&self.text)
        })
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() || self.driver.health().is_lost() {
            return;
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let mut inner = self.inner.lock();
        let wrong = match inner.live.get(&ptr.address()) {
            None => Some(MisuseKind::ForeignPointer),
            Some(&allocated_bytes) if allocated_bytes != layout.bytes() => {
                Some(MisuseKind::WrongSize { allocated_bytes })
            }
            Some(_) => None,
        };
        if let Some(kind) = wrong {
            drop(inner);
            return self.refuse(kind, ptr, layout.bytes(), stream);
        }
        inner.live.remove(&ptr.address());
        inner.statistics.deallocations += 1;
        inner.statistics.bytes_requested -= layout.bytes();
        let freed = inner.model.free(&*self.driver, ptr.address(), layout.bytes(), stream);
        if let Err(error) = self.noted(freed) {
            tracing::error!(target: "millpond::replay", %ptr, %error, "a model could not free a block");
        }
    }

    fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let of_device = self.noted(self.driver.mem_get_info()).map_err(|error| error.in_stack(&self.text))?;
        let inner = self.inner.lock();
        let unused = inner.model.reserved_bytes().saturating_sub(inner.statistics.bytes_requested);
        Ok(MemoryInfo { free: of_device.free.saturating_add(unused), ..of_device })
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        let inner = self.inner.lock();
        let (largest_free_block, blocks_free) = inner.model.free_blocks();
        Some(
            inner
                .statistics
                .bytes_in_use(inner.statistics.bytes_requested)
                .bytes_reserved(inner.model.reserved_bytes())
                .largest_free_block(largest_free_block)
                .blocks_in_use(inner.live.len() as u64)
                .blocks_free(blocks_free),
        )
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let mut inner = self.inner.lock();
        let before = inner.model.reserved_bytes();
        if before <= keep_bytes {
            return Ok(0);
        }
        let trimmed = inner.model.trim(&*self.driver);
        self.noted(trimmed).map_err(|error| error.in_stack(&self.text))?;
        Ok(before - inner.model.reserved_bytes())
    }

    fn provide(&self, _traits: &mut Traits) {}
}

impl<M: Model> Drop for Peer<M> {
    fn drop(&mut self) {
        if !self.driver.health().is_lost() {
            self.inner.get_mut().model.release_all(&*self.driver);
        }
    }
}
