//! Tests profile files: an error names the line and the field, and the built-in profile equals its file.
#![cfg(feature = "profiles")]

use std::path::Path;

use millpond_core::Driver;
use millpond_core::driver::PhysicalProps;
use millpond_driver::sim::{Costs, Curve, Profile, SimConfig, SimDevice, SizeCosts, UnmapCosts};
use millpond_driver::{CallKind, DeviceSpec};

/// A profile that does not depend on the built-in one.
fn sample() -> Profile {
    let mut costs = Costs::default();
    let calls = [(CallKind::MemMap, 500), (CallKind::MemGetInfo, 3274), (CallKind::EventRecord, 160)];
    costs.calls_ns = calls.into_iter().collect();
    costs.mem_create = Some(SizeCosts::new([(2 << 20, 10_000)][..].into()));
    let mapping_by_bytes_ns = [(2 << 20, 11_600), (64 << 20, 12_000)][..].into();
    costs.mem_unmap = Some(UnmapCosts::new(2300, mapping_by_bytes_ns));
    Profile::measured("simulated H200", 149_250_113_536, 132, (9, 0), "somewhere", costs)
}

fn sample_toml() -> String {
    sample().to_toml(|_, _| None)
}

#[test]
fn a_profile_is_read_as_it_was_written() {
    let text = sample_toml();
    assert_eq!(Profile::from_toml(&text, "test").unwrap(), sample());
    let commented = sample().to_toml(|field, bytes| Some(format!("{field} {bytes:?}")));
    assert!(
        commented.contains("# mem_create Some(2097152)") && commented.contains("# calls_ns.mem_map None")
    );
    assert_eq!(Profile::from_toml(&commented, "test").unwrap(), sample());
    let built_in = Profile::h200();
    assert_eq!(Profile::from_toml(&built_in.to_toml(|_, _| None), "test").unwrap(), built_in);
}

#[test]
fn issue_9_a_device_is_what_its_file_says() {
    let path = std::env::temp_dir().join(format!("millpond-profile-{}.toml", std::process::id()));
    let text = sample_toml()
        .replace("simulated H200", "a \\\"fast\\\" one")
        .replace("mem_get_info = 3274", "mem_get_info = 7");
    std::fs::write(&path, text.replace("149250113536", "1073741824")).unwrap();
    let spec: DeviceSpec = format!("sim:{}", path.display()).parse().unwrap();
    let driver = spec.open().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(driver.name(), "a \"fast\" one");
    assert_eq!(driver.mem_get_info().unwrap().total, 1 << 30);
    assert_eq!(driver.virtual_time_ns(), Some(7));
}

#[test]
fn what_was_not_measured_takes_no_time_and_says_so() {
    let text = sample_toml()
        .replace("event_record = ", "# ")
        .replace("[costs.mem_create]", "[costs.mem_alloc_managed]");
    let profile = Profile::from_toml(&text, "test").unwrap();
    for (kind, is_measured) in
        [(CallKind::EventRecord, false), (CallKind::MemCreate, false), (CallKind::MemAllocManaged, true)]
    {
        assert_eq!(profile.call_ns(kind).is_some(), is_measured, "{kind}");
    }
    let device = SimDevice::new(SimConfig::new(profile));
    device.mem_create(2 << 20, PhysicalProps::default()).unwrap();
    assert_eq!(device.virtual_time_ns(), 0);
    device.mem_alloc_managed(2 << 20).unwrap();
    assert_eq!(device.virtual_time_ns(), 10_000);
}

#[test]
fn issue_9_a_wrong_file_is_an_error_that_says_where_and_what() {
    let text = sample_toml();
    for (is, becomes, told) in [
        ("format = 1", "format = 2", &["line 8", "`format = 2`", "calibrate"][..]),
        ("memory_bytes = 149250113536", "memory_bytes = 7", &["line 12", "`memory_bytes = 7`", "2 MiB"]),
        ("memory_bytes = 149250113536", "memory_bytes = \"7\"", &["line 12", "invalid type"]),
        ("memory_bytes = 149250113536\n", "", &["missing field `memory_bytes`", "[device]"]),
        ("mem_map = 500", "mem_mop = 500", &["no call `mem_mop`", "mem_map"]),
        ("mem_map = 500", "mem_map = -500", &["mem_map", "invalid value"]),
        ("mem_map = 500", "mem_create = 500", &["mem_create", "depends on the size"]),
        ("[2097152, 10000]", "[2097152, 1], [2097152, 2]", &["`by_bytes_ns = [`", "must increase"]),
        ("[costs.mem_unmap]\ncall_ns", "[costs.mem_unmap]\ncall", &["unknown field `call`"]),
        ("[costs.mem_unmap]", "[costs.mem_unmap", &["[costs.mem_unmap"]),
    ] {
        assert!(text.contains(is), "{is}");
        let error = Profile::from_toml(&text.replacen(is, becomes, 1), "h.toml").unwrap_err().to_string();
        assert!(error.contains("the profile h.toml, line "), "{becomes}: {error}");
        for words in told {
            assert!(error.contains(words), "{becomes}: {words} is missing in: {error}");
        }
    }
}

/// The library has the built-in profiles as Rust, so no program needs to read TOML for them. With
/// MILLPOND_WRITE=1, this test rewrites the Rust files.
#[test]
fn issue_9_the_built_in_profiles_are_those_of_the_files() {
    for (name, built_in) in [("h100", Profile::h100()), ("h200", Profile::h200())] {
        let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let profile = Profile::from_file(&crate_dir.join(format!("profiles/{name}.toml"))).unwrap();
        let rust = as_rust(name, &profile);
        let rust_file = crate_dir.join(format!("src/sim/profile/{name}.rs"));
        if std::env::var_os("MILLPOND_WRITE").is_some() {
            std::fs::write(rust_file, &rust).unwrap();
            continue;
        }
        let written = std::fs::read_to_string(rust_file).unwrap();
        assert_eq!(written, rust, "run this test once with MILLPOND_WRITE=1");
        assert_eq!(built_in, profile);
    }
}

const USES: &str = "\
use super::{Costs, EventRecordCosts, PlainCosts, Profile, SetAccessCosts, SizeCosts, UnmapCosts};
use crate::CallKind;

type Points = &'static [(u64, u64)];

";

fn as_rust(file: &str, profile: &Profile) -> String {
    let costs = profile.costs();
    let mut consts = String::new();
    let (mut fields, mut calls) = (String::new(), String::new());
    let mut points = |name: &str, curve: &Curve| {
        let name = name.to_uppercase();
        consts += &format!("const {name}: Points = &[\n");
        for chunk in curve.points().chunks(3) {
            let chunk: Vec<_> = chunk.iter().map(|(bytes, ns)| format!("({bytes}, {ns})")).collect();
            consts += &format!("    {},\n", chunk.join(", "));
        }
        consts += "];\n";
        format!("{name}.into()")
    };
    for (name, plain) in [("mem_alloc", &costs.mem_alloc), ("mem_free", &costs.mem_free)] {
        let Some(plain) = plain else { continue };
        let (ns, curve) = (plain.in_page_ns, points(name, &plain.by_bytes_ns));
        fields +=
            &format!("            {name}: Some(PlainCosts {{ in_page_ns: {ns}, by_bytes_ns: {curve} }}),\n");
    }
    for (name, by_size) in [
        ("mem_alloc_managed", &costs.mem_alloc_managed),
        ("mem_free_managed", &costs.mem_free_managed),
        ("mem_host_alloc", &costs.mem_host_alloc),
        ("mem_free_host", &costs.mem_free_host),
        ("mem_create", &costs.mem_create),
        ("mem_release", &costs.mem_release),
    ] {
        let Some(by_size) = by_size else { continue };
        let curve = points(name, &by_size.by_bytes_ns);
        fields += &format!("            {name}: Some(SizeCosts {{ by_bytes_ns: {curve} }}),\n");
    }
    if let Some(set) = &costs.mem_set_access {
        let curve = points("mem_set_access", &set.mapping_by_bytes_ns);
        let (call, second, new) = (set.call_ns, set.second_mapping_extra_ns, set.new_512_mib_extra_ns);
        fields += "            mem_set_access: Some(SetAccessCosts {\n";
        fields +=
            &format!("                call_ns: {call},\n                mapping_by_bytes_ns: {curve},\n");
        fields += &format!("                second_mapping_extra_ns: {second},\n");
        fields += &format!("                new_512_mib_extra_ns: {new},\n            }}),\n");
    }
    if let Some(unmap) = &costs.mem_unmap {
        let curve = points("mem_unmap", &unmap.mapping_by_bytes_ns);
        let call = unmap.call_ns;
        fields += &format!(
            "            mem_unmap: Some(UnmapCosts {{ call_ns: {call}, mapping_by_bytes_ns: {curve} }}),\n"
        );
    }
    for (kind, ns) in costs.calls_ns.iter() {
        calls += &format!("    (CallKind::{kind:?}, {ns}),\n");
    }
    consts += &format!("const CALLS: &[(CallKind, u64)] = &[\n{calls}];\n");
    whole(file, profile, &consts, &fields)
}

fn whole(file: &str, profile: &Profile, consts: &str, fields: &str) -> String {
    let (name, capacity, (major, minor)) = (profile.name(), profile.capacity(), profile.compute_capability());
    let (count, measured_on) = (profile.multiprocessors(), profile.measured_on().unwrap_or_default());
    let is_whole = (fields.matches("Some(").count()) == 10;
    let rest = if is_whole { "" } else { "            ..Costs::default()\n" };
    let legacy = profile.costs().event_record.legacy_stream_extra_ns;
    format!(
        "\
//! The profile in `driver/profiles/{file}.toml`, as Rust. The test `sim_profile` writes it
//! (MILLPOND_WRITE=1).

{USES}{consts}
pub(super) fn profile() -> Profile {{
    Profile::measured(
        {name:?},
        {capacity},
        {count},
        ({major}, {minor}),
        {measured_on:?},
        Costs {{
            calls_ns: CALLS.iter().copied().collect(),
            event_record: EventRecordCosts {{ legacy_stream_extra_ns: {legacy} }},
{fields}{rest}        }},
    )
}}
"
    )
}
