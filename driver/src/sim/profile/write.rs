//! Writes profiles as TOML with a comment for each field.

use std::fmt::Write as _;

use super::{Costs, Curve, Profile};

/// The version of the format. Files of another version are refused.
pub(super) const FORMAT: u32 = 1;

type Comment<'a> = &'a dyn Fn(&str, Option<u64>) -> Option<String>;

const HEAD: &str = "\
# Describes a device and the cost of its driver calls, for a simulated device: --device sim:FILE.toml.
# `millpond-replay calibrate` measures a device and writes such a file.
#
# Sizes are in bytes. Times are in nanoseconds on the host, and each includes the timer's own 20 to 40 ns.
# A list of points [bytes, ns] gives a cost by size, on straight lines between the points. Below the first
# point, its cost applies. Beyond the last point, the last line continues. A missing entry was not measured:
# such calls cost no time, and reports say that it is missing.
";

pub(super) fn toml(profile: &Profile, comment: Comment<'_>) -> String {
    let mut out = format!("{HEAD}format = {FORMAT}\n\n[device]\nname = {}\n", quoted(profile.name()));
    let (major, minor) = profile.compute_capability();
    line(&mut out, format_args!("memory_bytes = {}", profile.capacity()));
    line(&mut out, format_args!("multiprocessors = {}", profile.multiprocessors()));
    line(&mut out, format_args!("compute_capability = [{major}, {minor}]"));
    if let Some(measured_on) = profile.measured_on() {
        line(&mut out, format_args!("measured_on = {}", quoted(measured_on)));
    }
    write_calls(&mut out, profile.costs(), comment);
    write_plain(&mut out, profile.costs(), comment);
    write_by_size(&mut out, profile.costs(), comment);
    write_mappings(&mut out, profile.costs(), comment);
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    _ = writeln!(out, "{text}"); // writing to a string does not fail
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => quoted.push(' '),
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

fn scalar(out: &mut String, name: &str, ns: u64, comment: Option<String>) {
    let comment = comment.map(|text| format!(" # {text}")).unwrap_or_default();
    line(out, format_args!("{name} = {ns}{comment}"));
}

fn points(out: &mut String, field: &str, name: &str, curve: &Curve, comment: Comment<'_>) {
    line(out, format_args!("{name} = ["));
    for &(bytes, ns) in curve.points() {
        let comment = comment(field, Some(bytes)).map(|text| format!(" # {text}")).unwrap_or_default();
        line(out, format_args!("    [{bytes}, {ns}],{comment}"));
    }
    line(out, format_args!("]"));
}

fn write_calls(out: &mut String, costs: &Costs, comment: Comment<'_>) {
    line(out, format_args!("\n# Calls with the same cost for all arguments, in ns.\n[costs.calls_ns]"));
    for (kind, ns) in costs.calls_ns.iter() {
        scalar(out, kind.name(), ns, comment(&format!("calls_ns.{kind}"), None));
    }
    let extra = costs.event_record.legacy_stream_extra_ns;
    line(out, format_args!("\n# The extra cost of recording an event on the legacy default stream."));
    line(out, format_args!("[costs.event_record]"));
    scalar(out, "legacy_stream_extra_ns", extra, comment("event_record.legacy_stream_extra_ns", None));
}

fn write_plain(out: &mut String, costs: &Costs, comment: Comment<'_>) {
    let about = [
        "cuMemAlloc. `in_page_ns`: a block of up to 2 MiB in an existing page. `by_bytes_ns`: a larger\n\
         # block, by the bytes of its pages, and, at 2 MiB, a new page for a smaller block.",
        "cuMemFree of plain memory, with the same entries.",
    ];
    for ((name, plain), about) in
        [("mem_alloc", &costs.mem_alloc), ("mem_free", &costs.mem_free)].iter().zip(about)
    {
        let Some(plain) = plain else { continue };
        line(out, format_args!("\n# {about}\n[costs.{name}]"));
        scalar(out, "in_page_ns", plain.in_page_ns, comment(&format!("{name}.in_page_ns"), None));
        points(out, name, "by_bytes_ns", &plain.by_bytes_ns, comment);
    }
}

fn write_by_size(out: &mut String, costs: &Costs, comment: Comment<'_>) {
    let all = [
        ("mem_alloc_managed", "cuMemAllocManaged", &costs.mem_alloc_managed),
        (
            "mem_free_managed",
            "cuMemFree of managed memory that the device did not touch",
            &costs.mem_free_managed,
        ),
        ("mem_host_alloc", "cuMemHostAlloc", &costs.mem_host_alloc),
        ("mem_free_host", "cuMemFreeHost", &costs.mem_free_host),
        ("mem_create", "cuMemCreate", &costs.mem_create),
        ("mem_release", "cuMemRelease", &costs.mem_release),
    ];
    for (name, about, costs) in all {
        let Some(costs) = costs else { continue };
        line(out, format_args!("\n# {about}.\n[costs.{name}]"));
        points(out, name, "by_bytes_ns", &costs.by_bytes_ns, comment);
    }
}

fn write_mappings(out: &mut String, costs: &Costs, comment: Comment<'_>) {
    if let Some(set) = &costs.mem_set_access {
        line(
            out,
            format_args!("\n# cuMemSetAccess: the call, and each mapping in its range. A mapping costs more"),
        );
        line(
            out,
            format_args!("# if its handle is also mapped elsewhere, and if it is the first in an aligned"),
        );
        line(out, format_args!("# 512 MiB of addresses.\n[costs.mem_set_access]"));
        let said = |name: &str| comment(&format!("mem_set_access.{name}"), None);
        scalar(out, "call_ns", set.call_ns, said("call_ns"));
        scalar(out, "second_mapping_extra_ns", set.second_mapping_extra_ns, said("second_mapping_extra_ns"));
        scalar(out, "new_512_mib_extra_ns", set.new_512_mib_extra_ns, said("new_512_mib_extra_ns"));
        points(out, "mem_set_access", "mapping_by_bytes_ns", &set.mapping_by_bytes_ns, comment);
    }
    if let Some(unmap) = &costs.mem_unmap {
        line(
            out,
            format_args!("\n# cuMemUnmap: the call, and each mapping in its range.\n[costs.mem_unmap]"),
        );
        scalar(out, "call_ns", unmap.call_ns, comment("mem_unmap.call_ns", None));
        points(out, "mem_unmap", "mapping_by_bytes_ns", &unmap.mapping_by_bytes_ns, comment);
    }
}
