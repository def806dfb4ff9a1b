//! Says how a program whose log has no call stacks can record them.

use crate::recording::Source;

/// Returns the sentence that a log with this format does not record code lines, and how a program records
/// them.
pub(super) fn no_stacks(format: &str) -> String {
    let install = match format {
        Source::RMM => "call `millpond.compat.rmm.install()` before the first `import rmm`, ",
        _ => "",
    };
    // Programs in Rust write millpond's logs, too.
    let in_rust = match format {
        Source::MILLPOND_LOG => {
            "; in Rust, add `recording:stacks=allocations` to the stack, write the bytes of \
             `millpond::memory_snapshot(&stack)?` to a file when memory is out, and give `explain` that file \
             (a release build needs `debug = 1` in its profile)"
        }
        _ => "",
    };
    format!(
        "the log does not record which code requested a block; to record code lines in Python, {install}use \
         a stack with a pool, call `millpond.record_memory_history()` before the first allocation and \
         `millpond.memory_snapshot(\"snapshot.pickle\")` at the end, and give that file to `explain`{in_rust}"
    )
}
