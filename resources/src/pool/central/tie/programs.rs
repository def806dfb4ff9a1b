//! Follows pools in the testkit's random programs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_core::driver::StreamFlags;
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, Layout, Result,
    StreamRef,
};
use millpond_testkit::hooked::HookedDriver;
use millpond_testkit::program::{self, Config};
use millpond_testkit::size;
use parking_lot::Mutex;

use super::follow::{Shared, TOO_MANY, followed};
use crate::{CallbackMemoryResource, CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource};

/// After this number of calls, a program also returns memory, and time passes for decay.
const CALLS_PER_TRIM: u64 = 61;

/// A pool and its follower. After some driver calls, another thread calls the pool, too.
struct Pair {
    pool: PoolMemoryResource<CudaMemoryResource>,
    follower: Shared,
    calls: AtomicU64,
    other: Mutex<Other>,
}

/// The other thread. It uses the program's thread, which waits for it.
struct Other {
    streams: [StreamRef; 2],
    blocks: VecDeque<(DevicePtr, Layout, StreamRef)>,
    /// How many driver calls it has seen.
    seen: u64,
    is_inside: bool,
}

impl Pair {
    fn new(driver: &DriverHandle, layer: PoolLayer) -> Result<Arc<Self>> {
        let hooked = HookedDriver::new(driver.clone());
        let cuda = CudaMemoryResource::new(hooked.clone());
        let pool = followed(|| cuda.layer(layer))?;
        let follower = pool.central.core().follower.clone().expect("the pool is followed");
        let create = || driver.stream_create(StreamFlags::NON_BLOCKING);
        let streams = [create()?, create()?];
        let other = Mutex::new(Other { streams, blocks: VecDeque::new(), seen: 0, is_inside: false });
        let pair = Arc::new(Self { pool, follower, calls: AtomicU64::new(0), other });
        let watcher = Arc::downgrade(&pair);
        hooked.watch_order(move |call| {
            if let Some(pair) = watcher.upgrade() {
                pair.follower.lock().called(call);
                pair.interrupt();
            }
        });
        Ok(pair)
    }

    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.follower.lock().begins(&self.pool.central.core().state.lock(), Some(stream));
        let got = self.pool.allocate(layout, stream);
        let state = self.pool.central.core().state.lock();
        let mut follower = self.follower.lock();
        follower.freed(&state);
        if let Ok(ptr) = &got {
            follower.got(&state, *ptr, layout.bytes(), stream);
        }
        follower.ends(&state);
        got
    }

    fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        {
            let state = self.pool.central.core().state.lock();
            let mut follower = self.follower.lock();
            follower.begins(&state, None);
            follower.frees(&state, ptr, layout.bytes(), stream);
        }
        // SAFETY: the program's promise, or the other thread's block.
        unsafe { self.pool.deallocate(ptr, layout, stream) };
        self.ends();
    }

    /// Lets the other thread allocate or free in the middle of a call.
    fn interrupt(&self) {
        let (count, stream, freed) = {
            let mut other = self.other.lock();
            other.seen += 1;
            if other.is_inside || !other.seen.is_multiple_of(3) {
                return;
            }
            other.is_inside = true;
            let count = other.seen / 3;
            let freed = if count.is_multiple_of(2) { other.blocks.pop_front() } else { None };
            (count, other.streams[(count / 2 % 2) as usize], freed)
        };
        match freed {
            Some((ptr, layout, stream)) => self.deallocate(ptr, layout, stream),
            None => {
                let layout = Layout::new((1 + count % 3) << 20);
                if let Ok(ptr) = self.allocate(layout, stream) {
                    self.other.lock().blocks.push_back((ptr, layout, stream));
                }
            }
        }
        self.other.lock().is_inside = false;
    }

    /// Returns memory from time to time. An error of the driver is no error of the program's call.
    fn tidy(&self) {
        let count = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(CALLS_PER_TRIM) {
            self.follower.lock().begins(&self.pool.central.core().state.lock(), None);
            _ = self.pool.decay_step(Duration::from_secs(count));
            _ = self.pool.trim((count % 7) << 20);
            self.ends();
        }
    }

    fn ends(&self) {
        let state = self.pool.central.core().state.lock();
        self.follower.lock().ends(&state);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let Other { streams, blocks, is_inside, .. } = self.other.get_mut();
        *is_inside = true;
        let (streams, blocks) = (*streams, std::mem::take(blocks));
        for (ptr, layout, stream) in blocks {
            self.deallocate(ptr, layout, stream);
        }
        for stream in streams {
            // SAFETY: nothing uses the stream any more.
            _ = unsafe { self.pool.driver().stream_destroy(stream) };
        }
    }
}

/// Builds a resource for programs over a pool that has a follower.
fn build(driver: &DriverHandle, layer: PoolLayer, found: &Mutex<Option<Shared>>) -> Result<AnyResource> {
    let pair = Pair::new(driver, layer)?;
    *found.lock() = Some(Arc::clone(&pair.follower));
    let other = Arc::clone(&pair);
    let allocate = move |layout, stream| {
        let got = pair.allocate(layout, stream);
        pair.tidy();
        got
    };
    let deallocate = move |ptr, layout, stream| other.deallocate(ptr, layout, stream);
    // SAFETY: both functions pass the call on to the pool.
    Ok(Arc::new(unsafe { CallbackMemoryResource::new(driver.clone(), allocate, deallocate) }))
}

/// Every step of the pool in random programs is a step of the model, and leads to equal beliefs.
#[test]
fn the_model_follows_the_pool_in_programs() {
    let usual = Config::new("followed").verify_out_of_memory(false);
    let regions = PoolLayer::new().pages(PagesMode::Off);
    let cases = [
        (regions, usual.clone()),
        (regions.maximum_bytes(16 << 20), usual.clone()),
        (regions, usual.clone().faults(true)),
        (regions, usual.clone().streams(12).fewest_streams(8).operations(1_000)),
        (PoolLayer::new().pages(PagesMode::On), usual),
    ];
    let (programs, mut seed) = (size::of(20, 400), 0);
    let mut taken = BTreeMap::<String, u64>::new();
    for (layer, config) in &cases {
        for _ in 0..programs {
            let found = Mutex::new(None);
            let run = program::run(seed, config, &|driver| build(driver, *layer, &found));
            if let Some(follower) = found.lock().take() {
                let follower: &Shared = &follower;
                let follower = follower.lock();
                let failed = follower.failed.as_deref().filter(|why| !why.contains(TOO_MANY));
                assert!(failed.is_none(), "seed {seed}: {}", failed.unwrap_or_default());
                for (name, count) in &follower.taken {
                    *taken.entry(name.clone()).or_default() += count;
                }
            }
            if let Err(failure) = run {
                panic!("{failure}");
            }
            seed += 1;
        }
    }
    println!("{seed} programs, {} steps: {taken:?}", taken.values().sum::<u64>());
    // Two are not certain: the pool skips a record after an error, and only decay disowns block by block.
    assert!(taken.len() >= 20, "most of the model's 22 actions are taken");
}
