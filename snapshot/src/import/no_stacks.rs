//! Says how a program whose log has no call stacks can record them.

use crate::recording::Source;

/// Returns the sentence that a log with this format does not record code lines, and how a program in Python
/// records them.
pub(super) fn no_stacks(format: &str) -> String {
    let install = match format {
        Source::RMM => "call `millpond.compat.rmm.install()` before the first `import rmm`, ",
        _ => "",
    };
    format!(
        "the log does not record which code requested a block; to record code lines in Python, {install}use \
         a stack with a pool, call `millpond.record_memory_history()` before the first allocation and \
         `millpond.memory_snapshot(\"snapshot.pickle\")` at the end, and give that file to `explain`"
    )
}
