//! Tests which steps of the slow path a request takes.

use std::cell::Cell;
use std::sync::Arc;

use millpond_core::DeviceMemoryResourceExt;
use millpond_core::driver::{Driver, StreamFlags};
use millpond_core::{DriverError, Layout};
use millpond_driver::CallKind;
use millpond_driver::sim::{Access, FaultPlan, SimConfig, SimDevice};

use super::*;
use crate::heap::request::Request;
use crate::pool::central::steps::SlowRequest;
use crate::pool::heaps::Reclaim;
use crate::stream_order::{ANY_STREAM, Owner};
use crate::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource, Reuse};

const MIB: u64 = 1 << 20;

thread_local! {
    /// How often this thread has taken a pool's lock.
    pub(super) static LOCKS: Cell<u32> = const { Cell::new(0) };
}

/// Returns how often `work` took a pool's lock.
fn locks_of<T>(work: impl FnOnce() -> T) -> (u32, T) {
    let before = LOCKS.get();
    let done = work();
    (LOCKS.get() - before, done)
}

/// A pool, and two streams of its device.
struct Setup {
    device: Arc<SimDevice>,
    pool: PoolMemoryResource<CudaMemoryResource>,
    streams: [StreamRef; 2],
}

impl Setup {
    fn new(pages: PagesMode) -> Self {
        let device = SimDevice::new(SimConfig::h200());
        let cuda = CudaMemoryResource::new(device.clone());
        let pool = cuda.layer(PoolLayer::new().pages(pages)).expect("an empty pool");
        let stream = |()| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        Self { streams: [(); 2].map(stream), device, pool }
    }

    fn take(&self, bytes: u64, stream: StreamRef) -> DevicePtr {
        self.pool.allocate_bytes(bytes, stream).expect("there is room")
    }

    fn give(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        // SAFETY: each block came from the pool with this size and is freed once.
        unsafe { self.pool.deallocate_bytes(ptr, bytes, stream) };
    }

    fn free_bytes(&self, of: impl Fn(&mut State) -> Owner) -> u64 {
        let mut state = self.pool.central.state.lock();
        let owner = of(&mut state);
        state.heaps.free_bytes(None, owner)
    }
}

fn request(bytes: u64) -> Request {
    Request::new(Layout::new(bytes)).expect("not too large")
}

/// A completed block of another stream serves a request before the pool flushes all small blocks from the
/// threads' caches, which would cost more.
#[test]
fn another_streams_block_serves_before_the_caches_are_flushed() {
    const LARGE: u64 = 8 << 20;
    for pages in [PagesMode::On, PagesMode::Off] {
        let device = SimDevice::new(SimConfig::h200());
        let cuda = CudaMemoryResource::new(device.clone());
        let pool = cuda.layer(PoolLayer::new().pages(pages)).expect("an empty pool");
        let stream = |()| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        let [first, second] = [(); 2].map(stream);
        let allocate = |bytes, stream| pool.allocate_bytes(bytes, stream).expect("there is room");
        // SAFETY: each block came from the pool with this size and is freed once.
        let free = |ptr, bytes, stream| unsafe { pool.deallocate_bytes(ptr, bytes, stream) };
        let large = allocate(LARGE, first);
        for ptr in [(); 42].map(|()| allocate(64 << 10, first)) {
            free(ptr, 64 << 10, first);
        }
        free(large, LARGE, first);
        pool.central.with_heaps(|heaps| _ = heaps.reclaim(None, Reclaim::Large));
        let held = || pool.shared.thread_caches.my_cache(pool.id).counts.totals().blocks_held;
        let before = held();
        assert!(before > 0, "small blocks are cached");
        assert_eq!(allocate(LARGE, second), large, "{pages}");
        assert_eq!(held(), before, "{pages}");
        pool.validate();
    }
}

/// The pool asks about other streams' completed work only if they own free blocks that suffice, together with
/// the stream's own and the unowned ones.
#[test]
fn other_streams_are_asked_only_if_they_could_serve() {
    let setup = Setup::new(PagesMode::Off);
    let [first, second] = setup.streams;
    let could_serve = |bytes, stream| {
        let mut state = setup.pool.central.state.lock();
        let taker = state.owner_of(stream);
        state.others_could_serve(taker, &request(bytes))
    };
    let [ptr, own] = [(64, first), (32, second)].map(|(mib, stream)| setup.take(mib * MIB, stream));
    assert!(!could_serve(256, second), "no stream has a free block");
    setup.give(own, 32 * MIB, second);
    assert!(!could_serve(256, second), "only the stream itself has");
    setup.give(ptr, 64 * MIB, first);
    let all: u64 = [first, second].iter().map(|it| setup.free_bytes(|state| state.owner_of(*it))).sum();
    assert_eq!(all, 96 * MIB);
    let all = all + setup.free_bytes(|_| ANY_STREAM);
    for stream in setup.streams {
        assert!(could_serve(256, stream) && could_serve(all, stream));
        assert!(!could_serve(all + 256, stream), "all together have less");
    }
}

/// The last attempts wait for other streams only while a free block of any owner fits.
#[test]
fn any_block_fits_if_a_stream_has_one_or_it_is_unowned() {
    let setup = Setup::new(PagesMode::Off);
    let [first, _] = setup.streams;
    let fits = |bytes| setup.pool.central.state.lock().any_fits(&request(bytes));
    let ptr = setup.take(64 * MIB, first);
    assert!(!fits(64 * MIB), "it is in use");
    setup.give(ptr, 64 * MIB, first);
    assert!(fits(64 * MIB) && !fits(64 * MIB + 256));
    setup.pool.central.wait_for_owners(None).expect("the device is there");
    assert!(setup.free_bytes(|_| ANY_STREAM) >= 64 * MIB);
    assert!(fits(64 * MIB) && !fits(64 * MIB + 256));
}

/// Free regions return before a growth that would set a new peak of reserved bytes, and only then. Mapping
/// pages is never such a growth.
#[test]
fn room_is_made_only_for_a_growth_that_sets_a_peak() {
    for (pages, may_release) in [(PagesMode::Off, true), (PagesMode::On, false)] {
        let setup = Setup::new(pages);
        let [first, _] = setup.streams;
        let [kept, freed] = [(); 2].map(|()| setup.take(64 * MIB, first));
        let peak = setup.pool.pool_bytes();
        setup.give(freed, 64 * MIB, first);
        setup.pool.trim(0).expect("the device is there");
        setup.give(kept, 64 * MIB, first);
        let held = setup.pool.pool_bytes();
        assert!(held >= 64 * MIB && held < peak, "{pages}: {held} of {peak}");
        for (bytes, sets_a_peak) in [(2 * MIB, false), (peak - held, false), (peak - held + 256, true)] {
            let request = request(bytes);
            if pages == PagesMode::Off {
                let growth = setup.pool.central.with_heaps(|heaps| heaps.store.region_sizes(&request));
                let grown = held + growth.expect("no maximum").preferred;
                assert_eq!(grown.cmp(&peak).is_gt(), sets_a_peak, "{bytes} bytes");
                assert!(bytes == 2 * MIB || grown == peak || sets_a_peak);
            }
            let slow = SlowRequest::new(request, request, true, first);
            let sets = setup.pool.central.state.lock().sets_a_peak(&slow);
            assert_eq!(sets, sets_a_peak && may_release, "{pages}, {bytes} bytes");
        }
    }
}

/// An error of the driver names the caller's request, not the region that the pool asked for.
#[test]
fn an_error_names_the_callers_request() {
    let setup = Setup::new(PagesMode::Off);
    for bytes in [1000, 3 * MIB, 8 * MIB] {
        setup
            .device
            .set_faults(FaultPlan::nth_of(CallKind::MemAlloc, 0, DriverError::NOT_PERMITTED).persistent());
        let error = setup.pool.allocate_bytes(bytes, setup.streams[0]).expect_err("the driver refuses");
        assert_eq!(error.requested_bytes(), Some(bytes), "{error}");
        setup.device.set_faults(FaultPlan::none());
    }
}

/// A simulated device has its own clock, so that programs repeat exactly.
#[test]
fn the_time_is_the_devices() {
    let setup = Setup::new(PagesMode::Off);
    let now = || setup.pool.central.now_ns();
    for ns in [0, 5, 1_000_000] {
        setup.device.advance(ns);
        assert_eq!(now(), setup.device.virtual_time_ns());
    }
    assert!(now() >= 1_000_005);
}

/// If `ordered` is one of the pool's steps, a stream takes blocks that another stream freed before the wait
/// for it, among any number of streams.
#[test]
fn a_stream_takes_what_it_has_waited_for() {
    for more_streams in 0..3 {
        let setup = Setup::new(PagesMode::Off);
        let [donor, taker] = setup.streams;
        let ptr = setup.take(64 * MIB, donor);
        for number in 0..more_streams {
            let stream = setup.device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
            setup.take(1000 + number, stream);
        }
        setup.give(ptr, 64 * MIB, donor);
        let mut state = setup.pool.central.state.lock();
        let [donor, taker] = [donor, taker].map(|stream| state.owner_of(stream));
        let request = request(64 * MIB);
        let find = |state: &mut State, reuse| {
            state.rules.reuse = reuse;
            state.find_ordered(taker, &request)
        };
        assert_eq!(find(&mut state, Reuse::ALL), None, "it did not wait");
        let epoch = state.streams.slot(donor).epoch();
        state.streams.waited(taker, donor, epoch, &[]);
        assert_eq!(find(&mut state, Reuse::ALL), Some((donor, epoch)), "{more_streams} more streams");
        assert_eq!(find(&mut state, Reuse { ordered: false, ..Reuse::ALL }), None);
    }
}

/// A growth of one stream takes the pool's lock three times: to look for a free block, to plan, and to
/// commit. The stream's own free blocks, cached or not, change nothing.
#[test]
fn a_growth_takes_the_lock_three_times() {
    for pages in [PagesMode::On, PagesMode::Off] {
        for bytes in [64 << 10, 8 * MIB, 300 * MIB] {
            let setup = Setup::new(pages);
            let [stream, _] = setup.streams;
            // More calls than the stream needs to have a cache.
            (0..8).for_each(|_| setup.give(setup.take(1000, stream), 1000, stream));
            let calls = setup.device.driver_calls();
            let mut locks = Vec::new();
            let mut grown = 0;
            while grown < 3 {
                let held = setup.pool.pool_bytes();
                let (taken, _) = locks_of(|| setup.take(bytes, stream));
                if setup.pool.pool_bytes() > held {
                    grown += 1;
                    locks.push(taken);
                }
            }
            assert!(setup.device.driver_calls() > calls);
            assert!(locks.iter().all(|locks| *locks <= 3), "{pages}, {bytes} bytes: {locks:?}");
            setup.pool.validate();
        }
    }
}

/// A growth while the stream's own free blocks are too small. Over regions the pool asks for completed work
/// and returns six regions, and takes the lock for each.
#[test]
fn free_blocks_that_do_not_serve_cost_few_locks() {
    for (pages, most) in [(PagesMode::On, 3), (PagesMode::Off, 4 + 6)] {
        let setup = Setup::new(pages);
        let [stream, _] = setup.streams;
        let blocks = [(); 12].map(|()| setup.take(8 * MIB, stream));
        blocks.into_iter().step_by(2).for_each(|ptr| setup.give(ptr, 8 * MIB, stream));
        let held = setup.pool.pool_bytes();
        let (locks, _) = locks_of(|| setup.take(100 * MIB, stream));
        assert!(setup.pool.pool_bytes() > held, "{pages}");
        assert!(locks <= most, "{pages}: {locks}");
    }
}

/// A reached event may not cover the blocks that its stream freed later. The same call asks about them, too.
#[test]
fn blocks_freed_after_the_last_record_are_asked_about_in_the_same_call() {
    let setup = Setup::new(PagesMode::Off);
    let [stream, _] = setup.streams;
    let central = &setup.pool.central;
    let blocks = [(); 2].map(|()| setup.take(64 * MIB, stream));
    setup.device.launch_for(stream, &[Access::write(blocks[0], 64 * MIB, 1)], 1_000_000_000);
    for ptr in blocks {
        setup.give(ptr, 64 * MIB, stream);
        central.flush_caches();
        assert!(central.owned_free_bytes() >= 64 * MIB);
        if ptr == blocks[0] {
            central.collect_completed(None, false).expect("the device is there");
            assert_eq!(central.owned_free_bytes(), 64 * MIB, "the stream is busy");
        }
    }
    setup.device.advance(2_000_000_000);
    central.collect_completed(None, false).expect("the device is there");
    assert_eq!(central.owned_free_bytes(), 0);
}

/// If the caches held the blocks that could serve a request, their stream is asked after the flush, and the
/// pool does not grow.
#[test]
fn other_streams_are_asked_about_flushed_blocks() {
    let setup = Setup::new(PagesMode::Off);
    let [first, second] = setup.streams;
    let large = setup.take(4 * MIB, first);
    setup.give(large, 4 * MIB, first);
    setup.pool.central.flush_caches();
    // The spans of small blocks come from the free block.
    let blocks = [(); 60].map(|()| setup.take(64 << 10, first));
    blocks.into_iter().for_each(|ptr| setup.give(ptr, 64 << 10, first));
    let (before, could_serve) = {
        let mut state = setup.pool.central.state.lock();
        let taker = state.owner_of(second);
        (state.ladder, state.others_could_serve(taker, &request(4 * MIB)))
    };
    assert!(!could_serve, "the blocks are cached");
    assert_eq!(setup.take(4 * MIB, second), large);
    let after = setup.pool.central.state.lock().ladder;
    assert_eq!((after.completed, after.grow), (before.completed + 1, before.grow));
}
