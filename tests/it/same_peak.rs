//! Tests that a log takes exactly as much memory on a simulated device as on a real one, if the devices have
//! the same size and are otherwise idle.
//!
//! Differences between devices must not matter: the addresses from the driver, the costs of calls, and the
//! identities of streams. The time at which work is done does matter, so here a query of an event waits for
//! the event. Time also matters when a pool decays, so no pool does here.
//!
//! `MILLPOND_LOGS` names a folder with more logs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millpond::driver::StreamFlags;
use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::driver::{CountingDriver, DeviceSpec};
use millpond::stack::StackSpec;
use millpond::{DeviceMemoryResource, Driver, DriverHandle};
use millpond_engine::log::LogReader;
use millpond_engine::program::{Limits, Program};
use millpond_engine::{self as engine, Options, Threads, Watch};
use millpond_testkit::hooked::HookedDriver;

/// Every kind of pool, over pages and over regions, and other layers that keep blocks.
const STACKS: [&str; 6] = [
    "cuda+pool:decay=off",
    "cuda+pool:decay=off,reuse=own",
    "cuda+pool:decay=off+pool",
    "cuda+pool:decay=off+binning:bins=1KiB/64KiB/1MiB",
    "cuda+pool:pages=off",
    "cuda+binning",
];

/// Several passes, because a pool behaves differently after its first pass.
const PASSES: u32 = 2;

/// The memory that a log took, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Peak {
    /// Taken from the driver.
    taken: u64,
    /// Reserved by the outermost resource that counts; 0 if none counts.
    reserved: u64,
}

struct Silent;

impl Watch for Silent {}

fn peak(program: &Program, stack: &str, device: DriverHandle) -> Peak {
    let counter = CountingDriver::new(Arc::clone(&device));
    let spec: StackSpec = stack.parse().expect("the stack's text is right");
    let resource =
        spec.build(&millpond::layers(), &(counter.clone() as DriverHandle)).expect("it can be built");
    let options = Options::default().threads(Threads::One).passes(PASSES);
    let outcome = engine::replay(program, &resource, &device, options, &mut Silent).expect("no driver error");
    assert_eq!(outcome.failures, 0, "`{stack}`: {:?}", outcome.first_failure);
    let reserved = resource.statistics().map_or(0, |statistics| statistics.peak_bytes_reserved);
    Peak { taken: counter.peak_bytes_taken(), reserved }
}

/// Returns the device as a driver that waits for each event that it is asked about.
fn quiet(device: DriverHandle) -> DriverHandle {
    let device = HookedDriver::new(device);
    device.wait_at_queries();
    device
}

fn logs() -> Vec<(PathBuf, Program)> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/logs");
    // On the GPU lane, the logs lie in a folder next to the tests.
    let lane = std::env::current_exe().ok().and_then(|test| Some(test.parent()?.parent()?.join("logs")));
    let more = std::env::var_os("MILLPOND_LOGS").map(PathBuf::from);
    let folders = [Some(own), lane, more].into_iter().flatten().filter(|folder| folder.is_dir());
    let files = folders.flat_map(|folder| std::fs::read_dir(folder).expect("it can be read"));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("it can be read").path()).collect();
    paths.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(".csv")));
    paths.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    paths.dedup_by_key(|path| path.file_name().map(ToOwned::to_owned));
    assert!(!paths.is_empty(), "there is a log in examples/logs");
    let read = |path: PathBuf| {
        let log = LogReader::open(&path).expect("the log can be read");
        let program = Program::read(log, Limits::default()).expect("the log is right");
        (path, program)
    };
    paths.into_iter().map(read).collect()
}

fn assert_same(log: &Path, stack: &str, one: Peak, other: Peak) {
    println!("{} over `{stack}`: {} bytes, {} taken", log.display(), one.reserved, one.taken);
    assert_eq!(one, other, "{} over `{stack}`", log.display());
    assert!(one.taken > 0);
}

/// Returns a device with other addresses and streams, which reports finished work late.
fn other_device() -> DriverHandle {
    let device = HookedDriver::new(SimDevice::new(SimConfig::h200().falling_addresses()));
    device.answer_late();
    // The device's streams get other identities.
    (0..77).for_each(|_| _ = device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream"));
    device
}

#[test]
fn simulated_devices_agree_with_any_addresses_and_speed() {
    for (path, program) in logs() {
        for stack in STACKS {
            let first = peak(&program, stack, quiet(SimDevice::new(SimConfig::h200())));
            assert_same(&path, stack, first, peak(&program, stack, quiet(other_device())));
        }
    }
}

/// The canary: if queries do not wait, the peaks differ, and the tests here would fail.
#[test]
fn without_waiting_at_queries_devices_do_not_agree() {
    let own = |(path, _): &(PathBuf, Program)| path.ends_with("rmm_cupy_4streams.csv.gz");
    let (_, program) = logs().into_iter().find(own).expect("this log is in the repository");
    let first = peak(&program, STACKS[0], quiet(SimDevice::new(SimConfig::h200())));
    assert_ne!(first, peak(&program, STACKS[0], other_device()));
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_simulated_device_agrees_with_a_real_one() {
    let real = DeviceSpec::Cuda(0).open().expect("there is a GPU");
    let total = real.mem_get_info().expect("the driver answers").total;
    for (path, program) in logs() {
        for stack in STACKS {
            let simulated = SimDevice::new(SimConfig::with_capacity(total));
            let granularity = |device: &dyn Driver| device.mem_get_allocation_granularity();
            assert_eq!(granularity(&*real), granularity(&*simulated));
            let there = peak(&program, stack, quiet(Arc::clone(&real)));
            assert_same(&path, stack, there, peak(&program, stack, quiet(simulated)));
        }
    }
}
