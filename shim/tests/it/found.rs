//! The judge finds planted faults in an allocator from a shared library, and shrinks them to a few calls.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use millpond_shim::{Allocator, EntryPoints, Finding, Judge, Shim, Verdict};

/// The number of operations in which a fault must be found.
const OPERATIONS: u64 = 60_000;
const HANDFUL: usize = 10;

/// Compiles `pool.c` with a fault, and opens it.
fn pool(fault: u32) -> Arc<Allocator> {
    static SHIM: OnceLock<Shim> = OnceLock::new();
    SHIM.get_or_init(|| {
        Shim::next_to_program(EntryPoints::OWN).expect("cargo builds the library next to its tests")
    });
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pool.c");
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join(format!("pool_{fault}.so"));
    let options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-pthread"];
    let mut compiler = Command::new("cc");
    compiler.args(options).arg(format!("-DFAULT={fault}")).arg(source).arg("-o").arg(&library);
    let done = compiler.output().expect("a C compiler, as CONTRIBUTING.md says");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Allocator::open(&library).expect("a library with the judge's functions")
}

fn judged(fault: u32) -> Verdict {
    Judge::new(OPERATIONS).judge(&pool(fault))
}

#[test]
fn a_pool_without_a_fault_passes() {
    let verdict = judged(0);
    let Ok(summary) = &verdict.result else { panic!("{verdict}") };
    assert!(summary.operations >= OPERATIONS, "{verdict}");
    let seen =
        [summary.out_of_memory, summary.cross_stream_frees, summary.streams_destroyed, summary.captures];
    assert!(seen.iter().all(|count| *count > 0) && summary.on_other_threads > 0, "{verdict}");
}

#[test]
fn planted_faults_are_found_and_shrunk() {
    for fault in [1, 2, 3, 5, 6, 7] {
        let verdict = judged(fault);
        let Err(Finding::Program(found)) = &verdict.result else { panic!("fault {fault}: {verdict}") };
        assert!(found.operations.len() <= HANDFUL, "fault {fault}: {verdict}");
        let text = verdict.to_string();
        let list = format!("{} of {} operations:\n    1  ", found.operations.len(), found.operations_found);
        assert!(text.contains(&list) && text.contains(&format!("seed {}", found.seed)), "{text}");
    }
}

/// The same seed finds the same calls again.
#[test]
fn a_finding_is_reproducible() {
    let allocator = pool(1);
    let judge = Judge::new(OPERATIONS).workers(1);
    let [first, again] = [(); 2].map(|()| match judge.judge(&allocator).result {
        Err(Finding::Program(found)) => found.to_string(),
        other => panic!("{other:?}"),
    });
    assert_eq!(first, again);
}

/// Programs never interleave inside a call; races do.
#[test]
fn a_race_inside_a_call_is_found() {
    let judge = Judge::new(1_000).races(50);
    let verdict = judge.judge(&pool(4));
    assert!(matches!(verdict.result, Err(Finding::Race { .. })), "{verdict}");
    let passed = judge.clone().races(3).judge(&pool(0));
    assert!(passed.result.is_ok(), "{passed}");
}

#[test]
fn a_library_that_is_no_allocator_is_refused() {
    let problem = Allocator::open(Path::new("no-such-library.so")).expect_err("there is no such file");
    // The file and the linker's reason, which names the file again.
    assert!(problem.starts_with("no-such-library.so: ") && problem[20..].contains(".so"), "{problem}");
}
