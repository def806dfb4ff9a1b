//! Tests `top` on programs that run: this test program, started again.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Lines, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use millpond_core::stack::StackSpec;
use millpond_core::{DeviceMemoryResourceExt, StreamRef, environment, watch};
use millpond_driver::DeviceSpec;
use millpond_replay::compare;
use serde_json::Value;

use crate::support::{Folder, Run, program};

/// Set in a program that is watched. Names its stack.
const STACK: &str = "MILLPOND_TEST_WATCHED_STACK";

/// The watched program: allocates 3 blocks on 2 streams, says that it is ready, and waits for the end of its
/// input. In an ordinary run of the tests, it does nothing.
#[test]
fn watched_program() {
    let Some(text) = environment::variable(STACK) else { return };
    let driver = "sim:1GiB".parse::<DeviceSpec>().unwrap().open_new().unwrap();
    let spec: StackSpec = text.to_str().unwrap().parse().unwrap();
    let stack = spec.build(&compare::layers(), &driver).unwrap();
    let own = driver.stream_create(millpond_core::driver::StreamFlags::NON_BLOCKING).unwrap();
    for stream in [StreamRef::LEGACY, own, own] {
        stack.allocate_bytes(1 << 20, stream).unwrap();
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

struct Program {
    child: Child,
    input: Option<ChildStdin>,
    /// Kept open, so that the program can print.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(folder: &Path, stack: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "top::watched_program", "--nocapture"])
            .env(STACK, stack)
            .env(watch::VARIABLE, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(output.any(|line| line.unwrap().ends_with("ready")), "it failed");
        Self { child, input, _output: output }
    }

    /// Ends the program like a program, so that it removes its socket.
    fn end(mut self) -> u32 {
        drop(self.input.take());
        self.child.wait().unwrap();
        self.child.id()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn top(folder: &Path, flags: &[&str]) -> Run {
    program().arg("top").args(flags).arg("--folder").arg(folder).output().unwrap().into()
}

/// Another user may make a folder of the usual name first, and answer for programs there.
#[test]
fn a_folder_that_another_user_can_change_is_not_asked() {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    let folder = Folder::new();
    let sockets = folder.path("millpond");
    fs::create_dir(&sockets).unwrap();
    let _slow = UnixListener::bind(sockets.join(watch::socket_name(std::process::id()))).unwrap();
    let listed = |mode| {
        fs::set_permissions(&sockets, Permissions::from_mode(mode)).unwrap();
        let mut program = program();
        program.env_remove(watch::VARIABLE).env("XDG_RUNTIME_DIR", folder.path("")).arg("top");
        Run::from(program.env("TMPDIR", folder.path("")).output().unwrap())
    };
    let slow = listed(0o700);
    assert!(slow.stderr.contains("does not answer") && slow.stdout.is_empty(), "{}", slow.stdout);
    let run = listed(0o777);
    assert_eq!((run.stderr.as_str(), run.stdout.contains("no watched program")), ("", true));
}

#[test]
fn two_programs_are_listed_and_shown() {
    let folder = Folder::new();
    let folder = folder.path("sockets");
    let first = Program::start(&folder, "cuda+pool+tracking");
    let second = Program::start(&folder, "cuda+statistics");
    let list = top(&folder, &[]);
    let row_of =
        |number: u32| list.stdout.lines().find(|line| line.trim_start().starts_with(&format!("{number} ")));
    for child in [&first.child, &second.child] {
        assert!(row_of(child.id()).unwrap().contains("top::watched_program"), "{}", list.stdout);
    }

    let number = first.child.id().to_string();
    let once = top(&folder, &[&number, "--once"]);
    assert_eq!(once.status, 0, "{}", once.stderr);
    for text in ["cuda+pool+tracking on sim:", "3MiB live in 3 blocks", "any or unknown", "without a tag"] {
        assert!(once.stdout.contains(text), "{text}: {}", once.stdout);
    }
    let json = top(&folder, &[&number, "--once", "--format", "json"]);
    let of: Value = serde_json::from_str(&json.stdout).unwrap();
    let stack = &of["stacks"][0];
    assert_eq!(
        (&of["process"], &of["format"]),
        (&Value::from(first.child.id()), &Value::from(watch::FORMAT))
    );
    let live: Vec<_> =
        stack["streams"].as_array().unwrap().iter().map(|it| it["blocks_in_use"].as_u64()).collect();
    assert!(live.contains(&Some(2)) && live.contains(&Some(1)), "{stack}");
    let both = top(&folder, &["--format", "json"]);
    let processes: Vec<u64> = both
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["process"].as_u64().unwrap())
        .collect();
    assert!(processes.len() == 2 && processes.is_sorted(), "{processes:?}");

    let number = second.end();
    assert!(!folder.join(watch::socket_name(number)).exists(), "the program removes its socket");
    first.kill();
    let list = top(&folder, &[]);
    assert_eq!(list.stdout, "no watched program runs; start one with MILLPOND_WATCH=1\n");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the list removes a killed program's socket");
}

/// Without a terminal, pictures follow each other until the program ends.
#[test]
fn a_program_that_ends_while_it_is_watched_is_told() {
    let folder = Folder::new();
    let folder = folder.path("sockets");
    let watched = Program::start(&folder, "cuda+pool");
    let number = watched.child.id().to_string();
    let mut top = program()
        .args(["top", &number, "-i", "0.1", "--folder"])
        .arg(&folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines().map(Result::unwrap);
    let is_picture = |line: &String| line.starts_with(&format!("process {number}, 1 stack, watched for"));
    assert!((0..3).all(|_| lines.any(|line| is_picture(&line))));
    assert!(lines.any(|line| line.contains("0 allocations/s")));
    watched.kill();
    assert_eq!(lines.last(), Some(format!("process {number} has ended")));
    assert!(top.wait().unwrap().success());
}

#[test]
fn a_process_that_cannot_be_watched_is_told() {
    let folder = Folder::new();
    let folder = folder.path("sockets");
    top(&folder, &["2147483647"]).fails_with(2, &["process 2147483647 does not exist"]);
    let own = std::process::id().to_string();
    top(&folder, &[&own]).fails_with(2, &["is not watched: start it with MILLPOND_WATCH=1", "sockets"]);
    top(&folder, &["python"]).fails_with(2, &["invalid value 'python'"]);
}
