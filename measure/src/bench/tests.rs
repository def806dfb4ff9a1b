//! Tests that workloads allocate and free as documented, and that failures are reported.

use std::collections::HashMap;
use std::panic::panic_any;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

use std::time::Duration;

use super::*;

/// A subject that records its live blocks, and the thread and stream of each.
#[derive(Default)]
struct Ledger {
    live: Mutex<HashMap<u64, (u64, StreamRef, ThreadId)>>,
    next: AtomicUsize,
    most: AtomicUsize,
    freed_by_others: AtomicUsize,
    freed_on_other_streams: AtomicUsize,
    /// Allocations up to this one succeed.
    fails_after: Option<usize>,
    panics: bool,
}

impl Subject for Ledger {
    fn allocate(&self, bytes: u64, stream: StreamRef) -> Attempt<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if self.fails_after.is_some_and(|limit| number >= limit) {
            if self.panics {
                panic_any("a bug of the resource");
            }
            return Err(Setback::failed("no memory".to_owned()));
        }
        let mut live = self.live.lock().unwrap();
        live.insert(number as u64, (bytes, stream, thread::current().id()));
        self.most.fetch_max(live.len(), Ordering::Relaxed);
        Ok(number as u64)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: StreamRef) {
        let (allocated, on, by) = self.live.lock().unwrap().remove(&address).expect("live");
        assert_eq!(allocated, bytes);
        self.freed_by_others.fetch_add(usize::from(by != thread::current().id()), Ordering::Relaxed);
        self.freed_on_other_streams.fetch_add(usize::from(on != stream), Ordering::Relaxed);
    }
}

const EFFORT: Effort = Effort { steps: 4000, measured: Duration::from_secs(600), ..Effort::QUICK };

fn case_of(workload: Workload, threads: usize) -> Case {
    workload.cases(&[threads])[0]
}

fn run_on(ledger: &Ledger, case: Case) -> Attempt<Timing> {
    let plans = case.plans(1, &EFFORT);
    let streams = (0..case.streams as u64).map(|me| StreamRef::from_raw_parts(100 + me, 100 + me)).collect();
    if case.workload == Workload::Pair {
        return run::pairs(ledger, StreamRef::LEGACY, case.sizes.largest.into(), EFFORT.steps, &EFFORT);
    }
    Churn::new(ledger, &plans, streams, case.workload == Workload::CrossThreadFree, EFFORT).run()
}

#[test]
fn blocks_live_at_once_are_as_many_as_a_workload_says_and_all_are_freed() {
    for workload in Workload::ALL {
        let (ledger, case) = (Ledger::default(), case_of(workload, 3));
        let timing = run_on(&ledger, case).unwrap();
        assert_eq!(timing.ns_per_fill().is_some(), workload != Workload::Pair);
        assert!(ledger.live.lock().unwrap().is_empty(), "{workload}");
        // Threads free before they allocate, so they rarely hold all blocks at the same time.
        let most = ledger.most.load(Ordering::Relaxed);
        let all = case.live * case.threads;
        if workload == Workload::Fragmented {
            assert_eq!(most, all + 20_000, "none of the fragments is freed in the first case");
            continue;
        }
        assert!((all - case.threads + 1..=all).contains(&most), "{workload}: {most} of {all}");
        let steps = if workload == Workload::ChurnLarge { EFFORT.steps / 4 } else { EFFORT.steps };
        assert_eq!(timing.steps(), (steps * case.threads) as u64, "{workload}");
    }
}

#[test]
fn fragments_that_are_not_freed_stay_until_the_end() {
    let case = Workload::Fragmented.cases(&[])[4];
    assert_eq!(case.freed_percent, 90);
    let plan = &case.plans(1, &EFFORT)[0];
    assert_eq!((plan.fragments.len(), plan.freed.len(), plan.fill.len()), (20_000, 18_000, 4000));
    let ledger = Ledger::default();
    run_on(&ledger, case).unwrap();
    assert!(ledger.live.lock().unwrap().is_empty());
    assert_eq!(ledger.most.load(Ordering::Relaxed), 20_000);
    // 24,000 blocks were allocated before the warm-up and the measured steps, which replace one each.
    assert_eq!(ledger.next.load(Ordering::Relaxed), 24_000 + EFFORT.warm_up + EFFORT.steps);
}

#[test]
fn only_cross_thread_free_frees_what_others_allocated_and_on_the_stream_it_was_allocated_on() {
    for workload in [Workload::ThreadsOwnStream, Workload::CrossThreadFree] {
        let ledger = Ledger::default();
        run_on(&ledger, case_of(workload, 2)).unwrap();
        let by_others = ledger.freed_by_others.load(Ordering::Relaxed);
        let expected = if workload == Workload::CrossThreadFree { 2 * EFFORT.steps } else { 0 };
        // At the end, each remaining block is freed by the thread that holds it.
        assert!((expected..=expected + 2000).contains(&by_others), "{workload}: {by_others}");
        assert!(ledger.freed_on_other_streams.load(Ordering::Relaxed) <= 2000);
    }
}

#[test]
fn an_allocation_that_fails_is_told_and_nothing_is_lost_or_hangs() {
    for workload in Workload::ALL {
        for fails_after in [0, 500, 4000] {
            let ledger = Ledger { fails_after: Some(fails_after), ..Ledger::default() };
            let result = run_on(&ledger, case_of(workload, 3));
            assert_eq!(result.unwrap_err().reason, "no memory", "{workload} {fails_after}");
            assert!(ledger.live.lock().unwrap().is_empty(), "{workload} {fails_after}");
        }
    }
}

#[test]
fn a_resource_that_panics_is_reported_and_hangs_no_thread() {
    for fails_after in [0, 2000, 5000] {
        let ledger = Ledger { fails_after: Some(fails_after), panics: true, ..Ledger::default() };
        let error = run_on(&ledger, case_of(Workload::CrossThreadFree, 3)).unwrap_err().reason;
        assert!(error.contains("a bug of the resource") || error.contains("panicked"), "{error}");
    }
}

fn quick(workload: Workload, device: &str) -> Settings {
    Settings {
        device: device.parse().unwrap(),
        stacks: vec!["cuda+pool".parse().unwrap()],
        workloads: vec![workload],
        threads: Vec::new(),
        seed: 1,
        quick: true,
    }
}

#[test]
fn a_simulated_device_that_is_too_small_grows_and_a_note_says_so() {
    let mut seen = Vec::new();
    let settings = quick(Workload::ChurnLarge, "sim:8GiB");
    let report = bench(&settings, &crate::layers(), &mut |case| seen.push(case.to_owned())).unwrap();
    assert_eq!(report.results.last().unwrap().of.stack, "cuda+pool");
    assert!(
        report.notes[0].contains("ran on sim:128GiB, because sim:8GiB has too little memory"),
        "{:?}",
        report.notes
    );
    assert!(seen.last().unwrap().contains(
        "churn_large with 1 thread, 1 stream, 2000 live blocks per thread, 1MiB..64MiB, on cuda+pool"
    ));
}

#[test]
fn a_stack_that_cannot_be_built_does_not_lose_the_others() {
    let mut settings = quick(Workload::Pair, "sim:h200");
    settings.stacks.insert(0, "cuda+pool:initial=1TiB".parse().unwrap());
    let report = bench(&settings, &crate::layers(), &mut |_| ()).unwrap();
    assert_eq!(report.not_run.len(), 5);
    assert!(report.not_run.iter().all(|not_run| not_run.status == Status::Failed));
    assert_eq!(report.results.iter().filter(|figures| figures.of.stack == "cuda+pool").count(), 5);
}

#[test]
fn a_table_has_each_result_and_what_it_is_to_mimalloc() {
    let of = |stack: &str| Subjected {
        workload: "pair",
        stack: stack.to_owned(),
        threads: 1,
        streams: 1,
        live: 1000,
        freed_percent: 0,
        bytes: 256,
        sizes: "256B".to_owned(),
    };
    let figures = |stack, ns_per_step| Figures {
        of: of(stack),
        steps: 100,
        ns_per_step,
        p99_ns: 33,
        steps_per_second: 2.5e6,
        ns_per_fill: Some(7.25),
        reserved_bytes: Some(320),
    };
    let settings = Settings { workloads: vec![Workload::Pair], ..quick(Workload::Pair, "sim:h200") };
    let mut report = bench(&settings, &crate::layers(), &mut |_| ()).unwrap();
    report.results = vec![figures(MIMALLOC, 10.0), figures("cuda+pool", 25.0)];
    report.not_run =
        vec![NotRun { of: of("cuda"), status: Status::Skipped, reason: "it is too slow".to_owned() }];
    let mut out = Vec::new();
    print(&report, Format::Table, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let row = text.lines().find(|line| line.contains("cuda+pool")).unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(
        cells,
        ["pair", "1", "1", "1000", "256B", "cuda+pool", "25.0", "2.50", "33", "2.500", "7.2", "1.250"]
    );
    assert!(text.contains("on cuda was skipped: it is too slow"), "{text}");
    assert!(
        text.contains("note: --quick measures few steps") && text.contains("note: the device is simulated")
    );
}
