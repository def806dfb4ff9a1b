//! A subject that was built, and now allocates and frees.

use std::sync::Arc;

use millpond_core::driver::{MemPool, MemPoolAttribute};
use millpond_core::stack::LayerTable;
use millpond_core::{
    AnyResource, DeviceMemoryResource, DevicePtr, DriverHandle, LadderCounts, Layout, StreamRef,
};
use millpond_driver::{CallCounts, CallKind, CountingDriver};
use millpond_engine::Result;

use super::figures::PassFigures;
use super::subject::Subject;

/// An allocator that is replayed through.
pub(super) enum Allocator {
    None,
    Async(CudaPool),
    Stack(Stack),
}

/// A stack on a driver that counts calls.
pub(super) struct Stack {
    resource: AnyResource,
    driver: Arc<CountingDriver>,
    /// The counts of the reuse ladder before the pass.
    before: Option<LadderCounts>,
}

impl Allocator {
    /// Builds the subject.
    ///
    /// # Errors
    /// The stack cannot be built, or the device has no pools.
    pub(super) fn build(subject: &Subject, table: &LayerTable, driver: &DriverHandle) -> Result<Self> {
        Ok(match subject {
            Subject::None => Self::None,
            Subject::Async => Self::Async(CudaPool::of(driver)?),
            Subject::Stack(spec) => {
                let driver = CountingDriver::new(driver.clone());
                let resource = spec.build(table, &(driver.clone() as DriverHandle))?;
                Self::Stack(Stack { resource, driver, before: None })
            }
        })
    }

    /// Allocates a block. Returns `None` if the subject has no allocator.
    #[inline]
    pub(super) fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<Option<DevicePtr>> {
        Ok(match self {
            Self::None => None,
            Self::Async(pool) => Some(pool.driver.mem_alloc_async(layout.bytes(), stream).map_err(driver)?),
            Self::Stack(stack) => Some(stack.resource.allocate(layout, stream)?),
        })
    }

    /// # Safety
    /// The block came from [`allocate`](Self::allocate) with this layout. Its unfinished work is ordered
    /// before the next work of `stream`.
    #[inline]
    pub(super) unsafe fn free(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) -> Result<()> {
        match self {
            Self::None => {}
            // SAFETY: the caller vouches for the block.
            Self::Async(pool) => unsafe { pool.driver.mem_free_async(ptr, stream) }.map_err(driver)?,
            // SAFETY: the caller vouches for the block.
            Self::Stack(stack) => unsafe { stack.resource.deallocate(ptr, layout, stream) },
        }
        Ok(())
    }

    /// Resets the counts.
    pub(super) fn begin_pass(&mut self) -> Result<()> {
        match self {
            Self::None => {}
            Self::Async(pool) => pool.set(MemPoolAttribute::ReservedMemHigh, 0)?,
            Self::Stack(stack) => {
                stack.driver.reset();
                stack.before = stack.ladder();
            }
        }
        Ok(())
    }

    /// Returns the figures of the pass so far, without its times.
    pub(super) fn figures(&self) -> Result<PassFigures> {
        let mut figures = PassFigures {
            end_ns: 0,
            host_ns: 0,
            peak_taken_bytes: 0,
            failures: 0,
            stream_waits: None,
            host_waits: None,
            driver_calls: None,
            by_kind: CallCounts::default(),
            ladder: None,
        };
        match self {
            Self::None => {}
            Self::Async(pool) => figures.peak_taken_bytes = pool.get(MemPoolAttribute::ReservedMemHigh)?,
            Self::Stack(stack) => {
                let counts = stack.driver.counts();
                figures.peak_taken_bytes = stack.driver.peak_bytes_held();
                figures.stream_waits = Some(counts.get(CallKind::StreamWaitEvent).calls);
                figures.host_waits = Some(HOST_WAITS.iter().map(|kind| counts.get(*kind).calls).sum());
                figures.driver_calls = Some(counts.total_calls());
                figures.ladder = stack.ladder().zip(stack.before).map(|(now, then)| now.since(&then));
                figures.by_kind = counts;
            }
        }
        Ok(figures)
    }
}

/// The calls that make the host wait for the device. `cuMemFree` and `cuMemFreeHost` wait for all work of the
/// device.
const HOST_WAITS: [CallKind; 5] = [
    CallKind::StreamSynchronize,
    CallKind::EventSynchronize,
    CallKind::Synchronize,
    CallKind::MemFree,
    CallKind::MemFreeHost,
];

impl Stack {
    fn ladder(&self) -> Option<LadderCounts> {
        self.resource.statistics().map(|statistics| statistics.ladder)
    }
}

/// The device's default pool. While this value lives, the pool keeps freed memory.
pub(super) struct CudaPool {
    driver: DriverHandle,
    pool: MemPool,
    threshold: u64,
}

impl CudaPool {
    fn of(driver: &DriverHandle) -> Result<Self> {
        let pool = driver.device_get_default_mem_pool().map_err(self::driver)?;
        let mut this = Self { driver: driver.clone(), pool, threshold: 0 };
        this.threshold = this.get(MemPoolAttribute::ReleaseThreshold)?;
        this.set(MemPoolAttribute::ReleaseThreshold, u64::MAX)?;
        Ok(this)
    }

    fn get(&self, attribute: MemPoolAttribute) -> Result<u64> {
        Ok(self.driver.mem_pool_get_attribute(self.pool, attribute).map_err(driver)?)
    }

    fn set(&self, attribute: MemPoolAttribute, value: u64) -> Result<()> {
        Ok(self.driver.mem_pool_set_attribute(self.pool, attribute, value).map_err(driver)?)
    }
}

impl Drop for CudaPool {
    fn drop(&mut self) {
        let trim = || -> Result<()> {
            self.driver.synchronize().map_err(driver)?;
            self.set(MemPoolAttribute::ReleaseThreshold, self.threshold)?;
            Ok(self.driver.mem_pool_trim_to(self.pool, 0).map_err(driver)?)
        };
        if let Err(error) = trim() {
            tracing::warn!(target: "millpond::replay", %error, "the device's default pool keeps its memory");
        }
    }
}

fn driver(error: millpond_core::driver::DriverError) -> millpond_core::Error {
    error.into()
}
