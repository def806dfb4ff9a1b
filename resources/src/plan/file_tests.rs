//! Tests plans from files: the oracles of `tests` over them, whatever is in the file, and what is refused.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{DeviceMemoryResourceExt, ErrorKind, Layer, StreamRef};
use millpond_driver::sim::{Schedule, SimConfig, SimDevice};
use millpond_planning::{
    Block, LogHash, Options, PlanParts, PlannedAllocation, PlannedSlot, Problem, ProgramPlan, plan,
};
use millpond_testkit::Rng;
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::plan::running::Mistake;
use crate::plan::tests::{Call, PROGRAMS, World, program_over, random_body};
use crate::plan::{PlanLayer, PlanMemoryResource, PlanOptions};
use crate::{CudaMemoryResource, PoolLayer};

/// The plan of a body, as two passes over it are logged: the first one says when blocks are freed. The first
/// `lead` allocations get no slot.
fn plan_of(body: &[Call], lead: usize) -> PlanParts {
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
    let found = plan(&problem, &Options { rounds: 1, threads: 1, ..Options::default() });
    for (at, offset) in indices.into_iter().zip(found.offsets) {
        allocations[at].slot.as_mut().unwrap().offset = offset;
    }
    found.height
}

/// The layer with a plan that went through text.
fn layer(parts: PlanParts) -> PlanLayer {
    // A body of which no block can have a slot has no plan.
    ProgramPlan::new(parts).map_or_else(
        |_| PlanLayer::new(),
        |plan| PlanLayer::from_plan(ProgramPlan::read(plan.to_string().as_bytes()).unwrap()),
    )
}

/// Begins without or with allocations that have no slot.
fn right(body: &[Call]) -> PlanLayer {
    layer(plan_of(body, if body.len().is_multiple_of(2) { 0 } else { 5 }))
}

/// A plan whose lives are wrong, so that its slots may overlap: each lies 256 bytes lower than it should.
fn overlapping(body: &[Call]) -> PlanLayer {
    let mut parts = plan_of(body, 0);
    for slot in parts.allocations.iter_mut().filter_map(|allocation| allocation.slot.as_mut()) {
        slot.life = NonZeroU32::MIN;
        slot.offset = slot.offset.saturating_sub(256);
    }
    layer(parts)
}

/// A plan whose offsets a generator made.
fn random(body: &[Call]) -> PlanLayer {
    let mut parts = plan_of(body, 0);
    let mut rng = Rng::new(body.len() as u64);
    for allocation in &mut parts.allocations {
        let lane = parts.lanes[allocation.stream as usize];
        if let Some(slot) = &mut allocation.slot {
            slot.life = NonZeroU32::MIN;
            slot.offset = rng.below((lane - allocation.bytes) / 256 + 1) * 256;
        }
    }
    layer(parts)
}

/// The plan of another program.
fn another(body: &[Call]) -> PlanLayer {
    layer(plan_of(&random_body(&mut Rng::new(body.len() as u64)), 0))
}

#[test]
fn programs_keep_the_order_whatever_their_file_says() {
    for (name, layer, programs, least) in [
        ("right", right as fn(&[Call]) -> PlanLayer, PROGRAMS, 100),
        ("overlapping", overlapping, PROGRAMS / 4, 50),
        ("random", random, PROGRAMS / 4, 20),
        ("another", another, PROGRAMS / 4, 20),
    ] {
        let mut served = 0;
        for seed in 0..programs {
            let (is_right, (by_slots, _)) = program_over(seed, None, layer);
            assert!(is_right, "{name}, seed {seed}");
            served += by_slots;
        }
        assert!(
            cfg!(miri) || served > programs * least,
            "{name}: {served} requests in {programs} programs got a slot"
        );
    }
}

#[test]
fn the_oracles_find_mistakes_over_plans_from_files() {
    for mistake in [Mistake::Unchecked, Mistake::OverGuests, Mistake::TooEarly] {
        let found = (0..PROGRAMS).find(|seed| !program_over(*seed, Some(mistake), right).0);
        assert!(found.is_some(), "no program noticed {mistake:?}");
    }
    let found = (0..PROGRAMS).find(|seed| !program_over(*seed, Some(Mistake::Unchecked), overlapping).0);
    assert!(found.is_some(), "no program noticed slots that overlap by 256 bytes");
}

/// A body of three streams, which the first pass follows from its first request on.
#[test]
fn the_first_pass_is_served_and_takes_what_the_plan_says() {
    let sizes = [7u64, 3, 12, 5, 9, 1, 4, 8];
    let mut body: Vec<Call> = Vec::new();
    for (block, size) in sizes.into_iter().enumerate() {
        body.push(Call::Allocate { block, bytes: size << 20, stream: block % 3 });
        if block % 2 == 1 {
            body.push(Call::Free { block: block - 1, stream: (block - 1) % 3 });
        }
    }
    body.extend((1..8).step_by(2).map(|block| Call::Free { block, stream: block % 3 }));
    let parts = plan_of(&body, 0);
    let needed: u64 = parts.lanes.iter().sum();
    let mut world = World::over(Schedule::Timed, layer(parts));
    let counts = |world: &World| {
        let counts = world.stack.inner().plan_statistics();
        (counts.served, counts.missed, counts.plans, counts.dropped, counts.held_bytes)
    };
    world.run(&body);
    assert_eq!(counts(&world), (8, 0, 1, 0, needed), "all of the first pass");
    let peak = world.device.peak_bytes();
    assert!(peak < needed + 3 * (2 << 20), "{peak} bytes for {needed}");
    (0..20).for_each(|_| world.run(&body));
    assert_eq!(counts(&world), (21 * 8, 0, 1, 0, needed));
    assert_eq!(world.device.peak_bytes(), peak);
    assert!(world.is_right());
}

/// What each message of a plan says: the reason and the hash.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Heard {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() != "stack" {
                    self.0 += &format!("{}={value:?} ", field.name());
                }
            }
        }
        if event.metadata().target() == "millpond::plan" {
            let mut fields = Fields(String::new());
            event.record(&mut fields);
            self.0.lock().unwrap().push(fields.0);
        }
    }
}

fn heard(body: impl FnOnce()) -> String {
    let heard = Heard::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(heard.clone()), body);
    let lines = heard.0.lock().unwrap();
    lines.join("\n")
}

fn steps(sizes: &[u64]) -> Vec<Call> {
    let call = |(block, bytes): (usize, &u64)| Call::Allocate { block, bytes: *bytes, stream: 0 };
    let mut calls: Vec<_> = sizes.iter().enumerate().map(call).collect();
    calls.extend((0..sizes.len()).map(|block| Call::Free { block, stream: 0 }));
    calls
}

#[test]
fn a_program_that_does_not_follow_its_file_takes_what_it_took_without_and_is_learnt() {
    let other = steps(&(1..100u64).map(|size| size << 12).collect::<Vec<_>>());
    let mut alone = World::over(Schedule::Timed, PlanLayer::new());
    (0..60).for_each(|_| alone.run(&other));
    let told = heard(|| {
        // Three requests in a row of the program are those of the plan, by chance.
        let parts = plan_of(&steps(&[5 << 12, 6 << 12, 7 << 12, 64 << 20]), 0);
        let mut world = World::over(Schedule::Timed, layer(parts));
        (0..60).for_each(|_| world.run(&other));
        let counts = world.stack.inner().plan_statistics();
        assert_eq!((counts.plans, counts.dropped, counts.body_allocations), (2, 1, 99), "{counts:?}");
        assert_eq!(world.device.peak_bytes(), alone.device.peak_bytes());
    });
    let dropped = "why=\"the program does not follow it\" log=\"sha256:5e5e5e";
    assert!(told.lines().any(|line| line.contains("dropped a plan") && line.contains(dropped)), "{told}");
}

/// The first requests are those of the log, and then it is another program: the plan's memory is used for it.
#[test]
fn a_program_that_leaves_its_file_stays_near_its_plan() {
    let first = steps(&[1 << 20; 8]);
    let recorded: Vec<u64> = [1 << 20; 8].into_iter().chain((1..40).map(|size| size << 18)).collect();
    let mut world = World::over(Schedule::Timed, layer(plan_of(&steps(&recorded), 0)));
    world.run(&first[..8]);
    let held = world.stack.inner().plan_statistics().held_bytes;
    assert!(held > 200 << 20, "{held}");
    let other: Vec<u64> = (1..50).map(|size| (size << 17) + 256).collect();
    let calls: Vec<_> = steps(&other)
        .into_iter()
        .map(|call| match call {
            Call::Allocate { block, bytes, stream } => Call::Allocate { block: block + 8, bytes, stream },
            Call::Free { block, stream } => Call::Free { block: block + 8, stream },
        })
        .collect();
    (0..40).for_each(|_| world.run(&calls));
    let peak = world.device.peak_bytes();
    assert!(peak <= held + held / 16 + (2 << 20), "{peak} bytes for a plan of {held}");
    assert!(world.stack.inner().plan_statistics().served_beside > 100);
    world.unwind();
    assert!(world.is_right());
}

/// Requests that the log has not, before and between, and those that it has and that are left out.
#[test]
fn a_plan_is_followed_although_its_begin_differs() {
    let sizes: Vec<u64> = (1..200).map(|size| size << 12).collect();
    for (name, others) in [("more", vec![256, 512, 3 << 12]), ("fewer", vec![])] {
        let mut world = World::over(Schedule::Timed, layer(plan_of(&steps(&sizes), 5)));
        let mut run: Vec<u64> = others.clone();
        run.extend(if name == "more" { &sizes[..] } else { &sizes[3..] });
        world.run(&steps(&run));
        let counts = world.stack.inner().plan_statistics();
        assert!(counts.served > 100, "{name}: {counts:?}");
        (0..5).for_each(|_| world.run(&steps(&sizes)));
        let counts = world.stack.inner().plan_statistics();
        assert!(counts.dropped == 0 && counts.served > 5 * 190, "{name}: {counts:?}");
        world.unwind();
        assert!(world.is_right());
    }
}

#[test]
fn a_plan_without_the_memory_for_it_is_left_out_aloud() {
    let told = heard(|| {
        let device = SimDevice::new(SimConfig::with_capacity(64 << 20));
        let pool = CudaMemoryResource::new(device).layer(PoolLayer::new()).unwrap();
        let stack = layer(plan_of(&steps(&[63 << 20, 2 << 20]), 0)).layer(pool).unwrap();
        let stream = StreamRef::LEGACY;
        let ptr = stack.allocate_bytes(63 << 20, stream).unwrap();
        // SAFETY: the block came from the stack with this size, and nothing uses it.
        unsafe { stack.deallocate_bytes(ptr, 63 << 20, stream) };
        assert_eq!(stack.plan_statistics().plans, 0);
    });
    assert!(told.contains("no memory for a plan; it is left out"), "{told}");
    assert!(told.contains("needed=\"65MiB\"") && told.contains("log=sha256:5e5e"), "{told}");
}

/// A pool with a maximum refuses the plan's memory, and serves the request itself.
#[test]
fn a_plan_over_the_maximum_of_the_pool_is_dropped() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let pool = CudaMemoryResource::new(Arc::clone(&device) as _)
        .layer(PoolLayer::new().maximum_bytes(64 << 20))
        .unwrap();
    let stack = layer(plan_of(&steps(&[60 << 20, 20 << 20]), 0)).layer(pool).unwrap();
    stack.allocate_bytes(60 << 20, StreamRef::LEGACY).unwrap();
    let counts = stack.plan_statistics();
    assert_eq!((counts.dropped, counts.held_bytes), (1, 0), "{counts:?}");
    assert!(device.peak_bytes() <= 64 << 20);
}

#[test]
fn a_file_is_named_in_text_and_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
    let table = LayerTable::new(crate::LAYERS.iter().copied());
    let build = |text: &str| text.parse::<StackSpec>().and_then(|spec| spec.build(&table, &device));
    let text = ProgramPlan::new(plan_of(&steps(&[1024, 512]), 0)).unwrap().to_string();
    for name in ["step.plan", "a+b,c:d=(e).plan", "a \"quoted\" one.plan"] {
        let path = folder.path().join(name);
        std::fs::write(&path, &text).unwrap();
        let stack =
            CudaMemoryResource::new(Arc::clone(&device)).layer(PlanLayer::file(&path).repeat(9)).unwrap();
        let shown = stack.to_string();
        assert!(shown.starts_with("cuda+plan:file=") && shown.ends_with(",repeat=9"), "{shown}");
        assert_eq!(build(&shown).unwrap().to_string(), shown);
        assert_eq!(stack.plan_statistics().plan_bytes, 1536);
    }
    let path = folder.path().join("damaged.plan");
    let shown = path.display();
    for (damaged, why) in [
        (text.replace("1024 0 2", "1000 0 2"), "line 11: 1000 bytes are no multiple of the alignment 256"),
        (text.replace("alignment 256", "alignment 512"), "its alignment is 512, and that of requests 256"),
        (text.replace("alignment 256", "alignment 128"), "its alignment is 128, and that of requests 256"),
    ] {
        std::fs::write(&path, damaged).unwrap();
        let error = build(&format!("cuda+pool+plan:file=\"{shown}\"")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(&format!("the plan {shown}: ")), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    let error = build("cuda+plan:file=no/such.plan").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("millpond-replay plan LOG -o FILE.plan"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_path_of_any_bytes_names_a_file() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"a\xff+b.plan"));
    let build = || {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
        let options = PlanOptions { file: Some(path.clone()), ..PlanOptions::default() };
        PlanMemoryResource::new(CudaMemoryResource::new(device), options).map(|plan| plan.to_string())
    };
    assert_eq!(build().unwrap_err().kind(), ErrorKind::Io, "there is no such file");
    std::fs::write(&path, "no plan").unwrap();
    assert_eq!(build().unwrap_err().kind(), ErrorKind::InvalidArgument, "it was read");
}

/// Six requests in a row whose hash is that of six other rows, for which the plan has 256 bytes.
#[test]
fn a_request_with_the_hash_of_another_gets_no_slot_of_it() {
    let sizes = [256, 512, 768, 1024, 1280, 1 << 20];
    let text = "millpond plan 1\n\
        log sha256:0000000000000000000000000000000000000000000000000000000000000000\n\
        alignment 256\nstreams 1\nlane 4096\nbound 4096\nratio 1.00000\nbeside 0\nallocations 12\n\
        bytes stream life offset\n\
        256 0 1 0\n512 0 1 256\n768 0 1 768\n1024 0 1 1536\n1280 0 1 2560\n2048 0 - -\n\
        32768 0 - -\n512 0 - -\n512 0 - -\n512 0 - -\n14158023121532705280 0 - -\n256 0 1 3840\n";
    let plan = ProgramPlan::read(text.as_bytes()).unwrap();
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let pool = CudaMemoryResource::new(device).layer(PoolLayer::new()).unwrap();
    let stack = pool.layer(PlanLayer::from_plan(plan)).unwrap();
    let blocks = sizes.map(|bytes| stack.allocate_bytes(bytes, StreamRef::LEGACY).unwrap());
    let counts = stack.plan_statistics();
    assert_eq!((counts.served, counts.missed), (5, 1), "the last one is larger than the slot");
    for (ptr, bytes) in blocks.into_iter().zip(sizes) {
        // SAFETY: the block came from this resource with this size, and nothing uses it.
        unsafe { stack.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
    }
}
