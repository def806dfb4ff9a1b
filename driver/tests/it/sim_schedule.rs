//! Tests schedules, time, determinism, faults, and programs of millions of steps.

use std::sync::Arc;

use millpond_core::driver::{Driver, DriverError, Event, EventFlags, StreamFlags};
use millpond_core::{DevicePtr, StreamRef};
use millpond_driver::CallKind;
use millpond_driver::sim::{Access, FaultPlan, Profile, Schedule, SimConfig, SimDevice};

const BLOCK: u64 = 1024;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % bound as u64) as usize
    }
}

/// A small correct pool of blocks of one size. A block returns to its own stream at once. It goes to another
/// stream after a wait or a query on the event that was recorded when it came back.
struct Pool {
    device: Arc<SimDevice>,
    streams: Vec<StreamRef>,
    free: Vec<(DevicePtr, usize, Event)>,
    live: Vec<(DevicePtr, usize, u64)>,
    tag: u64,
    steps: u64,
}

impl Pool {
    fn new(config: SimConfig, streams: usize, blocks: usize) -> Self {
        let device = SimDevice::new(config);
        let streams: Vec<_> =
            (0..streams).map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap()).collect();
        let base = device.mem_alloc(blocks as u64 * BLOCK).unwrap();
        let free = (0..blocks as u64).map(|index| {
            let event = device.event_create(EventFlags::default()).unwrap();
            device.event_record(event, streams[0]).unwrap();
            (base.offset(index * BLOCK), 0, event)
        });
        let free = free.collect();
        Self { device, streams, free, live: Vec::new(), tag: 0, steps: 0 }
    }

    fn allocate(&mut self, rng: &mut Rng) {
        let index = rng.below(self.free.len());
        let (block, owner, event) = self.free.swap_remove(index);
        let user = rng.below(self.streams.len());
        let stream = self.streams[user];
        if user != owner && !(rng.below(4) == 0 && self.device.event_query(event).unwrap()) {
            self.device.stream_wait_event(stream, event).unwrap();
            self.steps += 1;
        }
        // SAFETY: the event was recorded and is not used again.
        unsafe { self.device.event_destroy(event) }.unwrap();
        self.tag += 1;
        self.device.lend(block, BLOCK, stream);
        self.device.launch(stream, &[Access::write(block, BLOCK, self.tag)]);
        self.live.push((block, user, self.tag));
        self.steps += 3;
    }

    fn free(&mut self, rng: &mut Rng) {
        let index = rng.below(self.live.len());
        let (block, user, tag) = self.live.swap_remove(index);
        let stream = self.streams[user];
        self.device.launch(stream, &[Access::check(block, BLOCK, tag)]);
        self.device.give_back(block, BLOCK, stream);
        let event = self.device.event_create(EventFlags::default()).unwrap();
        self.device.event_record(event, stream).unwrap();
        self.free.push((block, user, event));
        self.steps += 4;
    }

    /// Runs `steps` steps.
    fn run(&mut self, rng: &mut Rng, steps: u64) {
        while self.steps < steps {
            match (self.free.is_empty(), self.live.is_empty()) {
                (false, true) => self.allocate(rng),
                (true, false) => self.free(rng),
                _ if rng.below(2) == 0 => self.allocate(rng),
                _ => self.free(rng),
            }
        }
    }
}

fn trace(config: SimConfig, program: u64) -> (u64, u64, u64) {
    let mut pool = Pool::new(config, 4, 32);
    pool.run(&mut Rng(program), 2_000);
    assert_eq!(pool.device.violations(), []);
    (pool.device.trace_hash(), pool.device.virtual_time_ns(), pool.device.driver_calls())
}

#[test]
fn the_same_program_leaves_the_same_trace() {
    let config = || SimConfig::with_capacity(2 << 20).schedule(Schedule::Seeded(3));
    assert_eq!(trace(config(), 1), trace(config(), 1));
    assert_ne!(trace(config(), 1).0, trace(config(), 2).0, "another program");
    assert_ne!(trace(config(), 1).0, trace(config().seed(9), 1).0, "another seed gives other answers");
    assert_eq!(trace(SimConfig::h200(), 1), trace(SimConfig::h200(), 1));
}

/// The figures come from one process; any other process must find the same.
#[test]
fn the_same_program_leaves_the_same_trace_in_every_process() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30).schedule(Schedule::Seeded(1)));
    let small = device.mem_alloc(1000).unwrap();
    let large = device.mem_alloc(3 << 20).unwrap();
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    assert_eq!((small.address(), large.address()), (0x1400_0000_0000, 0x1400_0020_0000));
    assert_eq!(stream.handle(), 0x51_0000_0000);
}

#[test]
fn millions_of_steps_of_a_correct_pool_break_no_rule() {
    let schedules =
        [(Schedule::Seeded(1), 8), (Schedule::Seeded(2), 2), (Schedule::Seeded(3), 16), (Schedule::Timed, 8)];
    for (schedule, streams) in schedules {
        let mut pool = Pool::new(SimConfig::with_capacity(2 << 20).schedule(schedule), streams, 256);
        let start = std::time::Instant::now();
        pool.run(&mut Rng(streams as u64), 1_000_000);
        let rate = pool.steps as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{schedule:?}, {streams} streams: {rate:.2} million steps/s");
        pool.device.synchronize().unwrap();
        assert_eq!(pool.device.violations(), []);
    }
}

#[test]
fn threads_share_a_device() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 24).schedule(Schedule::Seeded(1)));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let device = &device;
            scope.spawn(move || {
                let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
                for index in 0..2_000 {
                    let tag = thread * 10_000 + index;
                    let ptr = device.mem_alloc(BLOCK).unwrap();
                    device.lend(ptr, BLOCK, stream);
                    device.launch(stream, &[Access::write(ptr, BLOCK, tag), Access::check(ptr, BLOCK, tag)]);
                    device.give_back(ptr, BLOCK, stream);
                    // SAFETY: live, and not used again.
                    unsafe { device.mem_free(ptr) }.unwrap();
                }
            });
        }
    });
    assert_eq!(device.violations(), []);
    assert_eq!((device.live_allocations(), device.lent_blocks(), device.driver_calls()), (0, 0, 4 * 4_001));
}

#[test]
fn a_million_streams_come_and_go() {
    for flags in [StreamFlags::NON_BLOCKING, StreamFlags::BLOCKING] {
        let device = SimDevice::new(SimConfig::with_capacity(2 << 20).schedule(Schedule::Seeded(5)));
        let block = device.mem_alloc(BLOCK).unwrap();
        let event = device.event_create(EventFlags::default()).unwrap();
        for index in 0..1_000_000 {
            let stream = device.stream_create(flags).unwrap();
            if index > 0 {
                device.stream_wait_event(stream, event).unwrap();
            }
            device.lend(block, BLOCK, stream);
            device.launch(stream, &[Access::write(block, BLOCK, index)]);
            device.give_back(block, BLOCK, stream);
            device.event_record(event, stream).unwrap();
            // SAFETY: the stream is not used again.
            unsafe { device.stream_destroy(stream) }.unwrap();
        }
        assert_eq!(device.live_streams(), 0);
        // Without any synchronisation, only the last stream's work is left to wait for.
        let last = device.stream_create(flags).unwrap();
        device.lend(block, BLOCK, last);
        assert_eq!(device.take_violations().len(), 1);
    }
}

#[test]
fn timed_work_is_done_when_its_time_has_come() {
    let device = SimDevice::new(SimConfig::h200());
    let [a, b] = [0, 1].map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
    let event = device.event_create(EventFlags::default()).unwrap();
    let bytes = 256 << 20;
    let kernel = 2_000 + bytes / 4096; // longer than the calls below
    let block = device.mem_alloc(bytes).unwrap();
    let start = device.virtual_time_ns();
    device.launch(a, &[Access::write(block, bytes, 1)]);
    device.event_record(event, a).unwrap();
    device.stream_wait_event(b, event).unwrap();
    device.launch(b, &[Access::check(block, bytes, 1)]); // after that kernel
    assert!(!device.event_query(event).unwrap());
    device.advance(start + kernel + 100 - device.virtual_time_ns());
    assert!(device.event_query(event).unwrap());
    assert!(!device.stream_query(b).unwrap());
    device.stream_synchronize(b).unwrap();
    assert_eq!(device.virtual_time_ns(), start + 2 * kernel);
    device.stream_synchronize(b).unwrap();
    let asking = Profile::h200().call_ns(CallKind::StreamSynchronize).unwrap();
    assert_eq!(device.virtual_time_ns(), start + 2 * kernel + asking, "nothing to wait for");
}

#[test]
fn calls_cost_what_they_were_measured_to() {
    let device = SimDevice::new(SimConfig::h200());
    let cost = |call: &dyn Fn()| {
        let before = device.virtual_time_ns();
        call();
        device.virtual_time_ns() - before
    };
    let h200 = Profile::h200();
    let ns = |kind| h200.call_ns(kind).unwrap();
    assert!(ns(CallKind::MemGetInfo) > ns(CallKind::EventRecord));
    assert_eq!(cost(&|| assert!(device.mem_get_info().is_ok())), ns(CallKind::MemGetInfo));
    let event = device.event_create(EventFlags::default()).unwrap();
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    assert_eq!(cost(&|| device.event_record(event, stream).unwrap()), ns(CallKind::EventRecord));
    let more = h200.costs().event_record.legacy_stream_extra_ns;
    let on_legacy = ns(CallKind::EventRecord) + more;
    assert!(more > 0);
    assert_eq!(cost(&|| device.event_record(event, StreamRef::LEGACY).unwrap()), on_legacy);
    let ptr = device.mem_alloc(64 << 20).unwrap();
    // SAFETY: live and unused.
    let freeing = cost(&|| unsafe { device.mem_free(ptr) }.unwrap());
    let costs = h200.costs().mem_free.clone().unwrap();
    assert_eq!(freeing, costs.by_bytes_ns.ns(64 << 20));
    assert!(freeing > 20 * costs.in_page_ns, "{freeing}");
    assert_eq!(Driver::virtual_time_ns(&*device), Some(device.virtual_time_ns()));
}

#[test]
fn the_adversary_gives_either_answer_and_can_starve_a_stream() {
    let (mut yes, mut no, mut longest) = (0, 0, 0);
    for seed in 0..200 {
        let device = SimDevice::new(SimConfig::h200().schedule(Schedule::Seeded(seed)));
        let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        device.launch(stream, &[]);
        if device.stream_query(stream).unwrap() {
            yes += 1
        } else {
            no += 1
        }
        let mut queries = 1;
        while !device.stream_query(stream).unwrap() {
            queries += 1;
        }
        longest = longest.max(queries);
    }
    assert!(yes > 5 && no > 50, "{yes} yes, {no} no");
    assert!(longest > 500, "the longest wait was {longest} queries");
}

#[test]
fn the_adversary_keeps_the_order_that_there_is() {
    for seed in 0..300 {
        let device = SimDevice::new(SimConfig::with_capacity(2 << 20).schedule(Schedule::Seeded(seed)));
        let [a, b] = [0, 1].map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
        let block = device.mem_alloc(BLOCK).unwrap();
        let event = device.event_create(EventFlags::default()).unwrap();
        for tag in 0..20 {
            let (writer, reader) = if tag % 2 == 0 { (a, b) } else { (b, a) };
            device.launch(writer, &[Access::write(block, BLOCK, tag)]);
            device.event_record(event, writer).unwrap();
            device.stream_wait_event(reader, event).unwrap();
            device.launch(reader, &[Access::check(block, BLOCK, tag)]);
        }
        device.stream_synchronize(a).unwrap();
        device.synchronize().unwrap();
        assert_eq!(device.violations(), [], "seed {seed}");
    }
}

#[test]
fn a_full_queue_makes_the_host_wait_and_not_the_memory_grow() {
    let device = SimDevice::new(SimConfig::h200());
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    for _ in 0..3_000 {
        device.launch(stream, &[]);
    }
    assert!(device.virtual_time_ns() >= 1_900 * 2_000);
    assert!(!device.stream_query(stream).unwrap());
}

/// A program in which every call may fail; returns the failures.
fn program(device: &SimDevice) -> Vec<DriverError> {
    let mut errors = Vec::new();
    let mut note = |error: DriverError| errors.push(error);
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).map_err(&mut note);
    let event = device.event_create(EventFlags::default()).map_err(&mut note);
    let ptr = device.mem_alloc(BLOCK).map_err(&mut note);
    if let (Ok(stream), Ok(event)) = (&stream, &event) {
        device.event_record(*event, *stream).map_err(&mut note).ok();
        device.event_synchronize(*event).map_err(&mut note).ok();
    }
    device.mem_get_info().map_err(&mut note).ok();
    // SAFETY: each was made above, and is not used again.
    unsafe {
        ptr.map(|ptr| device.mem_free(ptr).map_err(&mut note)).ok();
        event.map(|event| device.event_destroy(event).map_err(&mut note)).ok();
        stream.map(|stream| device.stream_destroy(stream).map_err(&mut note)).ok();
    }
    errors
}

#[test]
fn every_call_can_be_made_to_fail_once() {
    let device = SimDevice::new(SimConfig::h200());
    assert_eq!(program(&device), []);
    let calls = device.driver_calls();
    assert_eq!(calls, 9);
    for nth in 0..calls {
        let device = SimDevice::new(SimConfig::h200());
        device.set_faults(FaultPlan::nth_call(nth, DriverError::OUT_OF_MEMORY));
        let errors = program(&device);
        assert_eq!(errors.len(), 1, "call {nth}");
        assert_eq!(errors[0].code(), DriverError::OUT_OF_MEMORY);
        assert_eq!(device.violations(), []);
    }
}

#[test]
fn a_sticky_fault_loses_the_context_for_good() {
    let plan = FaultPlan::nth_of(CallKind::MemAlloc, 0, DriverError::ILLEGAL_ADDRESS);
    let device = SimDevice::new(SimConfig::h200().faults(plan));
    let errors = program(&device);
    assert_eq!(errors.len(), 6, "all calls from the allocation on");
    assert!(device.is_lost() && errors.iter().all(DriverError::is_sticky));
    assert!(device.version().is_ok());
    assert_eq!((device.live_streams(), device.live_events(), device.live_allocations()), (1, 1, 0));
    device.set_faults(FaultPlan::none());
    assert_eq!(program(&device), []);
}

#[test]
fn a_kernel_takes_the_time_it_is_given_and_launches_wait_when_1024_are_unfinished() {
    let device = SimDevice::new(SimConfig::h200());
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let begin = device.virtual_time_ns();
    let now = || device.virtual_time_ns() - begin;
    (0..1024).for_each(|_| device.launch_for(stream, &[], 1000));
    assert_eq!(now(), 0, "the host does not wait");
    device.launch_for(stream, &[], 500);
    assert_eq!(now(), 1000, "the first kernel is done");
    device.stream_synchronize(stream).unwrap();
    assert!((1_024_500..1_030_000).contains(&now()), "{}", now());
}

#[test]
fn memory_in_stream_order_takes_no_room_of_launches() {
    let device = SimDevice::new(SimConfig::h200());
    let [stream, other] = [0, 1].map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
    device.launch_for(stream, &[], 1_000_000_000);
    for _ in 0..600 {
        let block = device.mem_alloc_async(BLOCK, stream).unwrap();
        // SAFETY: live, and not used.
        unsafe { device.mem_free_async(block, stream) }.unwrap();
        device.launch_for(stream, &[], 1000);
    }
    assert!(!device.stream_query(stream).unwrap() && device.stream_query(other).unwrap());
    assert!(device.virtual_time_ns() < 1_000_000_000, "the first kernel is not done");
}

#[test]
fn a_pool_takes_new_memory_before_it_makes_a_stream_wait() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let [stream, other] = [0, 1].map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
    let [half, rest] = [1 << 29, (1 << 29) - (1 << 20)];
    let first = device.mem_alloc_async(half, stream).unwrap();
    device.launch_for(stream, &[], 1_000_000_000);
    // SAFETY: live; all work that uses it is ordered before.
    unsafe { device.mem_free_async(first, stream) }.unwrap();
    let second = device.mem_alloc_async(rest, other).unwrap();
    assert_ne!(second, first);
    device.launch_for(other, &[], 1000);
    device.stream_synchronize(other).unwrap();
    assert!(device.virtual_time_ns() < 1_000_000_000, "the other stream did not wait");
    // No new memory is left.
    assert_eq!(device.mem_alloc_async(half, other).unwrap(), first);
    device.stream_synchronize(other).unwrap();
    assert!(device.virtual_time_ns() >= 1_000_000_000, "the stream waited for the kernel");
    assert_eq!(device.violations(), []);
}
