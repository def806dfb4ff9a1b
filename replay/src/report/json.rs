//! JSON: one object per log, each on its own line (plain JSON for a single log).
//!
//! ```text
//! version                       2; grows when a field is renamed, removed or changes its meaning
//! device                        spec, name, simulated, total_bytes, free_bytes
//! log                           file, events, operations, streams, threads, peak_live_bytes,
//!                               peak_live_bytes_apart (the sum of each stream's own peak),
//!                               peak_needed_bytes (with the requests that failed), bytes_before (the least
//!                               that the program had allocated before the log began), leaked_blocks,
//!                               unknown_frees, skipped_rows, rest_missing, and more;
//!                               imported_from, recorded_with (the model of the program's allocator, as a
//!                               stack), private_pools (of CUDA graphs: the replay merges them),
//!                               available_bytes (the most that the program's device had for its allocator
//!                               when a request failed) and not_known[] if the file was imported
//! thread_order, passes          how it was replayed
//! stacks[]                      one for each stack, in the requested order
//!   spec                        the stack as text
//!   status                      "ran", or "skipped" with `reason`, or "failed" with `error`
//!   operations                  in one pass
//!   failures                    allocations that failed in the first pass
//!   failures_all_passes         the same, summed over the passes
//!   first_failure               the first of them: line, error (may have several lines), report (the stack's
//!                               advice, an `OutOfMemoryReport`; null if it gives none)
//!   asked_again                 the requests that had failed when the log was written: requests, served,
//!                               unserved[] (the first hundred: line, bytes, missing_bytes, error, report);
//!                               null if the log has none
//!   misuses_all_passes          deallocations that the stack refused, summed over the passes
//!   peak_reserved_bytes_first   the most bytes taken from the driver, up to the end of the first pass
//!   peak_reserved_bytes_last    the same in the last pass
//!   peak_reserved_bytes_asked_again  the same with the requests that had failed; null if the log has none
//!   peak_live_bytes             of the log
//!   peak_needed_bytes           of the log, with the requests that had failed
//!   reserved_over_live_first, _last  the ratios of these; null if nothing is live
//!   reserved_over_apart_first   the first peak over the least memory if streams share none
//!   largest_free_block_bytes    after the last pass; null if the stack keeps no statistics of its own: an
//!                               adaptor that counts requests does not know the free memory below it
//!   bytes_beyond_slack          bytes that pools took beyond their slack in all passes to save driver calls;
//!                               null if the stack keeps no statistics
//!   ns_per_op_first, _best      of the first and the best pass: the stack's own time and the driver's; null
//!                               if the driver's time is not known
//!   own_ns_per_op_first, _best  the stack's own time: outside of the driver, on this machine
//!   driver                      calls_building, calls_first_pass, calls_best_pass, calls_all_passes (with
//!                               building), failures (first pass), ns_first_pass, ns_best_pass (virtual if
//!                               the device is simulated), unmeasured[] (kinds without a measured time),
//!                               by_kind (first pass): calls, failures, wall_ns
//!   ladder                      in the first pass: own_stream, ordered, completed, waited, grow, reclaim,
//!                               out_of_memory; null if the stack keeps no statistics
//!   frees                       in the first pass: cached, past_cache, heap (blocks freed to the thread's
//!                               cache, to its arena, under the pool's lock), evicted, flushed (blocks that
//!                               left a cache); null if the stack keeps no statistics
//!   passes[]                    one for each pass
//!     peak_taken_bytes          the most bytes taken from the driver at one time: in the first pass, since
//!                               before the stack was built; in later passes, since the pass began
//!     ns                        the stack's own time and the driver's; null if ns_per_op_first is
//!     driver_calls              in the pass
//!     failures                  allocations that failed
//! ```
//!
//! See also the types [`Comparison`], [`LogSummary`](millpond_engine::program::LogSummary) and
//! [`StackFigures`](crate::compare::StackFigures).

use std::io::{self, Write};

use millpond_engine::text::write_json;

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
        write_json(&mut self.out, comparison)?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }
}
