//! Tests seeded programs that capture graphs in scopes, with work before, during and after the captures, on
//! each kind of stack. The canary's scopes make known mistakes, and the same programs must find them.
//!
//! `MILLPOND_SEED` runs one seed; `MILLPOND_CAPTURE_OPS` sets the number of operations over each stack.

use std::collections::HashMap;
use std::sync::Arc;

use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::resources::{CaptureScope, ScopedStream};
use millpond::stack::StackSpec;
use millpond::{AnyResource, DeviceMemoryResourceExt, DevicePtr, DriverError, DriverHandle, StreamRef};
use millpond_core::StreamId;
use millpond_core::driver::DriverResult;
use millpond_testkit::canary::{CanaryScopes, WrongScopes};
use millpond_testkit::captured::{Broken, Scopes, Summary, run};
use millpond_testkit::size;

/// Operations over each stack in the ordinary test run.
const OPERATIONS: u64 = 100_000;
/// Operations of one program.
const STEPS: u64 = 400;
/// How many programs may be needed to find each mistake.
const SEEDS: u64 = 2_000;

const STACKS: [&str; 6] = [
    "cuda+capture_scopes",
    "cuda+pool:pages=on+capture_scopes",
    "cuda+pool:pages=off+capture_scopes",
    "cuda_async+capture_scopes",
    "cuda_async+pool+capture_scopes",
    "cuda+pool+capture_scopes+plan:file=../testkit/plans/equal_1024.plan",
];

/// The scopes of a stack.
struct OfStack {
    opened: HashMap<StreamId, ScopedStream>,
    scopes: Vec<CaptureScope>,
    stack: AnyResource,
}

impl OfStack {
    fn build(text: &str, device: &Arc<SimDevice>) -> Self {
        let driver: DriverHandle = device.clone();
        let stack = text.parse::<StackSpec>().unwrap().build(&millpond::layers(), &driver).unwrap();
        let scopes = (0..8).map(|_| CaptureScope::of(&stack).unwrap()).collect();
        Self { opened: HashMap::new(), scopes, stack }
    }
}

impl Scopes for OfStack {
    fn open(&mut self, scope: usize, stream: StreamRef) {
        self.opened.insert(stream.id(), self.scopes[scope].begin(stream).unwrap());
    }

    fn close(&mut self, _scope: usize, stream: StreamRef) -> DriverResult<()> {
        self.opened.remove(&stream.id());
        Ok(())
    }

    fn allocate(&mut self, bytes: u64, stream: StreamRef) -> DriverResult<DevicePtr> {
        self.stack.allocate_bytes(bytes, stream).map_err(|error| {
            let code = error.driver_error().map_or(DriverError::OUT_OF_MEMORY, DriverError::code);
            DriverError::new(code, "allocate").with_detail(error.to_string())
        })
    }

    fn deallocate(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamRef) -> DriverResult<()> {
        // SAFETY: the program frees each block once, with its size, after its uses on the stream.
        unsafe { self.stack.deallocate_bytes(ptr, bytes, stream) };
        Ok(())
    }

    fn end(&mut self, scope: usize) -> DriverResult<()> {
        self.scopes[scope] = CaptureScope::of(&self.stack).unwrap();
        Ok(())
    }
}

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(2 << 30))
}

fn play(seed: u64, text: &str) -> Summary {
    let device = device();
    let mut scopes = OfStack::build(text, &device);
    let summary = run(seed, STEPS, &device, &mut scopes).unwrap_or_else(|broken| panic!("{text}, {broken}"));
    drop(scopes);
    assert_eq!(device.take_violations(), [], "{text}, seed {seed}, at the end");
    assert_eq!((device.live_bytes(), device.live_events()), (0, 0), "{text}, seed {seed}: memory is left");
    summary
}

#[test]
fn programs_with_captures_keep_the_order_on_every_stack() {
    let seeds = match size::named("MILLPOND_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..size::named("MILLPOND_CAPTURE_OPS").unwrap_or(OPERATIONS).div_ceil(STEPS),
    };
    let is_one = seeds.end - seeds.start == 1;
    for (text, index) in STACKS.into_iter().zip(0..) {
        let mut total = Summary::default();
        for seed in seeds.clone() {
            // Each stack gets its own programs.
            total += play(if is_one { seed } else { index * 10_000_000 + seed }, text);
        }
        println!("`{text}`: {total:?}");
        let Summary { captures, freed_in_captures, forks, reused, .. } = total;
        let does_all = [captures, freed_in_captures, forks, reused].iter().all(|count| *count > 100);
        assert!(is_one || does_all, "{text}: {total:?}");
    }
}

fn canary(seed: u64, wrong: Option<WrongScopes>) -> Result<Summary, Box<Broken>> {
    let device = device();
    let driver: DriverHandle = device.clone();
    run(seed, STEPS, &device, &mut CanaryScopes::new(&driver, wrong))
}

#[test]
fn every_mistake_of_scopes_is_found() {
    for wrong in WrongScopes::ALL {
        let found = (0..SEEDS).find_map(|seed| canary(seed, Some(*wrong)).err());
        let found = found.unwrap_or_else(|| panic!("{wrong:?} is not found in {SEEDS} seeds"));
        println!("{wrong:?}: seed {}, {}, {} steps", found.seed, found.why, found.done.len());
        // The program that finds the mistake passes on all stacks.
        for text in STACKS {
            play(found.seed, text);
        }
    }
}

#[test]
fn scopes_without_a_mistake_pass() {
    for seed in 0..SEEDS / 4 {
        canary(seed, None).unwrap_or_else(|broken| panic!("{broken}"));
    }
}
