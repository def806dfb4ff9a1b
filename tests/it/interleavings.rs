//! Tests interleavings of two threads at one driver call, and refusals of the driver.
//!
//! Each test tells one story with [`HookedDriver`], which runs the other thread's part in the middle of the
//! call. The oracles of the simulated device report a block that came too early; the other assertions show
//! that the story took place.

use std::sync::{Arc, Mutex};

use millpond::driver::sim::{Access, FaultPlan, SimConfig, SimDevice};
use millpond::driver::{CallKind, CountingDriver};
use millpond::driver::{CaptureMode, PhysicalProps, StreamFlags};
use millpond::resources::{CudaMemoryResource, PoolLayer, PoolMemoryResource};
use millpond::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, LadderCounts, Result, StreamRef,
};
use millpond_testkit::Checked;
use millpond_testkit::hooked::HookedDriver;

const MIB: u64 = 1 << 20;
/// The size of the pool's first region, if the test needs one that it can fill. It is so small that the
/// pool's slack, a fraction of its live memory, is less than a page. So the pool takes no memory that the
/// story does not request.
const FIRST: u64 = 100 * MIB;
/// The size of a block that keeps neighbours apart: smaller blocks lie elsewhere.
const APART: u64 = MIB + 256;
/// Milliseconds of work that outlast the test's driver calls.
const LONG: u64 = 800;

/// A pool under the oracles, over a driver that counts its calls and then runs the other thread's part.
struct Setup {
    device: Arc<SimDevice>,
    hooks: Arc<HookedDriver>,
    counter: Arc<CountingDriver>,
    pool: Arc<Checked<PoolMemoryResource<CudaMemoryResource>>>,
}

impl Setup {
    fn new(layer: PoolLayer) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(4096 * MIB));
        let hooks = HookedDriver::new(device.clone());
        let counter = CountingDriver::new(hooks.clone());
        let pool = CudaMemoryResource::new(counter.clone()).layer(layer).expect("there is memory");
        let pool = Arc::new(Checked::new(pool, Some(device.clone())));
        Self { device, hooks, counter, pool }
    }

    fn stream(&self) -> StreamRef {
        self.device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream")
    }

    /// Makes a stream that only its owner may record on.
    fn foreign_stream(&self) -> StreamRef {
        let stream = self.stream();
        self.hooks.foreign(stream);
        stream
    }

    fn try_take(&self, bytes: u64, stream: StreamRef) -> Result<DevicePtr> {
        self.pool.allocate_bytes(bytes, stream)
    }

    fn take(&self, bytes: u64, stream: StreamRef) -> DevicePtr {
        self.try_take(bytes, stream).expect("there is memory")
    }

    /// Allocates a block with a neighbour that stays in use, so that the block joins nothing when it is
    /// freed.
    fn take_apart(&self, bytes: u64, stream: StreamRef) -> DevicePtr {
        let block = self.take(bytes, stream);
        self.take(APART, stream);
        block
    }

    /// Allocates blocks until one is `wanted`.
    fn take_until(&self, wanted: DevicePtr, bytes: u64, stream: StreamRef) {
        let found = (0..50).any(|_| self.take(bytes, stream) == wanted);
        assert!(found, "{wanted} is not handed to {stream}");
    }

    /// Runs a part of the story while the device has no memory left: only then does a stream wait for
    /// another.
    fn without_memory<T>(&self, part: impl FnOnce() -> T) -> T {
        let free = self.device.mem_get_info().expect("the device tells").free;
        // Unlike cuMemFree, neither call waits for the device.
        let taken = self.device.mem_create(free, PhysicalProps::default()).expect("the memory is free");
        let told = part();
        // SAFETY: the memory is mapped nowhere.
        unsafe { self.device.mem_release(taken) }.expect("the memory is this test's own");
        told
    }

    /// Takes the rest of the first region.
    fn fill(&self, stream: StreamRef) {
        let used = self.pool.statistics().expect("a pool counts").bytes_in_use;
        self.take(FIRST - used, stream);
    }

    fn give(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        give(&self.pool, ptr, bytes, stream);
    }

    /// Launches a kernel that writes to the block and runs for `ms` milliseconds.
    fn busy(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef, ms: u64) {
        self.device.launch_for(stream, &[Access::write(ptr, bytes, 1)], ms * 1_000_000);
    }

    fn ladder(&self) -> LadderCounts {
        self.pool.statistics().expect("a pool counts").ladder
    }

    fn calls(&self, kind: CallKind) -> u64 {
        self.counter.counts().get(kind).calls
    }

    /// Returns the calls so far that are not allowed in the capture of a graph.
    fn calls_about_order(&self) -> Vec<CallKind> {
        use CallKind::{EventQuery, EventRecord, StreamSynchronize, StreamWaitEvent, Synchronize};
        let kinds = [EventRecord, EventQuery, StreamWaitEvent, StreamSynchronize, Synchronize];
        kinds.into_iter().filter(|kind| self.calls(*kind) > 0).collect()
    }

    fn assert_ordered(&self) {
        assert_eq!(self.device.take_violations(), []);
        assert_eq!(self.pool.take_faults(), []);
        assert_eq!(self.hooks.hooks_left(), 0, "the story did not take place");
    }
}

fn give(pool: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: each test frees a block once, with its size, and the device is simulated.
    unsafe { pool.deallocate_bytes(ptr, bytes, stream) };
}

/// The donor records point 1. Then it waits for another stream. A third stream waits for point 1; just after
/// that wait, the donor records point 2 with the same event. The third stream waited for point 1 only. It is
/// not ordered after the other stream, so it must wait for the other stream's blocks itself.
#[test]
fn a_wait_inherits_only_what_it_waited_for() {
    for hooked in [true, false] {
        let setup = Setup::new(PoolLayer::new().initial_bytes(FIRST));
        let donor = setup.foreign_stream();
        let [other, third, fourth] = [(); 3].map(|()| setup.stream());
        let [first, later] = [(); 2].map(|()| setup.take_apart(4 * MIB, donor));
        let wanted = setup.take_apart(3 * MIB, donor);
        let slow = setup.take_apart(2 * MIB, donor);
        let others_slow = setup.take_apart(8 * MIB, other);
        let others_quick = setup.take_apart(6 * MIB, other);
        let others_spare = setup.take_apart(5 * MIB, other);
        setup.fill(fourth);

        // The third stream wants the donor's block, and only the donor's next call may record on the donor.
        setup.give(first, 4 * MIB, donor);
        assert_ne!(setup.take(4 * MIB, third), first);
        setup.busy(slow, 2 * MIB, donor, LONG);
        setup.busy(others_slow, 8 * MIB, other, LONG);
        setup.busy(others_quick, 6 * MIB, other, LONG / 4);
        setup.give(slow, 2 * MIB, donor); // point 1
        assert_eq!(setup.calls(CallKind::EventRecord), 1);
        // The fourth stream wants the block that the donor frees next, and uses another block first: the
        // donor's call after that records point 2.
        setup.give(wanted, 3 * MIB, donor);
        setup.busy(others_spare, 5 * MIB, other, LONG / 8);
        setup.give(others_spare, 5 * MIB, other);
        assert_ne!(setup.without_memory(|| setup.take(3 * MIB, fourth)), wanted);
        setup.give(others_slow, 8 * MIB, other);
        setup.give(others_quick, 6 * MIB, other);
        let taken = setup.without_memory(|| setup.take(6 * MIB, donor));
        assert_eq!(taken, others_quick, "the donor waits for the other stream");
        assert_eq!(setup.ladder().waited, 2, "the fourth stream and the donor");

        let pool = setup.pool.clone();
        let record_again = move || give(&pool, later, 4 * MIB, donor); // point 2
        let records = setup.calls(CallKind::EventRecord);
        if hooked {
            setup.hooks.after_wait(record_again);
            setup.without_memory(|| setup.take_until(first, 4 * MIB, third));
        } else {
            setup.without_memory(|| setup.take_until(first, 4 * MIB, third));
            record_again();
        }
        assert_eq!(setup.calls(CallKind::EventRecord), records + 1, "point 2");
        assert_eq!(setup.without_memory(|| setup.take(8 * MIB, third)), others_slow);
        setup.assert_ordered();
        assert_eq!(setup.ladder().waited, 4, "besides, the third stream: for point 1, for the other stream");
    }
}

/// The pool numbers its streams, and forgets idle streams as new ones come. A call that is about to record a
/// point holds a list of numbers: the streams that it is ordered after. Meanwhile enough streams come for a
/// new stream to get a forgotten stream's number. No stream is ordered after that new stream.
#[test]
fn a_ticket_outlives_no_sweep() {
    for hooked in [true, false] {
        let setup = Setup::new(PoolLayer::new().initial_bytes(FIRST));
        let donor = setup.foreign_stream();
        let [other, third, fourth] = [(); 3].map(|()| setup.stream());
        let [first, second] = [(); 2].map(|()| setup.take_apart(4 * MIB, donor));
        [third, fourth].into_iter().for_each(|stream| _ = setup.take(APART, stream));
        (0..11).for_each(|_| _ = setup.take(APART, setup.stream()));
        // This is the last stream to arrive. Once the pool forgets it, its number is reused first.
        let others = setup.take_apart(6 * MIB, other);
        setup.fill(fourth);

        setup.busy(others, 6 * MIB, other, LONG / 8);
        setup.give(others, 6 * MIB, other);
        let taken = setup.without_memory(|| setup.take(6 * MIB, donor));
        assert_eq!(taken, others, "the donor waits for the other stream");
        setup.busy(first, 4 * MIB, donor, LONG);
        setup.give(first, 4 * MIB, donor);
        assert_ne!(setup.take(4 * MIB, third), first, "wanted: the donor's next call records");
        assert_eq!(setup.pool.inner().known_streams(), 15, "one more, and the pool looks for idle ones");

        let (pool, came) = (setup.pool.clone(), Arc::new(Mutex::new(None)));
        let [sixteenth, new] = [(); 2].map(|()| setup.stream());
        let note = Arc::clone(&came);
        let streams_come = move || {
            pool.allocate_bytes(60 * MIB, sixteenth).expect("there is memory");
            let block = pool.allocate_bytes(9 * MIB, new).expect("there is memory");
            *note.lock().expect("no thread panicked") = Some((block, pool.inner().known_streams()));
        };
        if hooked {
            setup.hooks.before_record(streams_come);
            setup.give(second, 4 * MIB, donor);
        } else {
            setup.give(second, 4 * MIB, donor);
            streams_come();
        }
        let (block, known) = came.lock().expect("no thread panicked").take().expect("the streams came");
        setup.busy(block, 9 * MIB, new, LONG);
        setup.give(block, 9 * MIB, new);
        let waited = setup.ladder().waited;
        setup.without_memory(|| {
            assert!((0..50).any(|_| [first, second].contains(&setup.take(4 * MIB, third))));
            assert_eq!(setup.take(9 * MIB, third), block);
        });
        setup.assert_ordered();
        assert_eq!(setup.ladder().waited, waited + 2, "for the donor, and for the new stream");
        // Without the ticket the pool does forget, so the number of streams is right for this test.
        if hooked { assert_eq!(known, 17) } else { assert!(known < 10, "{known}") }
    }
}

/// Memory is out, except for a busy block of another stream: the pool synchronizes. Before the driver does,
/// the block's neighbour is freed. The two join to a block that is newer than the synchronization, so the
/// synchronization frees nothing. The memory must be available anyway.
#[test]
fn what_comes_back_during_the_last_synchronisation_is_found() {
    for hooked in [true, false] {
        let all = FIRST / 2;
        let setup = Setup::new(PoolLayer::new().initial_bytes(all).maximum_bytes(all));
        let (donor, requester) = (setup.foreign_stream(), setup.stream());
        let [left, right] = [(); 2].map(|()| setup.take(8 * MIB, donor));
        setup.take(all - 16 * MIB, requester);
        setup.busy(left, 8 * MIB, donor, LONG / 8);
        setup.give(left, 8 * MIB, donor);
        if hooked {
            let pool = setup.pool.clone();
            setup.hooks.before_synchronize(move || give(&pool, right, 8 * MIB, donor));
        }
        assert_eq!(setup.try_take(8 * MIB, requester).expect("the memory is there"), left);
        setup.assert_ordered();
        let ladder = setup.ladder();
        assert_eq!(ladder.out_of_memory, 0);
        let neighbours = setup.pool.statistics().expect("a pool counts").bytes_free();
        assert_eq!(neighbours, if hooked { 8 * MIB } else { 0 });
        assert!(setup.calls(CallKind::Synchronize) >= 1);
    }
}

/// A stream that only its owner may record on requests larger and larger blocks, and its own free blocks are
/// too small. The pool queries the stream's progress. But the stream is alive, because it calls. So its
/// blocks are not lost, and the pool need not synchronize to reclaim them.
#[test]
fn a_foreign_stream_does_not_wait_for_its_own_blocks() {
    let setup = Setup::new(PoolLayer::new());
    let (stream, other) = (setup.foreign_stream(), setup.foreign_stream());
    setup.take(64 * MIB, other); // So that the other stream owns little of the pool.
    let small = setup.take(4 * MIB, other);
    setup.give(small, 4 * MIB, other); // Another owner: now the pool has a stream to ask about.
    for round in 0..6 {
        let bytes = (8 + round) * MIB;
        let block = setup.take_apart(bytes, stream);
        setup.busy(block, bytes, stream, 1);
        setup.give(block, bytes, stream);
    }
    assert_eq!(setup.calls(CallKind::Synchronize), 0);
    assert!(setup.calls(CallKind::EventRecord) > 0, "the pool asked how far the stream is");
    setup.assert_ordered();
}

/// The memory that [`hand_around`] needs if blocks pass between streams.
const ENOUGH: u64 = 36 * MIB;

/// Streams that hand blocks around: records, queries, waits, and a stream that must record for itself.
fn hand_around(setup: &Setup) -> Result<()> {
    let streams = [setup.stream(), setup.foreign_stream(), setup.stream()];
    for round in 0..12 {
        let mut blocks = Vec::new();
        for stream in streams {
            for bytes in [4 * MIB, (4 + round % 3) * MIB] {
                blocks.push((setup.try_take(bytes, stream)?, bytes, stream));
            }
        }
        for (block, bytes, stream) in blocks.drain(..) {
            setup.busy(block, bytes, stream, LONG / 8);
            setup.give(block, bytes, stream);
        }
        // One stream wants the blocks that another freed.
        let taker = streams[round as usize % streams.len()];
        for bytes in [4 * MIB, 6 * MIB, 2 * MIB, 4 * MIB, 4 * MIB] {
            let block = setup.try_take(bytes, taker)?;
            setup.busy(block, bytes, taker, 1);
            blocks.push((block, bytes, taker));
        }
        blocks.into_iter().for_each(|(block, bytes, stream)| setup.give(block, bytes, stream));
    }
    Ok(())
}

/// A pool passes blocks between streams to save memory. If the driver refuses a call that only serves this,
/// the pool serves the request in another way: the caller sees no error.
#[test]
fn errors_of_reuse_are_not_the_callers() {
    // So little memory that streams have to wait for each other.
    let layer = || PoolLayer::new().maximum_bytes(ENOUGH);
    let undisturbed = Setup::new(layer());
    hand_around(&undisturbed).expect("nothing fails");
    undisturbed.assert_ordered();
    assert!(undisturbed.ladder().waited > 0, "{:?}", undisturbed.ladder());

    use CallKind::{EventCreate, EventQuery, EventRecord, StreamIsCapturing, StreamWaitEvent};
    for kind in [EventCreate, EventRecord, EventQuery, StreamWaitEvent, StreamIsCapturing] {
        for (nth, code) in (0..3).flat_map(|nth| [(nth, 1), (nth, 2)]) {
            let once = FaultPlan::nth_of(kind, nth, code);
            for plan in [once.clone(), once.persistent()] {
                // A stream that may capture does not wait: it needs new memory.
                let is_limited = kind != StreamIsCapturing;
                let setup = Setup::new(if is_limited { layer() } else { PoolLayer::new() });
                setup.device.set_faults(plan.clone());
                if let Err(error) = hand_around(&setup) {
                    panic!("{plan:?}: {error}");
                }
                setup.assert_ordered();
                let failures = setup.counter.counts().get(kind).failures;
                assert!(failures > 0, "{plan:?} made nothing fail");
            }
        }
    }
}

/// While a stream captures a graph, a record on it would become part of the graph, and a query would break
/// it. Other streams do without its blocks.
#[test]
fn a_stream_that_captures_is_left_alone() {
    for capturing in [true, false] {
        let setup = Setup::new(PoolLayer::new().initial_bytes(FIRST));
        let [donor, requester] = [(); 2].map(|()| setup.stream());
        let block = setup.take(4 * MIB, donor);
        setup.fill(requester);
        setup.busy(block, 4 * MIB, donor, LONG);
        setup.give(block, 4 * MIB, donor);
        if capturing {
            setup.device.begin_capture(donor, CaptureMode::Global).expect("it does not capture");
        }
        let take = || setup.take(4 * MIB, requester);
        let served = if capturing { take() } else { setup.without_memory(take) };
        setup.assert_ordered();
        if capturing {
            assert_eq!(setup.calls_about_order(), []);
            assert_eq!((served == block, setup.ladder().grow), (false, 1));
            setup.device.end_capture(donor).expect("the pool left it alone");
        } else {
            assert_eq!((served, setup.ladder().waited), (block, 1));
        }
    }
}

/// The donor's own call records a point for others. Just before the record, another thread begins a capture
/// on the donor, so that the record becomes part of the graph. Querying the event or waiting for it would be
/// an error and end the capture. The pool forgets the point, and records another one after the capture.
#[test]
fn a_capture_that_begins_at_a_record_costs_only_the_point() {
    for hooked in [true, false] {
        let setup = Setup::new(PoolLayer::new().initial_bytes(FIRST));
        let (donor, requester) = (setup.foreign_stream(), setup.stream());
        let [first, second, third] = [(); 3].map(|()| setup.take_apart(4 * MIB, donor));
        setup.fill(requester);
        setup.busy(first, 4 * MIB, donor, LONG);
        setup.give(first, 4 * MIB, donor);
        assert_ne!(setup.take(4 * MIB, requester), first, "wanted: the donor's next call records");
        if hooked {
            let device = setup.device.clone();
            let begin = move || device.begin_capture(donor, CaptureMode::Relaxed).expect("the first");
            setup.hooks.before_record(begin);
        }
        setup.give(second, 4 * MIB, donor);
        assert_eq!(setup.calls(CallKind::EventRecord), 1);
        let waited = setup.ladder().waited;
        let take = || setup.take(4 * MIB, requester);
        let block = if hooked { take() } else { setup.without_memory(take) };
        assert_eq!([first, second].contains(&block), !hooked);
        if hooked {
            setup.device.end_capture(donor).expect("the event was not queried");
            setup.give(third, 4 * MIB, donor);
            assert_eq!(setup.calls(CallKind::EventRecord), 2, "the point is recorded again");
            assert!([first, second, third].contains(&setup.without_memory(take)));
        }
        assert_eq!(setup.ladder().waited, waited + 1);
        setup.assert_ordered();
    }
}

/// A stream that captures a graph may request memory. It gets its own blocks and new memory, without any
/// driver call that would end up in the graph. If there is no new memory, it is out of memory.
#[test]
fn a_stream_that_captures_gets_new_memory() {
    let layer = || PoolLayer::new().initial_bytes(FIRST);
    for (layer, grows) in [(layer(), true), (layer().maximum_bytes(FIRST), false)] {
        let setup = Setup::new(layer);
        let [donor, requester] = [(); 2].map(|()| setup.stream());
        let block = setup.take_apart(4 * MIB, donor);
        let own = setup.take_apart(2 * MIB, requester);
        setup.fill(donor);
        setup.busy(block, 4 * MIB, donor, LONG);
        setup.give(block, 4 * MIB, donor);
        setup.give(own, 2 * MIB, requester);
        setup.device.begin_capture(requester, CaptureMode::Global).expect("it does not capture");
        assert_eq!(setup.take(2 * MIB, requester), own);
        match setup.try_take(4 * MIB, requester) {
            Ok(served) => assert!(grows && served != block),
            Err(error) => assert!(!grows && error.is_out_of_memory(), "{error}"),
        }
        assert_eq!(setup.calls_about_order(), []);
        setup.device.end_capture(requester).expect("the pool left it alone");
        let taken = setup.without_memory(|| setup.take(4 * MIB, requester));
        assert_eq!(taken, block, "the same request without the capture");
        setup.assert_ordered();
    }
}

/// All memory is allocated, except a busy block of a donor that may record no event: the pool waits for the
/// device. Just after the wait, work begins on another block, which is then freed. The wait does not cover
/// this work.
#[test]
fn a_wait_for_the_device_covers_nothing_that_comes_back_after_it() {
    for hooked in [true, false] {
        let all = FIRST / 2;
        let setup = Setup::new(PoolLayer::new().initial_bytes(all).maximum_bytes(all));
        let (donor, requester) = (setup.foreign_stream(), setup.stream());
        let [early, late, last] = [(); 3].map(|()| setup.take_apart(8 * MIB, donor));
        let used = setup.pool.statistics().expect("a pool counts").bytes_in_use;
        setup.take(all - used, requester);
        setup.busy(early, 8 * MIB, donor, LONG / 8);
        setup.give(early, 8 * MIB, donor);
        if hooked {
            let (pool, device) = (setup.pool.clone(), setup.device.clone());
            setup.hooks.after_synchronize(move || {
                device.launch_for(donor, &[Access::write(late, 8 * MIB, 1)], LONG * 1_000_000);
                // The thread's cache keeps one large block, so the pool gets the other one.
                give(&pool, late, 8 * MIB, donor);
                give(&pool, last, 8 * MIB, donor);
            });
        }
        assert_eq!(setup.take(8 * MIB, requester), early);
        assert!(setup.calls(CallKind::Synchronize) >= 1);
        if hooked {
            let next = setup.take(8 * MIB, requester);
            assert!([late, last].contains(&next), "memory is out otherwise");
        }
        setup.assert_ordered();
    }
}

/// The driver refuses to report the donor's progress. Before the pool asks again, it records another event.
#[test]
fn an_event_that_the_driver_refused_is_recorded_anew() {
    for fails in [true, false] {
        let setup = Setup::new(PoolLayer::new().initial_bytes(FIRST));
        let [donor, requester] = [(); 2].map(|()| setup.stream());
        let block = setup.take(4 * MIB, donor);
        setup.fill(requester);
        setup.busy(block, 4 * MIB, donor, LONG);
        setup.give(block, 4 * MIB, donor);
        if fails {
            setup.device.set_faults(FaultPlan::nth_of(CallKind::EventQuery, 0, 1));
        }
        assert_ne!(setup.take(4 * MIB, requester), block);
        assert_eq!((setup.calls(CallKind::EventQuery), setup.calls(CallKind::EventRecord)), (1, 1));
        assert_ne!(setup.take(4 * MIB, requester), block);
        assert_eq!(setup.calls(CallKind::EventRecord), if fails { 2 } else { 1 });
        setup.assert_ordered();
    }
}
