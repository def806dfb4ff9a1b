//! Tests plans from files: the first pass, programs that differ, and refused files.

use std::sync::{Arc, Mutex};

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{DeviceMemoryResourceExt, ErrorKind, Layer, StreamRef};
use millpond_driver::sim::{Schedule, SimConfig, SimDevice};
use millpond_planning::ProgramPlan;
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::tests::{Call, World, layer, layer_of_steps, plan_of, steps};
use crate::{PlanLayer, PlanMemoryResource};
use millpond_resources::{CudaMemoryResource, PoolLayer};

/// The layer follows a body of three streams from the first request of its first pass.
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
        (counts.served, counts.missed, counts.is_dropped, counts.held_bytes)
    };
    world.run(&body);
    assert_eq!(counts(&world), (8, 0, false, needed), "all of the first pass");
    let peak = world.device.peak_bytes();
    assert!(peak < needed + 3 * (2 << 20), "{peak} bytes for {needed}");
    (0..20).for_each(|_| world.run(&body));
    assert_eq!(counts(&world), (21 * 8, 0, false, needed));
    assert_eq!(world.device.peak_bytes(), peak);
    assert!(world.is_right());
}

/// The messages about a plan, with the reason and the hash.
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
    millpond_testkit::events::heard_by(tracing_subscriber::registry().with(heard.clone()), body);
    let lines = heard.0.lock().unwrap();
    lines.join("\n")
}

#[test]
fn a_program_that_does_not_follow_its_file_takes_what_it_took_without() {
    let other = steps(&(1..100u64).map(|size| size << 12).collect::<Vec<_>>());
    let alone = {
        let device = SimDevice::new(SimConfig::with_capacity(4 << 30));
        let pool = CudaMemoryResource::new(Arc::clone(&device) as _).layer(PoolLayer::new()).unwrap();
        let take = |size: u64| pool.allocate_bytes(size << 12, StreamRef::LEGACY).unwrap();
        (1..100).for_each(|size| _ = take(size));
        device.peak_bytes()
    };
    let told = heard(|| {
        // By chance, three of the program's requests in a row match the plan.
        let parts = plan_of(&steps(&[5 << 12, 6 << 12, 7 << 12, 64 << 20]), 0);
        let mut world = World::over(Schedule::Timed, layer(parts));
        (0..60).for_each(|_| world.run(&other));
        let counts = world.stack.inner().plan_statistics();
        assert!(counts.is_dropped && counts.plan_allocations == 0, "{counts:?}");
        assert_eq!(world.device.peak_bytes(), alone);
    });
    let dropped = "why=\"the program does not follow the plan\" log=\"sha256:5e5e5e";
    assert!(told.lines().any(|line| line.contains("dropped a plan") && line.contains(dropped)), "{told}");
}

/// The first requests match the log; then another program follows and uses the plan's memory.
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

/// The program makes requests before and between the log's requests, and skips some of these.
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
        assert!(!counts.is_dropped && counts.served > 5 * 190, "{name}: {counts:?}");
        world.unwind();
        assert!(world.is_right());
    }
}

#[test]
fn a_plan_without_the_memory_for_it_is_left_out_aloud() {
    let told = heard(|| {
        let device = SimDevice::new(SimConfig::with_capacity(64 << 20));
        let pool = CudaMemoryResource::new(device).layer(PoolLayer::new()).unwrap();
        let stack = layer_of_steps(&[63 << 20, 2 << 20]).layer(pool).unwrap();
        let stream = StreamRef::LEGACY;
        let ptr = stack.allocate_bytes(63 << 20, stream).unwrap();
        // SAFETY: the block came from the stack with this size, and nothing uses it.
        unsafe { stack.deallocate_bytes(ptr, 63 << 20, stream) };
        assert_eq!(stack.plan_statistics().plan_bytes, 0);
    });
    assert!(told.contains("too little free memory for the plan; the layer ignores the plan"), "{told}");
    assert!(told.contains("needed=\"65MiB\"") && told.contains("log=sha256:5e5e"), "{told}");
}

/// A pool with a maximum refuses the plan's memory, and serves the request itself.
#[test]
fn a_plan_over_the_maximum_of_the_pool_is_dropped() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let pool = CudaMemoryResource::new(Arc::clone(&device) as _)
        .layer(PoolLayer::new().maximum_bytes(64 << 20))
        .unwrap();
    let stack = layer_of_steps(&[60 << 20, 20 << 20]).layer(pool).unwrap();
    stack.allocate_bytes(60 << 20, StreamRef::LEGACY).unwrap();
    let counts = stack.plan_statistics();
    assert_eq!((counts.is_dropped, counts.held_bytes), (true, 0), "{counts:?}");
    assert!(device.peak_bytes() <= 64 << 20);
}

#[test]
fn a_file_is_named_in_text_and_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
    let table = LayerTable::new(millpond_resources::LAYERS.iter().chain(crate::LAYERS).copied());
    let build = |text: &str| text.parse::<StackSpec>().and_then(|spec| spec.build(&table, &device));
    let text = ProgramPlan::new(plan_of(&steps(&[1024, 512]), 0)).unwrap().to_string();
    for name in ["step.plan", "a+b,c:d=(e).plan", "a \"quoted\" one.plan"] {
        let path = folder.path().join(name);
        std::fs::write(&path, &text).unwrap();
        let stack = CudaMemoryResource::new(Arc::clone(&device)).layer(PlanLayer::file(&path)).unwrap();
        let shown = stack.to_string();
        assert!(shown.starts_with("cuda+plan:file="), "{shown}");
        assert_eq!(build(&shown).unwrap().to_string(), shown);
        assert_eq!(stack.plan_statistics().plan_bytes, 1536);
    }
    let path = folder.path().join("damaged.plan");
    let shown = path.display();
    for (damaged, why) in [
        (
            text.replace("1024 0 2", "1000 0 2"),
            "line 11: 1000 bytes are not a positive multiple of the alignment 256",
        ),
        (
            text.replace("alignment 256", "alignment 512"),
            "the plan's alignment is 512 bytes, but it must be 256 bytes",
        ),
        (
            text.replace("alignment 256", "alignment 128"),
            "the plan's alignment is 128 bytes, but it must be 256 bytes",
        ),
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
    let stack = CudaMemoryResource::new(Arc::clone(&device)).layer(layer_of_steps(&[1024])).unwrap();
    assert_eq!(stack.to_string(), "cuda+plan", "the plan comes from no file");
}

/// Options of the former learnt plans give an error that says so and names the replacement.
#[test]
fn what_asks_for_a_learnt_plan_is_refused() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
    let table = LayerTable::new(millpond_resources::LAYERS.iter().chain(crate::LAYERS).copied());
    for text in ["plan", "plan:repeat=9", "plan:file=x.plan,share=on", "plan:time=5", "plan:background=off"] {
        let spec: StackSpec = format!("cuda+pool+{text}").parse().unwrap();
        let error = spec.build(&table, &device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidStack);
        let told = error.to_string();
        assert!(told.contains("no longer learns") && told.contains("plan:file=FILE.plan"), "{told}");
    }
}

#[cfg(unix)]
#[test]
fn a_path_of_any_bytes_names_a_file() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"a\xff+b.plan"));
    let build = || {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
        PlanMemoryResource::open(CudaMemoryResource::new(device), &path).map(|plan| plan.to_string())
    };
    assert_eq!(build().unwrap_err().kind(), ErrorKind::Io, "the file does not exist");
    std::fs::write(&path, "no plan").unwrap();
    assert_eq!(build().unwrap_err().kind(), ErrorKind::InvalidArgument, "the file was read");
}

/// The hash of these six requests in a row is the hash of six other rows, for which the plan has 256 bytes.
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
    assert_eq!((counts.served, counts.missed), (5, 1), "the last block is larger than the slot");
    for (ptr, bytes) in blocks.into_iter().zip(sizes) {
        // SAFETY: the block came from this resource with this size, and nothing uses it.
        unsafe { stack.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
    }
}
