//! Tests right and wrong plans with random, disturbed programs under the oracles of the simulated device.
//! Also tests that the oracles find planted mistakes.

use std::num::NonZeroU32;
use std::sync::Arc;

use millpond_core::driver::{Driver, EventFlags, StreamFlags};
use millpond_core::misuse::MisuseKind;
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef};
use millpond_driver::sim::{Access, Schedule, SimConfig, SimDevice};
use millpond_planning::{
    Block, LogHash, Options, PlanParts, PlannedAllocation, PlannedSlot, Problem, ProgramPlan, plan,
};
use millpond_testkit::Checked;
use millpond_testkit::{Rng, misuse_recorder};

use crate::following::Mistake;
use crate::slots::Slots;
use crate::{PlanLayer, PlanMemoryResource};
use millpond_resources::{CudaMemoryResource, Decay, PoolLayer, PoolMemoryResource};

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
    pub(super) fn over(schedule: Schedule, layer: PlanLayer) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(4 << 30).schedule(schedule));
        let pool =
            CudaMemoryResource::new(Arc::clone(&device) as _).layer(PoolLayer::new().decay(Decay::Off));
        let stack = pool.unwrap().layer(layer).unwrap();
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

    /// Frees a block on a stream, which first waits for the block's own stream.
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
        // SAFETY: the block came from the stack with this size, and its uses come before the stream's next
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

    /// Frees everything, like a program whose step failed.
    pub(super) fn unwind(&mut self) {
        let held: Vec<_> = self.held.iter_mut().rev().filter_map(Option::take).collect();
        for held in held.into_iter().chain(std::mem::take(&mut self.strays)) {
            self.free(held, held.stream);
        }
    }

    /// Returns whether the oracles found no mistake.
    pub(super) fn is_right(&self) -> bool {
        self.device.synchronize().unwrap();
        self.device.take_violations().is_empty() && self.stack.take_faults().is_empty()
    }

    pub(super) fn set_mistake(&self, mistake: Mistake) {
        let mut state = self.stack.inner().state.lock();
        state.plan.as_mut().expect("a plan is in use").mistake = Some(mistake);
    }
}

/// Makes a random body: blocks of several streams. Some blocks live until the next body. In some bodies, one
/// free in twenty is on another stream.
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

/// Runs a body with a disturbance in it.
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

/// The number of requests that got a slot, and of requests that got a gap.
pub(super) type Served = (u64, u64);

/// Runs a program over the layer that is made for its body. Returns whether the oracles found no mistake, and
/// how many requests the plan served.
fn program(seed: u64, mistake: Option<Mistake>, layer: LayerOf) -> (bool, Served) {
    let ((is_right, served), refused) = misuse_recorder::record(|| program_of(seed, mistake, layer));
    (is_right && refused.is_empty(), served)
}

fn program_of(seed: u64, mistake: Option<Mistake>, layer: LayerOf) -> (bool, Served) {
    let mut rng = Rng::new(seed);
    let schedule = if seed.is_multiple_of(2) { Schedule::Timed } else { Schedule::Seeded(seed) };
    let body = random_body(&mut rng);
    let Some(layer) = layer(&body) else { return (true, (0, 0)) };
    let mut world = World::over(schedule, layer);
    for _ in 0..10 {
        world.run(&body);
    }
    let is_followed = world.stack.inner().state.lock().followed().is_some();
    if let Some(mistake) = mistake.filter(|_| is_followed) {
        world.set_mistake(mistake);
    }
    if is_followed && seed.is_multiple_of(3) {
        // Upstream must not grow: blocks that the plan does not know lie in its gaps.
        let mut state = world.stack.inner().state.lock();
        let plan = state.followed().expect("a plan is in use");
        plan.limit_bytes = Some(plan.bytes / 8 * 9);
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

/// Makes the plan of a body from a log of two passes. The first pass shows when blocks are freed. The first
/// `lead` allocations get no slot.
pub(super) fn plan_of(body: &[Call], lead: usize) -> PlanParts {
    let mut made: Vec<(u64, usize, Option<u32>)> = Vec::new();
    let mut live = Vec::new();
    let mut length = 0;
    for pass in 0..2 {
        for call in body {
            match *call {
                Call::Allocate { block, bytes, stream } => {
                    live.retain(|(other, _)| *other != block);
                    live.push((block, made.len()));
                    made.push((bytes, stream, None));
                }
                Call::Free { block, stream } => {
                    let Some(at) = live.iter().position(|(other, _)| *other == block) else { continue };
                    let (_, index) = live.swap_remove(at);
                    let life = (made.len() - index) as u32;
                    made[index].2 = Some(life).filter(|_| made[index].1 == stream);
                }
            }
        }
        length = if pass == 0 { made.len() } else { length };
    }
    made.truncate(length);
    let mut streams = Vec::new();
    let number = |stream: usize| {
        let at = streams.iter().position(|known| *known == stream);
        at.unwrap_or_else(|| {
            streams.push(stream);
            streams.len() - 1
        })
    };
    let numbers: Vec<_> = made.iter().map(|(_, stream, _)| *stream).map(number).collect();
    let allocation = |(index, (bytes, _, life)): (usize, &(u64, usize, Option<u32>))| {
        let life = life.filter(|life| index >= lead && *life as usize <= length);
        let slot = life.and_then(NonZeroU32::new).map(|life| PlannedSlot { life, offset: 0 });
        PlannedAllocation { bytes: *bytes, stream: numbers[index] as u32, slot }
    };
    let mut allocations: Vec<_> = made.iter().enumerate().map(allocation).collect();
    let lanes = (0..streams.len() as u32).map(|stream| place(&mut allocations, stream)).collect();
    PlanParts { log: LogHash([0x5e; 32]), alignment: 256, lanes, bound: 0, beside: 0, allocations }
}

/// Places the blocks of a stream, and returns their bytes.
fn place(allocations: &mut [PlannedAllocation], stream: u32) -> u64 {
    let length = allocations.len() as u64;
    let of_lane = |at: &usize| allocations[*at].stream == stream && allocations[*at].slot.is_some();
    let indices: Vec<usize> = (0..allocations.len()).filter(of_lane).collect();
    let block = |at: &usize| {
        let PlannedAllocation { bytes, slot, .. } = allocations[*at];
        let (birth, death) = (*at as u64, *at as u64 + slot.map_or(1, |slot| u64::from(slot.life.get())));
        let (birth, death) = if death > length { (0, length) } else { (birth, death) };
        Block { birth, death, size: bytes, stream: 0 }
    };
    let problem = Problem::new(indices.iter().map(block).collect(), 256).unwrap();
    let found = plan(&problem, &Options::default().rounds(1).threads(1));
    for (at, offset) in indices.into_iter().zip(found.offsets) {
        allocations[at].slot.as_mut().unwrap().offset = offset;
    }
    found.height
}

/// Makes the layer with a plan that was written and read as text.
pub(super) fn layer(parts: PlanParts) -> PlanLayer {
    let plan = ProgramPlan::new(parts).unwrap().to_string();
    PlanLayer::from_plan(ProgramPlan::read(plan.as_bytes()).unwrap())
}

/// Makes a layer for a body; `None` if no block of the body can have a slot.
type LayerOf = fn(&[Call]) -> Option<PlanLayer>;

fn layer_of(parts: PlanParts) -> Option<PlanLayer> {
    parts.allocations.iter().any(|allocation| allocation.slot.is_some()).then(|| layer(parts))
}

/// Allocates blocks of these sizes on the first stream. All are in use before the first is freed.
pub(super) fn steps(sizes: &[u64]) -> Vec<Call> {
    let call = |(block, bytes): (usize, &u64)| Call::Allocate { block, bytes: *bytes, stream: 0 };
    let mut calls: Vec<_> = sizes.iter().enumerate().map(call).collect();
    calls.extend((0..sizes.len()).map(|block| Call::Free { block, stream: 0 }));
    calls
}

/// Makes the layer with the plan of such allocations.
pub(super) fn layer_of_steps(sizes: &[u64]) -> PlanLayer {
    layer(plan_of(&steps(sizes), 0))
}

/// A plan that begins with or without allocations that have no slot.
fn right(body: &[Call]) -> Option<PlanLayer> {
    layer_of(plan_of(body, if body.len().is_multiple_of(2) { 0 } else { 5 }))
}

/// A plan with wrong lives, so that its slots may overlap: each lies 256 bytes lower than it should.
fn overlapping(body: &[Call]) -> Option<PlanLayer> {
    let mut parts = plan_of(body, 0);
    for slot in parts.allocations.iter_mut().filter_map(|allocation| allocation.slot.as_mut()) {
        slot.life = NonZeroU32::MIN;
        slot.offset = slot.offset.saturating_sub(256);
    }
    layer_of(parts)
}

/// A plan with random offsets.
fn random(body: &[Call]) -> Option<PlanLayer> {
    let mut parts = plan_of(body, 0);
    let mut rng = Rng::new(body.len() as u64);
    for allocation in &mut parts.allocations {
        let lane = parts.lanes[allocation.stream as usize];
        if let Some(slot) = &mut allocation.slot {
            slot.life = NonZeroU32::MIN;
            slot.offset = rng.below((lane - allocation.bytes) / 256 + 1) * 256;
        }
    }
    layer_of(parts)
}

/// The plan of another program.
fn another(body: &[Call]) -> Option<PlanLayer> {
    layer_of(plan_of(&random_body(&mut Rng::new(body.len() as u64)), 0))
}

const PROGRAMS: u64 = if cfg!(miri) { 2 } else { 600 };

#[test]
fn programs_keep_the_order_whatever_their_plan_says() {
    for (name, layer, programs, least) in [
        ("right", right as LayerOf, PROGRAMS, (100, 1)),
        ("overlapping", overlapping, PROGRAMS / 4, (50, 1)),
        ("random", random, PROGRAMS / 4, (20, 1)),
        ("another", another, PROGRAMS / 4, (2, 0)),
    ] {
        let (mut served, mut by_gap) = (0, 0);
        for seed in 0..programs {
            let (is_right, (by_slots, by_gaps)) = program(seed, None, layer);
            assert!(is_right, "{name}, seed {seed}");
            (served, by_gap) = (served + by_slots, by_gap + by_gaps);
        }
        let is_enough = served > programs * least.0 && by_gap >= programs * least.1;
        let what = format!("{served} requests of {programs} programs got a slot, {by_gap} a gap");
        assert!(cfg!(miri) || is_enough, "{name}: {what}");
    }
}

#[test]
fn the_oracles_find_mistakes() {
    for mistake in [Mistake::Unchecked, Mistake::OverGuests, Mistake::TooEarly, Mistake::LeavesEarly] {
        let found = (0..PROGRAMS).find(|seed| !program(*seed, Some(mistake), right).0);
        assert!(found.is_some(), "no program noticed {mistake:?}");
    }
    let found = (0..PROGRAMS).find(|seed| !program(*seed, Some(Mistake::Unchecked), overlapping).0);
    assert!(found.is_some(), "no program noticed slots that overlap by 256 bytes");
}

/// The check at run time is useless if it does not know the slots' real addresses.
#[test]
fn the_oracles_find_slots_that_are_not_where_the_check_thinks() {
    let sizes = [1024, 2048, 512, 4096];
    for shift in [0, 256] {
        let mut world = World::over(Schedule::Timed, layer_of_steps(&sizes));
        let calls = steps(&sizes);
        (0..30).for_each(|_| world.run(&calls));
        assert!(world.is_right());
        world.stack.inner().state.lock().followed().expect("the plan is followed").slots.shift(shift);
        world.run(&calls);
        assert_eq!(world.is_right(), shift == 0, "shifted by {shift} bytes");
    }
}

/// A plan that lets blocks overlap is slower but safe: the check looks at addresses, not at the plan.
#[test]
fn a_wrong_plan_is_no_danger() {
    // The lives are shorter than the program's lives will be.
    let row = |bytes| {
        let slot = Some(PlannedSlot { life: NonZeroU32::MIN, offset: 0 });
        PlannedAllocation { bytes, stream: 0, slot }
    };
    let allocations = [1024, 1024, 512, 1024].map(row).to_vec();
    let (log, lanes) = (LogHash([0; 32]), vec![1024]);
    let parts = PlanParts { log, alignment: 256, lanes, bound: 0, beside: 0, allocations };
    let mut slots = Slots::new(&ProgramPlan::new(parts).unwrap());
    assert!(slots.claim(0));
    assert!((0..4).all(|at| !slots.claim(at)), "the first block has all of the lane");
    slots.release(0);
    assert!(slots.claim(2) && !slots.claim(0), "half of the lane");
    slots.release(2);
    assert!(slots.claim(2) && !slots.claim(3), "skipped slots pass their bytes on");
    slots.release(2);
    assert!(slots.claim(1));
}

fn repeat(world: &mut World, sizes: &[u64], times: usize) {
    (0..times).for_each(|_| world.run(&steps(sizes)));
}

#[test]
fn a_program_that_follows_its_plan_gets_its_least_and_calls_no_driver() {
    let sizes: Vec<u64> = (1..40).map(|size| size << 16).collect();
    let mut world = World::over(Schedule::Timed, layer_of_steps(&sizes));
    repeat(&mut world, &sizes, 1);
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
fn a_plan_that_the_program_leaves_is_dropped_and_its_memory_goes_back() {
    let sizes = [1 << 20, 2 << 20, 3 << 20, 4 << 20];
    let mut world = World::over(Schedule::Timed, layer_of_steps(&sizes));
    repeat(&mut world, &sizes, 40);
    let followed = world.stack.inner().plan_statistics();
    assert_eq!((followed.is_dropped, followed.held_bytes), (false, 10 << 20));
    let other: Vec<u64> = (1..30).map(|size| size << 12).collect();
    repeat(&mut world, &other, 10);
    let dropped = world.stack.inner().plan_statistics();
    assert_eq!((dropped.is_dropped, dropped.held_bytes, dropped.plan_bytes), (true, 0, 0), "{dropped:?}");
    assert!(!world.stack.inner().has_plan.load(crate::sync::Ordering::Relaxed), "no call needs the lock");
    repeat(&mut world, &sizes, 10);
    assert_eq!(world.stack.inner().plan_statistics(), dropped, "upstream serves all requests");
    assert!(world.is_right());
}

#[test]
fn memory_that_upstream_lacks_comes_from_the_plan_between_passes() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let pool = CudaMemoryResource::new(device).layer(PoolLayer::new().maximum_bytes(64 << 20)).unwrap();
    let stack = pool.layer(layer_of_steps(&[20 << 20, 24 << 20])).unwrap();
    let stream = StreamRef::LEGACY;
    let pass = || {
        let held = [20u64 << 20, 24 << 20].map(|bytes| (stack.allocate_bytes(bytes, stream).unwrap(), bytes));
        // SAFETY: the blocks came from the stack with these sizes, and nothing uses them.
        held.into_iter().for_each(|(ptr, bytes)| unsafe { stack.deallocate_bytes(ptr, bytes, stream) });
        stack.plan_statistics().held_bytes
    };
    assert_eq!(pass(), 44 << 20);
    let ptr = stack.allocate_bytes(60 << 20, stream).unwrap();
    let counts = stack.plan_statistics();
    assert_eq!((counts.held_bytes, counts.is_dropped), (0, false), "the plan waits for the next pass");
    // SAFETY: as above.
    unsafe { stack.deallocate_bytes(ptr, 60 << 20, stream) };
    assert_eq!(pass(), 44 << 20);
}

#[test]
fn wrong_frees_are_refused() {
    let mut world = World::over(Schedule::Timed, layer_of_steps(&[4096, 8192]));
    repeat(&mut world, &[4096, 8192], 60);
    let stack = world.stack.inner();
    let stream = world.streams[0];
    let ptr = stack.allocate_bytes(4096, stream).unwrap();
    // SAFETY: the wrong frees are refused.
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
