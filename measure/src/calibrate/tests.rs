//! Tests that measuring a simulated device gives the profile it was made from.

use std::sync::Arc;

use millpond_driver::sim::{Costs, Profile};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_engine::log::LogReader;
use millpond_engine::program::{Limits, Program};

use super::check::{Check, Outcome};
use super::*;

fn calibrated(profile: Profile) -> (Arc<SimDevice>, Calibration) {
    let device = SimDevice::new(SimConfig::new(profile));
    let handle: DriverHandle = device.clone();
    (device, calibrate(&handle, &mut |_| ()).unwrap())
}

/// Measuring a simulated device gives back each cost of its profile.
#[test]
fn a_simulated_device_is_measured_as_what_its_profile_says() {
    let h200 = Profile::h200();
    let (device, calibration) = calibrated(h200.clone());
    let (was, is) = (h200.costs(), calibration.profile.costs());
    for (kind, ns) in was.calls_ns.iter() {
        assert_eq!(is.calls_ns.get(kind), Some(ns), "{kind}");
    }
    assert_eq!(is.event_record, was.event_record);
    let plain = |costs: &Costs| [costs.mem_alloc.clone(), costs.mem_free.clone()];
    for (was, is) in plain(was).into_iter().flatten().zip(plain(is).into_iter().flatten()) {
        assert_eq!(is.in_page_ns, was.in_page_ns);
        for bytes in [2 << 20, 64 << 20, 1 << 30] {
            assert_eq!(is.by_bytes_ns.ns(bytes), was.by_bytes_ns.ns(bytes), "{bytes}");
        }
    }
    for (was, is) in [(&was.mem_create, &is.mem_create), (&was.mem_release, &is.mem_release)] {
        let (Some(was), Some(is)) = (was, is) else { panic!("a cost is missing") };
        for bytes in [2 << 20, 32 << 20, 256 << 20] {
            assert_eq!(is.by_bytes_ns.ns(bytes), was.by_bytes_ns.ns(bytes), "{bytes}");
        }
    }
    let (Some(set_was), Some(set_is)) = (&was.mem_set_access, &is.mem_set_access) else {
        panic!("no access")
    };
    assert_eq!(
        (set_is.call_ns, set_is.second_mapping_extra_ns, set_is.new_512_mib_extra_ns),
        (set_was.call_ns, set_was.second_mapping_extra_ns, set_was.new_512_mib_extra_ns)
    );
    assert_eq!(set_is.mapping_by_bytes_ns.ns(4 << 20), set_was.mapping_by_bytes_ns.ns(4 << 20));
    let unmap = |costs: &Costs| {
        costs.mem_unmap.clone().map(|costs| (costs.call_ns, costs.mapping_by_bytes_ns.ns(2 << 20)))
    };
    assert_eq!(unmap(is), unmap(was));
    assert_eq!((device.live_allocations(), device.live_streams(), device.live_events()), (0, 0, 0));
    assert_eq!(device.violations(), []);
}

#[test]
fn what_is_written_is_read_again() {
    let (_, calibration) = calibrated(Profile::h200());
    let text = calibration.to_toml();
    assert_eq!(Profile::from_toml(&text, "test").unwrap(), calibration.profile);
    assert!(text.contains("# median"), "{text}");
}

#[test]
fn a_device_with_little_memory_is_refused_or_measured_within_it() {
    let small: DriverHandle = SimDevice::new(SimConfig::with_capacity(512 << 20));
    let error = calibrate(&small, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("256MiB"), "{error}");
    let (device, _) = calibrated(Profile::with_capacity(1100 << 20));
    assert!(device.peak_bytes() <= 300 << 20, "{}", device.peak_bytes());
}

/// A profile is right for its own device, and off for another.
#[test]
fn a_check_says_how_far_the_profile_is_off() {
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/logs/rmm_cupy_4streams.csv.gz");
    let program = Program::read(LogReader::open(log.as_ref()).unwrap(), Limits::default()).unwrap();
    let table = crate::layers();
    let device: DriverHandle = SimDevice::new(SimConfig::h200());
    let profile = Profile::h200();
    let check = Check { device: &device, profile: &profile, stacks: &[], runs: 1, table: &table };
    let (mut outcome, mut out) = (Outcome::default(), Vec::new());
    check.log(&program, &mut outcome, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains(" in the median run, "), "{text}");
    assert!(text.contains("cuda+pool:pages=off: driver time") && text.contains("mem_set_access"), "{text}");
    assert!(outcome.worst_memory < 0.002, "{text}");
    assert!(outcome.worst_time < 0.02, "{text}");
    assert!(outcome.is_within_tolerance());

    let cheap = Profile::from_toml(&free_of_access(&profile), "test").unwrap();
    let check = Check { profile: &cheap, ..check };
    check.log(&program, &mut outcome, &mut Vec::new()).unwrap();
    assert!(outcome.worst_time > 0.2, "{outcome:?}");
    assert!(!outcome.is_within_tolerance());
}

/// A log is not compared if one of the two devices served less of it than the other.
#[test]
fn a_stack_that_fails_is_noted_and_the_others_are_compared() {
    let rows = "1,0,allocate,0x1000000,33554432,0\n1,0,free,0x1000000,33554432,0\n";
    let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}");
    let program = LogReader::from_reader("log", text.as_bytes()).unwrap();
    let program = Program::read(program, Limits::default()).unwrap();
    let table = crate::layers();
    let device: DriverHandle = SimDevice::new(SimConfig::h200());
    let profile = Profile::h200();
    let stacks = ["cuda+limiting:limit=1MiB", "cuda+pool"].map(|text| text.parse().unwrap());
    let check = Check { device: &device, profile: &profile, stacks: &stacks, runs: 1, table: &table };
    let (mut outcome, mut out) = (Outcome::default(), Vec::new());
    check.log(&program, &mut outcome, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.contains("log, cuda+pool: driver time") && text.contains("log, cuda: peak live memory"),
        "{text}"
    );
    let [failure] = &*outcome.failures else { panic!("{outcome:?}") };
    assert!(
        failure.starts_with("log, cuda+limiting:limit=1MiB: ") && failure.contains("line 2"),
        "{failure}"
    );
    assert!(!outcome.is_within_tolerance());
}

/// Returns the same profile without the time that set access takes.
fn free_of_access(profile: &Profile) -> String {
    let text = profile.to_toml(|_, _| None);
    let (before, after) = text.split_once("[costs.mem_set_access]").unwrap();
    let after = after.split_once("[costs.mem_unmap]").unwrap().1;
    format!("{before}[costs.mem_unmap]{after}")
}
