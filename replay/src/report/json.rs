//! JSON: one object for each log, each on a line of its own (for one log, plain JSON).
//!
//! ```text
//! version                       2; grows when a field is renamed, removed or means something else
//! device                        spec, name, simulated, total_bytes, free_bytes
//! log                           file, events, operations, streams, threads, peak_live_bytes,
//!                               peak_live_bytes_apart (the sum of the streams' own peaks),
//!                               leaked_blocks, unknown_frees, skipped_rows, rest_missing, and more;
//!                               imported_from and not_known[] if the file was imported
//! thread_order, passes          how it was replayed
//! stacks[]                      one for each stack, in the order asked for
//!   spec                        the stack as text
//!   status                      "ran", or "skipped" with `reason`, or "failed" with `error`
//!   operations                  in one pass
//!   failures                    allocations that failed in the first pass
//!   failures_all_passes         the same, summed over the passes
//!   first_failure               the first of them: line, error (may have several lines), report (what would
//!                               have helped, as the stack says it: `OutOfMemoryReport`; null if it does not)
//!   asked_again                 of requests that had failed when the log was written: requests, served,
//!                               unserved[] (the first hundred: line, bytes, missing_bytes, error, report);
//!                               null if the log has none
//!   misuses_all_passes          deallocations that the stack refused, summed over the passes
//!   peak_reserved_bytes_first   taken from the driver, the most up to the end of the first pass
//!   peak_reserved_bytes_last    the same in the last pass
//!   peak_live_bytes             of the log
//!   reserved_over_live_first, _last  the ratios of these; null if nothing is live
//!   reserved_over_apart_first   the first pass's peak over the least if streams share no memory
//!   largest_free_block_bytes    after the last pass; null if the stack keeps no statistics
//!   bytes_beyond_slack          taken in all passes beyond the slack of pools, since to save them would have
//!                               cost too many driver calls; null if the stack keeps no statistics
//!   ns_per_op_first, _best      of the first and the best pass: the stack's own time and the driver's; null
//!                               where the driver's is not known
//!   own_ns_per_op_first, _best  the stack's own time: outside of the driver, on this machine
//!   driver                      calls_building, calls_first_pass, calls_best_pass, calls_all_passes (with
//!                               building), failures (first pass), ns_first_pass, ns_best_pass (virtual if
//!                               the device is simulated), unmeasured[] (kinds that these lack),
//!                               by_kind (first pass): calls, failures, wall_ns
//!   ladder                      in the first pass: own_stream, ordered, completed, waited, grow, reclaim,
//!                               out_of_memory; null if the stack keeps no statistics
//!   frees                       in the first pass: cached, past_cache, heap (blocks freed to the thread's
//!                               cache, to its arena, under the pool's lock), evicted, flushed (blocks that
//!                               left a cache); null if the stack keeps no statistics
//!   passes[]                    one for each pass
//!     peak_taken_bytes          taken from the driver, the most at one time: in the first pass since before
//!                               the stack was built, in later ones since the pass began
//!     ns                        the stack's own time and the driver's; null where ns_per_op_first is
//!     driver_calls              in the pass
//!     failures                  allocations that failed
//! ```
//!
//! The types say more: [`Comparison`], [`LogSummary`](millpond_engine::program::LogSummary) and
//! [`StackFigures`](crate::compare::StackFigures).

use std::io::{self, Write};

use super::Reporter;
use crate::compare::Comparison;

pub(super) struct JsonReporter<W> {
    out: W,
}

impl<W> JsonReporter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out }
    }
}

impl<W: Write> Reporter for JsonReporter<W> {
    fn report(&mut self, comparison: &Comparison) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, comparison)?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }
}
