//! Tests a pool as its users see it, from one thread and from many, for Miri and the sanitizers.

use std::collections::BTreeSet;
use std::sync::Mutex;

use millpond_core::driver::{DriverError, StreamFlags};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, StreamRef};
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource};

const MIB: u64 = 1 << 20;
const THREADS: u64 = 4;
/// Small enough that threads take from each other.
const MOST: u64 = 48 * MIB;

type Pool = PoolMemoryResource<CudaMemoryResource>;

/// A block, its size, and the stream that last used it.
type Block = (DevicePtr, u64, StreamRef);

struct Setup {
    pool: Pool,
    streams: Vec<StreamRef>,
    /// Blocks that any thread may free.
    left: Mutex<Vec<Block>>,
    /// The addresses of live blocks, to check that none is handed out twice.
    live: Mutex<BTreeSet<u64>>,
}

impl Setup {
    fn new(pages: PagesMode) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
        let flags = StreamFlags::NON_BLOCKING;
        let streams = (0..3).map(|_| device.stream_create(flags).expect("a stream")).collect();
        let layer = PoolLayer::new().pages(pages).maximum_bytes(MOST);
        let pool = CudaMemoryResource::new(device).layer(layer).expect("there is memory");
        Self { pool, streams, left: Mutex::default(), live: Mutex::default() }
    }

    fn take(&self, bytes: u64, stream: StreamRef) -> Option<Block> {
        match self.pool.allocate_bytes(bytes, stream) {
            Ok(ptr) => {
                let fresh = self.live.lock().expect("no thread panicked").insert(ptr.address());
                assert!(fresh, "{ptr} is handed out twice");
                Some((ptr, bytes, stream))
            }
            Err(error) => {
                assert!(error.is_out_of_memory(), "{error}");
                None
            }
        }
    }

    fn give(&self, (ptr, bytes, stream): Block) {
        assert!(self.live.lock().expect("no thread panicked").remove(&ptr.address()));
        // SAFETY: the block came from the pool with this size and is freed once; nothing uses it.
        unsafe { self.pool.deallocate_bytes(ptr, bytes, stream) };
    }

    /// The work of a thread: allocates and frees blocks of all sizes, leaves some to other threads, and takes
    /// some of theirs.
    fn work(&self, seed: u64, steps: u64) {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut mine = Vec::new();
        for step in 0..steps {
            let stream = self.streams[random(self.streams.len() as u64) as usize];
            let bytes = match random(4) {
                0 => 2 * MIB + 256 * random(3),
                1 => 40_000 + random(20_000),
                _ => 256 * (1 + random(4)),
            };
            mine.extend(self.take(bytes, stream));
            if random(3) == 0 {
                self.left.lock().expect("no thread panicked").extend(mine.pop());
            }
            let others = self.left.lock().expect("no thread panicked").pop();
            others.into_iter().for_each(|block| self.give(block));
            while mine.len() > 6 {
                let index = random(mine.len() as u64) as usize;
                self.give(mine.swap_remove(index));
            }
            if step % 100 == 99 {
                self.pool.trim(MOST / 2).expect("free memory can be returned");
            }
        }
        mine.into_iter().for_each(|block| self.give(block));
    }
}

#[test]
fn threads_share_a_pool() {
    let (rounds, steps) = if cfg!(miri) { (2, 25) } else { (8, 4_000) };
    for pages in [PagesMode::Off, PagesMode::On] {
        let setup = Setup::new(pages);
        for round in 0..rounds {
            // New threads each time; they take over the blocks that the last ones left.
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let setup = &setup;
                    scope.spawn(move || setup.work(round * THREADS + thread + 1, steps));
                }
            });
            setup.pool.validate();
        }
        setup.left.lock().expect("no thread panicked").drain(..).for_each(|block| setup.give(block));
        setup.pool.validate();
        setup.pool.trim(0).expect("free memory can be returned");
        let after = setup.pool.statistics().expect("a pool counts");
        assert_eq!((after.blocks_in_use, after.bytes_in_use, after.bytes_reserved), (0, 0, 0), "{after:?}");
        assert_eq!((after.allocations, after.misuses), (after.deallocations, 0));
    }
}

/// A trim returns even the little memory that threads keep.
#[test]
fn trim_leaves_nothing_that_is_free() {
    for pages in [PagesMode::Off, PagesMode::On] {
        let setup = Setup::new(pages);
        let stream = setup.streams[0];
        for _ in 0..8 {
            let block = setup.take(1000, stream).expect("there is memory");
            setup.give(block);
        }
        setup.pool.trim(0).expect("free memory can be returned");
        assert_eq!(setup.pool.pool_bytes(), 0, "{pages}");
    }
}

/// A thread may query the free memory while blocks go from thread to thread. Inconsistent figures must not
/// panic.
#[test]
fn memory_info_works_at_any_time() {
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
    let pool = CudaMemoryResource::new(device).layer(PoolLayer::new()).expect("there is memory");
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    let (give, given) = std::sync::mpsc::sync_channel::<DevicePtr>(1);
    std::thread::scope(|scope| {
        let pool = &pool;
        let ends = scope.spawn(move || {
            for ptr in given {
                // SAFETY: the block came from the pool with this size, and nothing uses it.
                unsafe { pool.deallocate_bytes(ptr, 20 * MIB, stream) };
            }
        });
        scope.spawn(move || {
            for _ in 0..rounds {
                let taken = pool.allocate_bytes(20 * MIB, stream);
                taken.into_iter().for_each(|ptr| give.send(ptr).expect("the other thread waits"));
            }
        });
        while !ends.is_finished() {
            let info = pool.memory_info().expect("the device is there");
            assert!(info.free <= info.total, "{info:?}");
        }
    });
}

/// A failed driver call is repeated, and does not stop the trim.
#[test]
fn trim_releases_everything_after_earlier_failures() {
    for failing in 0..60 {
        let device = SimDevice::new(SimConfig::with_capacity(4096 * MIB));
        let stream = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        let layer = PoolLayer::new().pages(PagesMode::On);
        let pool = CudaMemoryResource::new(device.clone()).layer(layer).expect("there is memory");
        let take = |bytes| pool.allocate_bytes(bytes, stream);
        let give = |ptr, bytes| {
            // SAFETY: the block came from the pool with this size, and nothing uses it.
            unsafe { pool.deallocate_bytes(ptr, bytes, stream) };
        };
        // Holes that together make a larger block.
        let blocks: Vec<DevicePtr> = (0..16).map(|_| take(9 * MIB).expect("there is memory")).collect();
        let (holes, kept): (Vec<_>, Vec<_>) = blocks.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
        holes.into_iter().for_each(|(_, ptr)| give(ptr, 9 * MIB));
        device.set_faults(FaultPlan::nth_call(failing, DriverError::INVALID_VALUE).persistent());
        let taken = take(40 * MIB);
        device.set_faults(FaultPlan::none());
        taken.into_iter().for_each(|ptr| give(ptr, 40 * MIB));
        kept.into_iter().for_each(|(_, ptr)| give(ptr, 9 * MIB));
        pool.trim(0).expect("the device is there");
        assert_eq!(pool.pool_bytes(), 0, "call {failing} had failed");
    }
}

#[test]
fn a_report_has_the_maximum_only_if_there_is_one() {
    for (layer, limit) in [(PoolLayer::new(), None), (PoolLayer::new().maximum_bytes(MOST), Some(MOST))] {
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let report = cuda.layer(layer.pages(PagesMode::On)).expect("an empty pool").memory_report();
        assert_eq!(report.layers[0].limit_bytes, limit);
    }
}

/// A free of null does nothing, in a pool that has served nothing yet, too.
#[test]
fn null_may_be_freed() {
    for pages in [PagesMode::On, PagesMode::Off] {
        let setup = Setup::new(pages);
        let ((), misuses) = millpond_testkit::misuse_recorder::record(|| {
            for stream in [StreamRef::LEGACY, setup.streams[0]] {
                for bytes in [0, 1000, 4 * MIB] {
                    // SAFETY: null is no block.
                    unsafe { setup.pool.deallocate_bytes(DevicePtr::NULL, bytes, stream) };
                }
            }
        });
        assert_eq!(misuses, []);
        assert_eq!(setup.pool.pool_bytes(), 0);
    }
}
