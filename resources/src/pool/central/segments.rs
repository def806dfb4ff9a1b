//! Reports the segments that a pool takes and returns, to those who watch, and its memory to a checker.

use millpond_core::DevicePtr;
use millpond_core::segments::{SegmentAction, SegmentEvent, is_watched, report};

use crate::pool::central::CentralCore;
use crate::store::Task;

/// The regions of a task before its run, if anyone watches: base and bytes.
pub(crate) struct Before(Vec<(DevicePtr, u64)>);

impl CentralCore {
    /// Notes the regions that a task is to return. A checker forgets the memory.
    pub(crate) fn before(&self, task: &Task) -> Before {
        if let Some(checked) = &self.checked {
            checked.leaving(task.regions_left());
        }
        Before(if is_watched() { task.regions_left().to_vec() } else { Vec::new() })
    }

    /// Reports what a task's run took or returned. The caller holds no lock.
    pub(crate) fn report_segments(&self, before: Before, task: &Task) {
        if !is_watched() {
            return;
        }
        let left = task.regions_left();
        let returned = before.0.into_iter().filter(|region| !left.contains(region));
        let returned = returned.map(|(base, bytes)| (SegmentAction::Free, base.address(), bytes));
        for (action, address, bytes) in returned.chain(task.changes()) {
            report(&SegmentEvent::new(action, self.driver.device(), self.name.id, address, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond_core::segments::{SegmentWatcher, watch};
    use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
    use millpond_driver::sim::{SimConfig, SimDevice};
    use parking_lot::Mutex;

    use super::*;
    use crate::{CudaMemoryResource, PagesMode, PoolLayer};

    #[derive(Default)]
    struct Notes(Mutex<Vec<SegmentEvent>>);

    impl SegmentWatcher for Notes {
        fn note(&self, event: &SegmentEvent) {
            self.0.lock().push(*event);
        }
    }

    #[test]
    fn a_watcher_hears_what_a_pool_takes_and_returns() {
        const BYTES: u64 = 2 << 20;
        for (pages, taken, returned) in [
            (PagesMode::Off, SegmentAction::Allocate, SegmentAction::Free),
            (PagesMode::On, SegmentAction::Map, SegmentAction::Unmap),
        ] {
            let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
            let pool = cuda.layer(PoolLayer::new().pages(pages)).expect("an empty pool");
            let notes = Arc::<Notes>::default();
            let watcher: Arc<dyn SegmentWatcher> = notes.clone();
            watch(&watcher);
            let ptr = pool.allocate_bytes(BYTES, StreamRef::LEGACY).expect("there is room");
            // SAFETY: the block came from the pool with this size, and nothing uses it.
            unsafe { pool.deallocate_bytes(ptr, BYTES, StreamRef::LEGACY) };
            assert_eq!(pool.trim(0).expect("the device is there"), BYTES);
            let id = pool.central.name.id;
            // Other tests have pools, too.
            let own = notes.0.lock().iter().filter(|event| event.pool == id).copied().collect::<Vec<_>>();
            let told = own.iter().map(|event| (event.action, event.address, event.bytes));
            let expected = [taken, returned].map(|action| (action, ptr.address(), BYTES));
            assert_eq!(told.collect::<Vec<_>>(), expected, "{pages}");
        }
    }
}
