//! Calls the library as a program with its own layers does: the whole command line, over its own table.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millpond_core::Layer;
use millpond_core::stack::{LayerEntry, LayerKind, LayerTable};
use millpond_replay::{cli, compare};
use millpond_resources::PoolLayer;
use serde_json::Value;

use crate::support::{Folder, rows};

static BUILT: AtomicU32 = AtomicU32::new(0);

const OWN: LayerEntry = LayerEntry {
    name: "own_pool",
    about: "the pool of this test",
    params: &[],
    kind: LayerKind::Layer(|_, upstream| {
        BUILT.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(PoolLayer::new().layer(upstream)?))
    }),
};

fn run(table: &LayerTable, arguments: &[&str]) -> Result<(ExitCode, String), String> {
    let words = std::iter::once("own").chain(arguments.iter().copied()).map(OsString::from);
    let mut out = Vec::new();
    let status = cli::run(words, table, &mut out)?;
    Ok((status, String::from_utf8(out).unwrap()))
}

/// `ExitCode` has no equality.
fn is(status: ExitCode, number: u8) -> bool {
    format!("{status:?}") == format!("{:?}", ExitCode::from(number))
}

#[test]
fn issue_9_the_command_line_replays_through_layers_of_the_callers_own() {
    let folder = Folder::new();
    let log = folder.log(&rows(2, 400));
    let log = log.to_str().unwrap();
    let table = compare::layers().with([OWN]);
    let flags = [log, "--stack", "cuda+own_pool", "--device", "sim:h200", "--format", "json"];
    let (status, out) = run(&table, &flags).unwrap();
    assert!(is(status, 0), "{out}");
    assert_eq!(BUILT.load(Ordering::Relaxed), 1);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["stacks"][0]["spec"], "cuda+own_pool");
    assert_eq!(report["stacks"][0]["failures"], 0);

    let (status, listed) = run(&table, &["--list-layers"]).unwrap();
    assert!(is(status, 0) && listed.contains("the pool of this test"), "{listed}");
    let (status, _) = run(&compare::layers(), &flags).unwrap();
    assert!(is(status, 2), "millpond alone has no such layer");
}

/// A stack with such a layer cannot be built from millpond's table alone.
#[test]
fn the_advice_builds_the_stack_from_the_table_of_the_run() {
    let folder = Folder::new();
    let log = folder.log(&rows(2, 4000));
    let advice = |table: &LayerTable, stack: &str| {
        let (_, out) = run(table, &[log.to_str().unwrap(), "-s", stack, "-d", "sim:h200"]).unwrap();
        out.lines().nth(1).unwrap_or_default().to_owned()
    };
    let own = advice(&compare::layers().with([OWN]), "cuda+own_pool");
    assert!(own.contains("parse::<millpond::stack::StackSpec>()?.build(&table, &device)?"), "{own}");
    assert!(!own.contains("millpond::layers()"), "{own}");
    let replaced = LayerEntry { name: "pool", ..OWN };
    let own = advice(&compare::layers().with([replaced]), "cuda+pool");
    assert!(own.contains(".build(&table, &device)?"), "another `pool` than millpond's: {own}");
    let millponds = advice(&compare::layers(), "cuda+pool");
    assert!(millponds.contains(".build(&millpond::layers(), &device)?"), "{millponds}");
}

/// Requests that had failed are repeated without millpond's logs, but with the program's own layers.
#[test]
fn a_layer_of_the_callers_that_is_named_logging_is_asked_again() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let own = LayerEntry {
        name: "logging",
        about: "no log",
        params: &[],
        kind: LayerKind::Layer(|_, upstream| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            Ok(upstream)
        }),
    };
    let rows = "1,0,allocate,0x1000000,256,0x77\n1,0,allocate failure,(nil),512,0x77\n";
    let folder = Folder::new();
    let log = folder.log(rows);
    let flags = [log.to_str().unwrap(), "--stack", "cuda+logging", "--device", "sim:h200"];
    let (status, out) = run(&compare::layers().with([own]), &flags).unwrap();
    assert!(is(status, 0), "{out}");
    assert_eq!(ASKED.load(Ordering::Relaxed), 2);
}

#[test]
fn issue_9_wrong_arguments_do_not_end_the_callers_process() {
    let error = run(&compare::layers(), &["--no-such-flag"]).unwrap_err();
    assert!(error.contains("--no-such-flag"), "{error}");
    assert!(run(&compare::layers(), &["--help"]).unwrap_err().contains("Exit status:"));
}
