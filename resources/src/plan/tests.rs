//! Tests the plan: random programs that repeat, with what may go wrong in them, under the oracles of the
//! simulated device; and mistakes that these must find.

use std::sync::Arc;

use millpond_core::driver::{Driver, EventFlags, StreamFlags};
use millpond_core::misuse::MisuseKind;
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef};
use millpond_driver::sim::{Access, Schedule, SimConfig, SimDevice};
use millpond_planning::Options;
use millpond_testkit::Checked;
use millpond_testkit::{Rng, misuse_recorder};

use crate::plan::body::{Body, Claim};
use crate::plan::draft::{Allowed, plan_body};
use crate::plan::running::Mistake;
use crate::plan::sharing::{SHARING, Tried};
use crate::plan::{PlanLayer, PlanMemoryResource};
use crate::{CudaMemoryResource, Decay, PoolLayer, PoolMemoryResource};

pub(super) type Stack = PlanMemoryResource<PoolMemoryResource<CudaMemoryResource>>;

const STREAMS: u64 = 3;

/// One call of a program; blocks are numbered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Allocate { block: usize, bytes: u64, stream: usize },
    Free { block: usize, stream: usize },
}

#[derive(Clone, Copy, Debug)]
struct Held {
    ptr: DevicePtr,
    bytes: u64,
    stream: usize,
    tag: u64,
}

/// A program that runs over the layer, and the checks below and above it.
pub(super) struct World {
    pub(super) device: Arc<SimDevice>,
    pub(super) stack: Checked<Stack>,
    pub(super) streams: Vec<StreamRef>,
    held: Vec<Option<Held>>,
    strays: Vec<Held>,
    tag: u64,
}

impl World {
    pub(super) fn new(schedule: Schedule) -> Self {
        Self::over(schedule, PlanLayer::new())
    }

    /// Plans come at a certain request, so that a seed says what happens.
    pub(super) fn over(schedule: Schedule, layer: PlanLayer) -> Self {
        Self::over_as_it_is(schedule, layer.background(false))
    }

    pub(super) fn over_as_it_is(schedule: Schedule, layer: PlanLayer) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(4 << 30).schedule(schedule));
        let pool =
            CudaMemoryResource::new(Arc::clone(&device) as _).layer(PoolLayer::new().decay(Decay::Off));
        let stack = pool.unwrap().layer(layer.repeat(32)).unwrap();
        let streams = (0..STREAMS).map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
        let streams = streams.collect();
        let stack = Checked::new(stack, Some(Arc::clone(&device)));
        Self { device, stack, streams, held: Vec::new(), strays: Vec::new(), tag: 0 }
    }

    fn allocate(&mut self, bytes: u64, stream: usize) -> Held {
        let ptr = self.stack.allocate(Layout::new(bytes), self.streams[stream]).unwrap();
        self.tag += 1;
        self.device.launch(self.streams[stream], &[Access::write(ptr, bytes, self.tag)]);
        Held { ptr, bytes, stream, tag: self.tag }
    }

    /// Frees a block on a stream, which first waits for the block's own.
    fn free(&mut self, held: Held, stream: usize) {
        let check = Access::check(held.ptr, held.bytes, held.tag);
        self.device.launch(self.streams[held.stream], &[check]);
        if stream != held.stream {
            let event = self.device.event_create(EventFlags::default()).unwrap();
            self.device.event_record(event, self.streams[held.stream]).unwrap();
            self.device.stream_wait_event(self.streams[stream], event).unwrap();
            // The last use is on the other stream.
            self.device.launch(self.streams[stream], &[Access::check(held.ptr, held.bytes, held.tag)]);
            // SAFETY: the event is this test's own.
            unsafe { self.device.event_destroy(event).unwrap() };
        }
        // SAFETY: the block came from the stack with this size, and its uses are before the stream's next
        // work.
        unsafe { self.stack.deallocate(held.ptr, Layout::new(held.bytes), self.streams[stream]) };
    }

    pub(super) fn run(&mut self, calls: &[Call]) {
        for call in calls {
            match *call {
                Call::Allocate { block, bytes, stream } => {
                    let new = self.allocate(bytes, stream);
                    self.held.resize(self.held.len().max(block + 1), None);
                    self.strays.extend(self.held[block].replace(new));
                }
                Call::Free { block, stream } => {
                    if let Some(held) = self.held.get_mut(block).and_then(Option::take) {
                        self.free(held, stream);
                    }
                }
            }
        }
    }

    /// Frees everything, as a program does whose step failed.
    pub(super) fn unwind(&mut self) {
        let held: Vec<_> = self.held.iter_mut().rev().filter_map(Option::take).collect();
        for held in held.into_iter().chain(std::mem::take(&mut self.strays)) {
            self.free(held, held.stream);
        }
    }

    /// Whether the oracles found nothing wrong.
    pub(super) fn is_right(&self) -> bool {
        self.device.synchronize().unwrap();
        self.device.take_violations().is_empty() && self.stack.take_faults().is_empty()
    }

    pub(super) fn set_mistake(&self, mistake: Mistake) {
        let mut state = self.stack.inner().state.lock();
        state.running.as_mut().expect("a plan is in use").mistake = Some(mistake);
    }
}

/// A random body: blocks of several streams, of which some live until the next body. In some bodies, one free
/// in twenty is on another stream.
pub(super) fn random_body(rng: &mut Rng) -> Vec<Call> {
    let (streams, blocks) = (rng.between(1, STREAMS), rng.between(8, 60) as usize);
    let foreign = if rng.percent(30) { 5 } else { 0 };
    let mut calls = Vec::new();
    let mut live = Vec::new();
    for block in 0..blocks {
        let most = 1 << rng.between(1, 12);
        let (bytes, stream) = (256 * rng.between(1, most), rng.below(streams) as usize);
        calls.push(Call::Allocate { block, bytes, stream });
        live.push((block, stream));
        while !live.is_empty() && rng.percent(if live.len() > 12 { 70 } else { 40 }) {
            let (block, own) = live.swap_remove(rng.below(live.len() as u64) as usize);
            let stream = if rng.percent(foreign) { rng.below(STREAMS) as usize } else { own };
            calls.push(Call::Free { block, stream });
        }
    }
    let left = if rng.percent(50) { 0 } else { rng.below(3) as usize };
    while live.len() > left {
        let (block, stream) = live.pop().unwrap();
        calls.push(Call::Free { block, stream });
    }
    // The next body frees these early.
    for (block, stream) in live {
        calls.insert(rng.below(3) as usize, Call::Free { block, stream });
    }
    calls
}

/// Runs a body with something that goes wrong in it.
fn disturb(world: &mut World, body: &[Call], rng: &mut Rng) {
    let mut calls = body.to_vec();
    let some = |rng: &mut Rng| rng.below(body.len() as u64) as usize;
    match rng.below(8) {
        0 => calls.retain(|call| matches!(call, Call::Allocate { .. }) || rng.percent(90)),
        1 => calls.retain(|_| rng.percent(95)),
        2 => {
            let (from, to) = (some(rng), some(rng));
            calls.extend_from_within(from.min(to)..from.max(to));
        }
        3 => (0..5).for_each(|_| {
            let (one, other) = (some(rng), some(rng));
            calls.swap(one, other);
        }),
        4 => {
            calls.truncate(some(rng));
            world.run(&calls);
            return world.unwind();
        }
        5 => calls.iter_mut().for_each(|call| {
            if let Call::Allocate { bytes, .. } = call
                && rng.percent(10)
            {
                *bytes = 256 * rng.between(1, *bytes / 128);
            }
        }),
        6 => calls.iter_mut().for_each(|call| {
            if let Call::Free { stream, .. } = call
                && rng.percent(5)
            {
                *stream = rng.below(STREAMS) as usize;
            }
        }),
        _ => {
            let (from, to) = (some(rng), some(rng));
            calls.drain(from.min(to)..from.max(to));
        }
    }
    world.run(&calls);
}

/// The requests that got a slot, and those that got a gap.
pub(super) type Served = (u64, u64);

/// Runs a program and returns whether the oracles found nothing, and how many requests the plan served.
fn program(seed: u64, mistake: Option<Mistake>) -> (bool, Served) {
    program_over(seed, mistake, |_| PlanLayer::new())
}

/// The same over the layer that is made for the body of the program.
pub(super) fn program_over(
    seed: u64,
    mistake: Option<Mistake>,
    layer: impl Fn(&[Call]) -> PlanLayer,
) -> (bool, Served) {
    let ((is_right, served), refused) = misuse_recorder::record(|| program_of(seed, mistake, layer));
    (is_right && refused.is_empty(), served)
}

fn program_of(seed: u64, mistake: Option<Mistake>, layer: impl Fn(&[Call]) -> PlanLayer) -> (bool, Served) {
    let mut rng = Rng::new(seed);
    let schedule = if seed.is_multiple_of(2) { Schedule::Timed } else { Schedule::Seeded(seed) };
    let body = random_body(&mut rng);
    let mut world = World::over(schedule, layer(&body));
    for _ in 0..10 {
        world.run(&body);
    }
    let is_planned = world.stack.inner().state.lock().running.is_some();
    if let Some(mistake) = mistake.filter(|_| is_planned) {
        world.set_mistake(mistake);
    }
    if is_planned && (seed.is_multiple_of(3) || SHARING.get() == Some(Tried::Passed)) {
        // Upstream must not grow: what the plan does not know lies in its gaps.
        let mut state = world.stack.inner().state.lock();
        let running = state.running.as_mut().expect("a plan is in use");
        running.limit_bytes = Some(running.body.bytes() / 8 * 9);
    }
    let other = random_body(&mut rng);
    for _ in 0..30 {
        match rng.below(6) {
            0..2 => disturb(&mut world, &body, &mut rng),
            2 => world.run(&other),
            _ => world.run(&body),
        }
        if rng.percent(3) {
            world.stack.trim(0).unwrap();
        }
    }
    world.unwind();
    let counts = world.stack.inner().plan_statistics();
    let served = (counts.served, counts.served_beside);
    let is_right = world.is_right();
    let World { device, stack, .. } = world;
    drop(stack);
    (is_right && device.live_allocations() == 0, served)
}

pub(super) const PROGRAMS: u64 = if cfg!(miri) { 2 } else { 600 };

#[test]
fn programs_that_repeat_keep_the_order_whatever_goes_wrong() {
    let (mut served, mut beside) = (0, 0);
    for seed in 0..PROGRAMS {
        let (is_right, (by_slots, by_gaps)) = program(seed, None);
        assert!(is_right, "seed {seed}");
        served += by_slots;
        beside += by_gaps;
    }
    assert!(beside > PROGRAMS * 10, "{beside} requests in {PROGRAMS} programs got a gap");
    assert!(served > PROGRAMS * 50, "{served} requests in {PROGRAMS} programs got a slot");
}

#[test]
fn the_oracles_find_a_layer_that_does_not_check() {
    let found = (0..PROGRAMS).find(|seed| !program(*seed, Some(Mistake::Unchecked)).0);
    assert!(found.is_some(), "no program noticed slots that overlap");
}

#[test]
fn the_oracles_find_a_slot_that_is_handed_out_over_a_block_beside_the_plan() {
    let found = (0..PROGRAMS).find(|seed| !program(*seed, Some(Mistake::OverGuests)).0);
    assert!(found.is_some(), "no program noticed a slot over a block that lies in a gap");
}

#[test]
fn the_oracles_find_a_slot_that_is_free_too_early() {
    let found = (0..PROGRAMS).find(|seed| !program(*seed, Some(Mistake::TooEarly)).0);
    assert!(found.is_some(), "no program noticed a slot that another stream still uses");
}

#[test]
fn the_oracles_find_a_lane_that_goes_back_too_early() {
    let found = (0..PROGRAMS).find(|seed| !program(*seed, Some(Mistake::LeavesEarly)).0);
    assert!(found.is_some(), "no program noticed memory that another stream still uses");
}

/// The check at run time is worth nothing if the addresses of slots are not those that it knows.
#[test]
fn the_oracles_find_a_plan_whose_blocks_overlap_by_a_little() {
    let sizes = [1024, 2048, 512, 4096];
    for shift in [0, 256] {
        let mut world = World::new(Schedule::Timed);
        let call = |(block, bytes): (usize, &u64)| Call::Allocate { block, bytes: *bytes, stream: 0 };
        let mut calls: Vec<_> = sizes.iter().enumerate().map(call).collect();
        calls.extend((0..sizes.len()).map(|block| Call::Free { block, stream: 0 }));
        (0..30).for_each(|_| world.run(&calls));
        assert!(world.is_right());
        {
            let mut state = world.stack.inner().state.lock();
            let running = state.running.as_mut().expect("the body repeats");
            let slots = &mut running.body.slots;
            let lowest_but_one = slots.iter().map(|slot| slot.offset).filter(|at| *at > 0).min().unwrap();
            let lane = &mut running.body.lanes[0];
            slots.iter_mut().filter(|slot| slot.offset == lowest_but_one).for_each(|slot| {
                slot.offset -= shift;
                lane.places.insert(slot.offset, slot.place);
            });
        }
        world.run(&calls);
        assert_eq!(world.is_right(), shift == 0, "shifted by {shift} bytes");
    }
}

/// A plan that lets blocks overlap is slower, and not wrong: the check knows no plan, but addresses.
#[test]
fn a_wrong_plan_is_no_danger() {
    let step = |bytes, life| super::history::Step {
        is_foreign: false,
        bytes,
        stream: millpond_core::StreamId::LEGACY,
        life: Some(life),
    };
    // The lives are shorter than those of the program will be.
    let steps = vec![step(1024, 1), step(1024, 1), step(512, 1), step(1024, 1)];
    let options = Options { rounds: 1, threads: 1, ..Options::default() };
    let mut body =
        plan_body(&steps, Allowed { most: None, is_further: false, may_share: true }, &options).unwrap();
    assert_eq!(body.bytes(), 1024);
    let claim = |body: &mut Body, at| body.claim(at, |_| true) == Claim::Yes;
    assert!(claim(&mut body, 0));
    assert!((0..4).all(|at| !claim(&mut body, at)), "the first block has all of the lane");
    body.release(0);
    assert!(claim(&mut body, 2) && !claim(&mut body, 0), "half of it");
    body.release(2);
    assert!(claim(&mut body, 2) && !claim(&mut body, 3), "slots that are left out pass their bytes on");
    body.release(2);
    assert!(claim(&mut body, 1));
}

fn repeat(world: &mut World, sizes: &[u64], times: usize) {
    for _ in 0..times {
        let held: Vec<_> = sizes.iter().map(|bytes| world.allocate(*bytes, 0)).collect();
        held.into_iter().for_each(|held| world.free(held, 0));
    }
}

#[test]
fn a_program_that_repeats_gets_its_least_and_calls_no_driver() {
    let mut world = World::new(Schedule::Timed);
    let sizes: Vec<u64> = (1..40).map(|size| size << 16).collect();
    repeat(&mut world, &sizes, 4);
    let before = world.stack.inner().plan_statistics();
    let (calls, peak) = (world.device.call_costs(), world.device.peak_bytes());
    repeat(&mut world, &sizes, 10);
    let after = world.stack.inner().plan_statistics();
    assert_eq!((after.served - before.served, after.missed - before.missed), (390, 0));
    assert_eq!(after.plan_bytes, sizes.iter().sum::<u64>());
    assert_eq!(world.device.peak_bytes(), peak);
    let memory = |calls: &[(millpond_driver::CallKind, u64)]| {
        calls.iter().filter(|(kind, _)| format!("{kind:?}").starts_with("Mem")).copied().collect::<Vec<_>>()
    };
    assert_eq!(memory(&world.device.call_costs()), memory(&calls), "no memory was taken");
    assert!(world.is_right());
}

#[test]
fn a_plan_that_is_left_is_set_aside_and_its_memory_goes_back() {
    let mut world = World::new(Schedule::Timed);
    repeat(&mut world, &[1 << 20, 2 << 20, 3 << 20, 4 << 20], 40);
    let planned = world.stack.inner().plan_statistics();
    assert_eq!((planned.dropped, planned.held_bytes), (0, 10 << 20));
    let other: Vec<u64> = (1..30).map(|size| size << 12).collect();
    repeat(&mut world, &other, 10);
    let aside = world.stack.inner().plan_statistics();
    assert_eq!(aside.dropped, 0);
    assert!(aside.held_bytes < 10 << 20, "{aside:?}");
    repeat(&mut world, &other, 10);
    assert_eq!(world.stack.inner().plan_statistics().body_allocations, 29, "the new program is planned");
    assert!(world.is_right());
}

#[test]
fn a_program_that_does_not_repeat_is_left_to_upstream() {
    let mut world = World::new(Schedule::Timed);
    {
        let mut state = world.stack.inner().state.lock();
        world.stack.inner().give_up(&mut state, "a test says so");
        world.stack.inner().note_end(&state);
    }
    repeat(&mut world, &[256, 512, 1024], 50);
    let counts = world.stack.inner().plan_statistics();
    assert!(counts.has_given_up && counts.served == 0 && counts.plans == 0, "{counts:?}");
}

#[test]
fn memory_that_upstream_lacks_comes_from_the_plan_between_bodies() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let pool = CudaMemoryResource::new(device).layer(PoolLayer::new().maximum_bytes(64 << 20)).unwrap();
    let stack = pool.layer(PlanLayer::new().repeat(32).background(false)).unwrap();
    let stream = StreamRef::LEGACY;
    for _ in 0..40 {
        let held = [20u64 << 20, 24 << 20].map(|bytes| (stack.allocate_bytes(bytes, stream).unwrap(), bytes));
        // SAFETY: the blocks came from the stack with these sizes, and nothing uses them.
        held.into_iter().for_each(|(ptr, bytes)| unsafe { stack.deallocate_bytes(ptr, bytes, stream) });
    }
    assert_eq!(stack.plan_statistics().held_bytes, 44 << 20);
    let ptr = stack.allocate_bytes(60 << 20, stream).unwrap();
    let counts = stack.plan_statistics();
    assert_eq!((counts.held_bytes, counts.dropped), (0, 0), "the plan waits for the next body");
    // SAFETY: as above.
    unsafe { stack.deallocate_bytes(ptr, 60 << 20, stream) };
    for _ in 0..4 {
        let held = [20u64 << 20, 24 << 20].map(|bytes| (stack.allocate_bytes(bytes, stream).unwrap(), bytes));
        // SAFETY: as above.
        held.into_iter().for_each(|(ptr, bytes)| unsafe { stack.deallocate_bytes(ptr, bytes, stream) });
    }
    assert_eq!(stack.plan_statistics().held_bytes, 44 << 20);
}

#[test]
fn wrong_frees_are_refused() {
    let mut world = World::new(Schedule::Timed);
    repeat(&mut world, &[4096, 8192], 60);
    let stack = world.stack.inner();
    let stream = world.streams[0];
    let ptr = stack.allocate_bytes(4096, stream).unwrap();
    // SAFETY: what is wrong here is refused.
    let (refused, _) = misuse_recorder::record(|| unsafe {
        let free = |ptr, bytes| {
            misuse_recorder::record(|| stack.deallocate_bytes(ptr, bytes, stream)).1.pop().map(|it| it.kind)
        };
        [free(ptr, 8192), free(ptr.offset(256), 4096), free(ptr, 4096), free(ptr, 4096)]
    });
    let wrong_size = MisuseKind::WrongSize { allocated_bytes: 4096 };
    assert_eq!(
        refused,
        [Some(wrong_size), Some(MisuseKind::ForeignPointer), None, Some(MisuseKind::DoubleFree)]
    );
    assert_eq!(stack.statistics().unwrap().misuses, 3);
}

#[test]
fn options_come_from_text_and_are_checked() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
    let table = millpond_core::stack::LayerTable::new(crate::LAYERS.iter().copied());
    let build = |text: &str| {
        text.parse::<millpond_core::stack::StackSpec>()
            .unwrap()
            .build(&table, &device)
            .map(|it| it.to_string())
    };
    for text in ["cuda+pool+plan", "cuda+plan:repeat=9", "cuda+plan:repeat=16,time=5,background=off,share=on"]
    {
        assert_eq!(build(text).unwrap(), text);
    }
    assert_eq!(build("cuda+plan:background=on").unwrap(), "cuda+plan");
    let wrong = [
        ("cuda+plan:repeat=0", "repeat"),
        ("cuda+plan:time=99999999", "an hour"),
        ("cuda+plan:background=maybe", "on or off"),
        ("cuda+plan:share=1", "on or off"),
    ];
    for (text, why) in wrong {
        let error = build(text).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
