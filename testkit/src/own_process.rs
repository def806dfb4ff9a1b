//! Runs a test in its own process, because the test forks, counts threads, or needs state that a process has
//! only once.

use std::ffi::OsStr;
use std::process::Command;

use millpond_core::environment::variable;

/// Set in a test's own process.
const IN_CHILD: &str = "MILLPOND_TEST_OWN_PROCESS";

/// Runs a test's body in a new process, where no other test runs.
///
/// # Panics
///
/// If the test fails there; the message has its output. Also if the closure is not written in the test
/// itself: its name is used to find the test.
///
/// ```no_run
/// # use millpond_testkit::own_process;
/// #[test]
/// fn a_fork_ends() {
///     own_process::run(|| {
///         // ...
///     });
/// }
/// ```
pub fn run<F: FnOnce()>(body: F) {
    run_with(&[], body);
}

/// Runs a test's body in a new process, as [`run`] does, with these additional environment variables. The
/// dynamic linker, for example, reads its variables only when a process starts.
///
/// # Panics
///
/// As for [`run`].
pub fn run_with<F: FnOnce()>(variables: &[(&str, &OsStr)], body: F) {
    if variable(IN_CHILD).is_some() {
        return body();
    }
    let closure = std::any::type_name::<F>();
    let (_, path) = closure.split_once("::").expect("a closure is in a crate");
    let test = path.trim_end_matches("::{{closure}}");
    let program = std::env::current_exe().expect("a test knows its file");
    let output = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(IN_CHILD, "1")
        .envs(variables.iter().copied())
        .output()
        .expect("a test can be run");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}", output.status);
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn the_body_runs_there_and_not_here() {
        run(|| assert!(std::env::var_os(IN_CHILD).is_some()));
    }

    #[test]
    fn what_fails_there_fails_here() {
        assert!(std::env::var_os(IN_CHILD).is_none(), "on purpose");
        let failed = catch_unwind(|| run(|| {})).expect_err("it fails");
        assert!(crate::text_of(&*failed).contains("on purpose"));
    }
}
