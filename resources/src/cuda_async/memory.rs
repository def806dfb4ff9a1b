//! The common parts of the resources over the driver's pools: requests, misuse, and errors.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{Accessibility, DevicePtr, FailureTally, Layout, ResourceStatistics, Result, StreamRef};

use crate::memory_pool::{Freed, MemoryPool};

/// A pool as the memory of a resource.
#[derive(Debug)]
pub(super) struct AsyncMemory {
    pool: MemoryPool,
    accessibility: Accessibility,
    misuses: AtomicU64,
    pub(super) failures: FailureTally,
}

impl AsyncMemory {
    pub(super) fn new(pool: MemoryPool, accessibility: Accessibility) -> Self {
        Self { pool, accessibility, misuses: AtomicU64::new(0), failures: FailureTally::default() }
    }

    pub(super) fn pool(&self) -> &MemoryPool {
        &self.pool
    }

    pub(super) fn accessibility(&self) -> Accessibility {
        self.accessibility
    }

    pub(super) fn allocate(
        &self,
        layout: Layout,
        stream: StreamRef,
        name: &dyn Display,
    ) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        self.pool.inner().allocate(layout, stream).map_err(|error| {
            let error = error.for_request(layout, stream).on_device(self.pool.driver().device());
            let error = error.report_if_missing(|report| self.pool.inner().fill_in(report));
            self.failures.noted(error).in_stack(name)
        })
    }

    pub(super) fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef, name: &dyn Display) {
        if ptr.is_null() {
            return;
        }
        match self.pool.inner().deallocate(ptr, layout, stream) {
            Freed::Taken => {}
            Freed::Refused(kind) | Freed::TakenDespite(kind) => {
                self.report(kind, ptr, layout, stream, name);
            }
        }
    }

    #[cold]
    fn report(
        &self,
        kind: MisuseKind,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
        name: &dyn Display,
    ) {
        self.misuses.fetch_add(1, Ordering::Relaxed);
        misuse::report(&Misuse::new(kind, ptr, layout.bytes(), stream, name));
    }

    pub(super) fn statistics(&self) -> Option<ResourceStatistics> {
        let misuses = self.misuses.load(Ordering::Relaxed);
        (misuses > 0).then(|| ResourceStatistics::default().misuses(misuses))
    }
}
