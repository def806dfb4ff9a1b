//! Tests that no layer hangs when its upstream, the driver, the misuse hook or a subscriber calls back into
//! the stack, on the same thread or on another thread that it waits for.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;

use millpond::DeviceMemoryResourceExt;
use millpond::adaptors::logging::Flush;
use millpond::adaptors::{FailedRequest, FailureCallbackLayer, LoggingLayer};
use millpond_testkit::reentrancy::{Case, Finding, Probe, check};

/// The stacks that are checked. Each layer that a stack's text can name is in one of them.
const STACKS: &[&str] = &[
    "cuda+limiting:limit=40MiB+statistics",
    "cuda+budget:name=job,limit=40MiB+statistics",
    "cuda+budget:name=job,limit=40MiB,zero=handover+pool",
    "cuda+tracking+aligned:alignment=4KiB",
    "cuda+limiting:limit=30MiB+fallback:to=(cuda)",
    "cuda+logging:file=/dev/null",
    "cuda+logging:file=/dev/null,flush=buffered",
    "cuda+limiting:limit=40MiB+retry:timeout=1ms",
    "managed+prefetch",
    "host",
    "pinned_host",
    "system+tracking",
    "cuda+pool+recording:stacks=all",
    "sam_headroom:headroom=1MiB",
    "cuda+binning:bins=none+statistics",
    "cuda+plan:file=../testkit/plans/reentrancy.plan",
    "cuda+limiting:limit=40MiB+statistics+plan:file=../testkit/plans/reentrancy.plan",
    "cuda+tracking+plan:file=../testkit/plans/reentrancy.plan+tracking",
    "cuda+pool",
    "cuda+pool:pages=off+statistics",
    "cuda+limiting:limit=40MiB+pool+tracking",
    "cuda+pool+plan:file=../testkit/plans/reentrancy.plan",
    "cuda+arena:size=16MiB",
    "cuda+fixed_size:block_size=1MiB,blocks=8",
    "cuda+pool+capture_scopes",
    "cuda_async",
    "cuda_async_view",
    "cuda_async_managed",
    "cuda_async_pinned",
];

/// Stacks with a layer that lets one thread in at a time, on purpose. Another thread that comes from inside
/// gets an error soon.
const SERIAL: &[&str] = &[
    "cuda+thread_safe:patience=1ms",
    "cuda+limiting:limit=40MiB+retry:timeout=1ms+thread_safe:patience=1ms",
    "cuda+thread_safe:patience=1ms+tracking+thread_safe:patience=1ms",
];

fn assert_well(found: Vec<Finding>) {
    let text: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(text.is_empty(), "\n{}", text.join("\n"));
}

/// Checks cases at the same time, because they mostly wait.
fn check_all(cases: impl Iterator<Item = Case>) {
    let checks: Vec<_> = cases.map(|case| thread::spawn(move || check(&case))).collect();
    assert_well(checks.into_iter().flat_map(|check| check.join().expect("it was built")).collect());
}

#[test]
fn no_layer_holds_a_lock_while_foreign_code_runs() {
    let table = millpond::layers();
    check_all(STACKS.iter().map(|text| Case::from_text(text, &table)));
}

#[test]
fn a_layer_that_serialises_lets_its_thread_back_in_and_no_other_hangs() {
    let table = millpond::layers();
    check_all(SERIAL.iter().map(|text| Case::from_text(text, &table)));
}

#[test]
fn a_failure_callback_may_use_the_stack() {
    check_all(std::iter::once(Case::with_probe("failure_callback", |upstream, probe| {
        let probe = probe.clone();
        let callback = FailureCallbackLayer::new(move |_: &FailedRequest<'_>| {
            probe.call("the failure callback");
            false
        });
        Ok(upstream.layer(callback)?.into_any())
    })));
}

/// A program's own destination of a log. The first row fails, so that there is an error to report.
struct Destination {
    probe: Probe,
    has_failed: bool,
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.probe.call("the writer of the log");
        let is_row = !bytes.starts_with(b"Thread");
        if is_row && !std::mem::replace(&mut self.has_failed, is_row) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.probe.call("the flush of the log");
        Ok(())
    }
}

#[test]
fn the_writer_of_a_log_may_use_the_stack() {
    check_all([Flush::EveryRow, Flush::Buffered, Flush::Async].into_iter().map(|flush| {
        Case::with_probe(format!("logging:flush={flush}"), move |upstream, probe| {
            let destination = Destination { probe: probe.clone(), has_failed: false };
            Ok(Arc::new(upstream.layer(LoggingLayer::new().writer(destination).flush(flush))?))
        })
    }));
}

#[test]
fn every_layer_is_checked() {
    let all: Vec<&str> = STACKS.iter().chain(SERIAL).copied().collect();
    for entry in millpond::layers().entries() {
        let is_in = |stack: &&str| stack.split('+').any(|layer| layer.split(':').next() == Some(entry.name));
        let is_known = all.iter().any(is_in);
        assert!(is_known, "no stack has the layer `{}`; add a line to tests/it/reentrancy.rs", entry.name);
    }
}
