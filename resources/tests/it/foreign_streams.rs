//! Tests streams on which only their owner may record: blocks freed there, and who waits for them.

use std::sync::Arc;

use millpond_core::driver::StreamFlags;
use millpond_core::{DeviceMemoryResourceExt, DevicePtr, Driver, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_driver::{CallKind, CountingDriver};
use millpond_resources::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource};
use millpond_testkit::hooked::HookedDriver;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

struct Setup {
    device: Arc<SimDevice>,
    counter: Arc<CountingDriver>,
    pool: PoolMemoryResource<CudaMemoryResource>,
    foreign: StreamRef,
    other: StreamRef,
}

impl Setup {
    fn new(pages: PagesMode) -> Self {
        let device = SimDevice::new(SimConfig::h200());
        let hooks = HookedDriver::new(device.clone());
        let counter = CountingDriver::new(hooks.clone());
        let layer = PoolLayer::new().pages(pages);
        let pool = CudaMemoryResource::new(counter.clone()).layer(layer).expect("a pool is made");
        let [foreign, other] =
            [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream"));
        hooks.foreign(foreign);
        Self { device, counter, pool, foreign, other }
    }

    fn take(&self, bytes: u64, stream: StreamRef) -> DevicePtr {
        self.pool.allocate_bytes(bytes, stream).expect("there is memory")
    }

    /// Allocates a block on the foreign stream, launches a kernel of 2 ms that writes to it, and frees it.
    fn work_on_foreign_stream(&self, bytes: u64) {
        let ptr = self.take(bytes, self.foreign);
        self.device.launch_for(self.foreign, &[Access::write(ptr, bytes, 1)], 2 * MS);
        // SAFETY: the block is freed once, with its size, and the device is simulated.
        unsafe { self.pool.deallocate_bytes(ptr, bytes, self.foreign) };
    }

    /// Returns how often the host waited for the device.
    fn waits(&self) -> u64 {
        let counts = self.counter.counts();
        let kinds = [CallKind::Synchronize, CallKind::StreamSynchronize, CallKind::EventSynchronize];
        kinds.map(|kind| counts.get(kind).calls).iter().sum()
    }
}

#[test]
fn nobody_waits_for_a_foreign_stream_that_calls() {
    for pages in [PagesMode::On, PagesMode::Off] {
        let setup = Setup::new(pages);
        for round in 0..40 {
            setup.work_on_foreign_stream(256 * MIB);
            setup.take((8 + round) * MIB, setup.other);
            setup.device.advance(3 * MS);
        }
        assert_eq!(setup.waits(), 0, "pages {pages:?}");
        assert_eq!(setup.device.take_violations(), []);
    }
}

/// Blocks freed on such a stream are not lost.
#[test]
fn what_a_foreign_stream_leaves_behind_serves_others() {
    for pages in [PagesMode::On, PagesMode::Off] {
        let setup = Setup::new(pages);
        setup.work_on_foreign_stream(256 * MIB);
        for _ in 0..8 {
            setup.take(64 * MIB, setup.other);
        }
        let held = setup.pool.pool_bytes();
        assert!(held <= 640 * MIB, "pages {pages:?}: {} MiB are held for 512 MiB", held / MIB);
        assert_eq!(setup.device.take_violations(), []);
    }
}
