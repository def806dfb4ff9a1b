//! Builds a program from the events of a log.

use std::collections::VecDeque;
use std::sync::Arc;

use millpond_core::DeviceId;
use rustc_hash::FxHashSet;

use super::failed::FailedRequests;
use super::lanes::Lanes;
use super::store::{BLOCK_OPS, OpWriter};
use super::{Limits, LogSummary, Op, OpKind, Program};
use crate::log::{Action, ChosenDevice, Event, Freed, LiveBlocks, LogError};
use crate::{Error, Result};

/// A slot is reused only if at least this number of slots are free. Threads that run freely wait for the
/// earlier blocks of a slot. So this distance lets the threads drift apart by as many frees. It also keeps
/// [`Op::ticket`] small: in a block of operations, a slot occurs at most 130 times.
const SLOT_DISTANCE: usize = 1024;

/// Builds a [`Program`] from a sequence of events.
#[derive(Debug)]
pub struct ProgramBuilder {
    ops: OpWriter,
    lanes: Lanes,
    live: LiveBlocks<u64, Live>,
    /// Allocations of the blocks from before the log, which only their frees reveal.
    early: Vec<(u64, Op)>,
    failed: FailedRequests<u32>,
    live_bytes: Level,
    live_blocks: Level,
    /// The most bytes that were live together with a failed request. Bytes from before the log are not
    /// included.
    most_needed: i128,
    largest_failure: u64,
    /// The live bytes of each stream.
    stream_bytes: Vec<Level>,
    /// The number of operations on each slot.
    tickets: Vec<u16>,
    free_slots: VecDeque<u32>,
    devices: FxHashSet<DeviceId>,
    device: ChosenDevice,
    last_sequence: Option<u64>,
    durations: u64,
    duration_ns: u128,
    summary: LogSummary,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    slot: u32,
    lane: u32,
    line: u32,
    alignment_log2: u8,
}

/// A sum whose starting amount is known only at the end.
#[derive(Clone, Copy, Default, Debug)]
struct Level {
    /// The sum, without the amount at the start.
    now: i128,
    most: i128,
    /// The amount at the start.
    before: i128,
}

impl Level {
    fn add(&mut self, amount: u64) {
        self.now += i128::from(amount);
        self.most = self.most.max(self.now);
    }

    fn take(&mut self, amount: u64) {
        self.now -= i128::from(amount);
    }

    /// Adds an amount that was there from the start.
    fn take_early(&mut self, amount: u64) {
        self.take(amount);
        self.before += i128::from(amount);
    }

    fn end(&self) -> i128 {
        self.now + self.before
    }

    fn peak(&self) -> i128 {
        self.most + self.before
    }
}

impl ProgramBuilder {
    /// Returns a builder of an empty program.
    pub fn new(limits: Limits) -> Self {
        Self {
            ops: OpWriter::new(limits.ops_in_memory),
            lanes: Lanes::default(),
            live: LiveBlocks::default(),
            early: Vec::new(),
            failed: FailedRequests::default(),
            live_bytes: Level::default(),
            live_blocks: Level::default(),
            most_needed: 0,
            largest_failure: 0,
            stream_bytes: Vec::new(),
            tickets: Vec::new(),
            free_slots: VecDeque::new(),
            devices: FxHashSet::default(),
            device: ChosenDevice::default(),
            last_sequence: None,
            durations: 0,
            duration_ns: 0,
            summary: LogSummary::default(),
        }
    }

    /// Counts a row that cannot be read.
    pub fn skip(&mut self, error: &LogError) {
        self.summary.skipped_rows += 1;
        self.summary.first_skipped_row.get_or_insert_with(|| error.to_string());
    }

    /// Adds the operation of a row, if it has one. Rows of other devices than the first row's are only
    /// counted, because a replay uses one device.
    ///
    /// # Errors
    /// The temporary file cannot be written, or more blocks are live than a program can number (2^32).
    pub fn push(&mut self, event: &Event) -> Result<()> {
        self.devices.extend(event.device);
        if !self.device.takes(event.device) {
            return Ok(());
        }
        self.summary.events += 1;
        self.note_further_columns(event);
        let lane = self.lanes.of(event);
        match event.action {
            Action::Allocate => self.allocate(event, lane),
            Action::Free => self.free(event, lane),
            Action::AllocateFailure => self.fail(event, lane),
        }
    }

    /// Adds a failed request. A replay may repeat it, but it is not an operation of the log.
    fn fail(&mut self, event: &Event, lane: u32) -> Result<()> {
        self.summary.failed_allocations += 1;
        self.largest_failure = self.largest_failure.max(event.bytes);
        self.most_needed = self.most_needed.max(self.live_bytes.now + i128::from(event.bytes));
        let (bytes, alignment_log2) = (event.bytes, event.alignment.trailing_zeros() as u8);
        let slot = self.failed.failed(lane, bytes);
        let (kind, line) = (OpKind::AskAgain, clamped_line(event));
        self.write(Op { bytes, slot, lane, line, kind, alignment_log2, ticket: 0 })
    }

    fn allocate(&mut self, event: &Event, lane: u32) -> Result<()> {
        let bytes = event.bytes;
        self.failed.succeeded(lane, bytes);
        self.summary.largest_request_bytes = self.summary.largest_request_bytes.max(bytes);
        let alignment_log2 = event.alignment.trailing_zeros() as u8;
        let line = clamped_line(event);
        let mut live = Live { slot: 0, lane, line, alignment_log2 };
        if event.pointer.is_null() {
            return self.emit(OpKind::AllocateNothing, bytes, live, lane, line);
        }
        live.slot = self.take_slot()?;
        let address = event.pointer.address();
        if let Some((bytes, older)) = self.live.allocate(address, bytes, event.line, live) {
            self.end(bytes, older, older.lane, line)?;
        }
        self.live_bytes.add(bytes);
        self.live_blocks.add(1);
        self.summary.live.push(self.live_bytes.now);
        self.of_stream(lane).add(bytes);
        self.emit(OpKind::Allocate, bytes, live, lane, line)
    }

    fn free(&mut self, event: &Event, lane: u32) -> Result<()> {
        let (line, bytes) = (clamped_line(event), event.bytes);
        if event.pointer.is_null() {
            let nothing = Live { slot: 0, lane, line, alignment_log2: 8 };
            return self.emit(OpKind::FreeNothing, bytes, nothing, lane, line);
        }
        let address = event.pointer.address();
        match self.live.free(address, bytes, event.line) {
            Freed::Block(bytes, live) => {
                self.end(bytes, live, lane, line)?;
                self.summary.live.push(self.live_bytes.now);
                Ok(())
            }
            Freed::Before => self.free_early(event, lane, line),
            Freed::Again => Ok(()),
        }
    }

    /// Frees a block that the log allocated.
    fn end(&mut self, bytes: u64, block: Live, lane: u32, line: u32) -> Result<()> {
        self.live_bytes.take(bytes);
        self.live_blocks.take(1);
        self.of_stream(block.lane).take(bytes);
        self.free_slots.push_back(block.slot);
        self.emit(OpKind::Free, bytes, block, lane, line)
    }

    /// Frees a block that is older than the log. Also adds its allocation to the start of the program. The
    /// block's slot must be one that no earlier operation uses.
    fn free_early(&mut self, event: &Event, lane: u32, line: u32) -> Result<()> {
        let (bytes, alignment_log2) = (event.bytes, event.alignment.trailing_zeros() as u8);
        let slot = self.new_slot()?;
        let kind = OpKind::Allocate;
        let allocate = Op { bytes, slot, lane, line, kind, alignment_log2, ticket: 0 };
        self.tickets[slot as usize] = 1;
        self.early.push((event.pointer.address(), allocate));
        self.summary.operations += 1;
        self.summary.largest_request_bytes = self.summary.largest_request_bytes.max(bytes);
        self.live_bytes.take_early(bytes);
        self.live_blocks.take_early(1);
        self.summary.live.push(self.live_bytes.now);
        self.of_stream(lane).take_early(bytes);
        self.free_slots.push_back(slot);
        self.emit(OpKind::Free, bytes, Live { slot, lane, line, alignment_log2 }, lane, line)
    }

    /// Returns the live bytes of a lane's stream.
    fn of_stream(&mut self, lane: u32) -> &mut Level {
        let stream = self.lanes.stream(lane);
        if stream >= self.stream_bytes.len() {
            self.stream_bytes.resize(stream + 1, Level::default());
        }
        &mut self.stream_bytes[stream]
    }

    fn emit(&mut self, kind: OpKind, bytes: u64, block: Live, lane: u32, line: u32) -> Result<()> {
        self.summary.operations += 1;
        let Live { slot, alignment_log2, .. } = block;
        let mut op = Op { bytes, slot, lane, line, kind, alignment_log2, ticket: 0 };
        if matches!(kind, OpKind::Allocate | OpKind::Free) {
            let next = &mut self.tickets[slot as usize];
            op.ticket = *next;
            *next = next.wrapping_add(1);
        }
        self.write(op)
    }

    fn write(&mut self, op: Op) -> Result<()> {
        self.ops.push(op).map_err(Error::io(
            "cannot write the replay's temporary file; set TMPDIR to a folder with more space",
        ))
    }

    fn take_slot(&mut self) -> Result<u32> {
        if self.free_slots.len() >= SLOT_DISTANCE
            && let Some(slot) = self.free_slots.pop_front()
        {
            return Ok(slot);
        }
        self.new_slot()
    }

    fn new_slot(&mut self) -> Result<u32> {
        let slot = u32::try_from(self.tickets.len()).map_err(|_| {
            millpond_core::Error::invalid_argument(
                "the log has more than 2^32 blocks live at one time; replay a shorter log",
            )
        })?;
        self.tickets.push(0);
        Ok(slot)
    }

    fn note_further_columns(&mut self, event: &Event) {
        if let Some(sequence) = event.sequence {
            self.summary.out_of_sequence +=
                u64::from(self.last_sequence.is_some_and(|last| sequence <= last));
            self.last_sequence = Some(sequence);
        }
        if let Some(ns) = event.duration_ns {
            self.durations += 1;
            self.duration_ns += u128::from(ns);
        }
    }

    /// Returns the program of all events that were added. The blocks that are older than the log come first,
    /// in the order of their addresses.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub fn finish(self) -> Result<Program> {
        let Self { ops, lanes, live, mut early, failed, mut summary, .. } = self;
        summary.failed_requests = failed.count();
        let (left, flaws) = live.finish();
        summary.flaws = flaws;
        let mut leaked: Vec<(u64, Live)> = left.collect();
        leaked.sort_unstable_by_key(|(_, block)| (block.line, block.slot));
        early.sort_by_key(|(address, _)| *address);
        let early: Vec<Op> = early.into_iter().map(|(_, op)| op).collect();
        summary.streams = lanes.stream_count();
        summary.threads = lanes.thread_count();
        summary.devices = self.devices.len();
        summary.other_device_rows = self.device.left_out();
        summary.live.raise(self.live_bytes.before);
        summary.peak_live_bytes = saturated(self.live_bytes.peak());
        let needed = self.most_needed + self.live_bytes.before;
        summary.peak_needed_bytes = saturated(needed.max(self.live_bytes.peak()));
        summary.largest_wanted_bytes = summary.largest_request_bytes.max(self.largest_failure);
        summary.peak_live_blocks = saturated(self.live_blocks.peak());
        summary.peak_live_bytes_apart = saturated(self.stream_bytes.iter().map(Level::peak).sum());
        summary.leaked_blocks = leaked.len() as u64;
        summary.leaked_bytes = saturated(self.live_bytes.end());
        summary.logged_ns_per_op =
            (self.durations > 0).then(|| self.duration_ns as f64 / self.durations as f64);
        let leaks = leaked.iter().map(|&(bytes, Live { slot, lane, line, alignment_log2 })| Op {
            bytes,
            slot,
            lane,
            line,
            kind: OpKind::Free,
            alignment_log2,
            ticket: 0, // leaks are freed after the pass, one by one
        });
        Ok(Program {
            leaks: leaks.collect(),
            early: early.chunks(BLOCK_OPS).map(Arc::from).collect(),
            ops: ops.finish().map_err(Error::io(
                "cannot write the replay's temporary file; set TMPDIR to a folder with more space",
            ))?,
            lanes: lanes.into_vec(),
            slots: self.tickets.len() as u32,
            retries: failed.into_retries(),
            summary,
        })
    }
}

fn clamped_line(event: &Event) -> u32 {
    u32::try_from(event.line).unwrap_or(u32::MAX)
}

fn saturated(bytes: i128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogReader;

    fn program(rows: &str) -> Program {
        let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}");
        let reader = LogReader::from_reader("log", text.as_bytes()).unwrap();
        Program::read(reader, Limits::default()).unwrap()
    }

    fn ops(program: &Program) -> Vec<(OpKind, u32, u64)> {
        let ops = (0..program.block_count()).flat_map(|block| program.block(block).unwrap().to_vec());
        ops.map(|op| (op.kind, op.slot, op.bytes)).collect()
    }

    #[test]
    fn an_address_used_again_is_another_block() {
        let row = "1,0,allocate,0x100,10,0\n1,0,free,0x100,10,0\n";
        let program = program(&row.repeat(3));
        assert_eq!(program.summary().leaked_blocks, 0);
        assert_eq!(program.summary().peak_live_bytes, 10);
        let slots: Vec<u32> = ops(&program).iter().map(|op| op.1).collect();
        assert_eq!(slots, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn slots_are_bounded_by_live_blocks_not_by_rows() {
        let row = "1,0,allocate,0x100,10,0\n1,0,free,0x100,10,0\n";
        assert_eq!(program(&row.repeat(10_000)).slots() as usize, SLOT_DISTANCE);
    }

    #[test]
    fn a_block_that_is_only_freed_was_live_from_the_start() {
        let program = program(
            "1,0,allocate,0x100,10,0\n1,0,free,0x900,30,5\n1,0,allocate,0x900,25,0\n1,0,free,0x800,7,0\n",
        );
        let summary = program.summary();
        let flaws = &summary.flaws;
        assert_eq!((flaws.unknown_frees, flaws.first_unknown_free_line), (2, Some(3)));
        assert_eq!(flaws.bytes_before, 37);
        // 37 bytes at the start, 47 with the first block, then 17, 42 and 35.
        assert_eq!((summary.peak_live_bytes, summary.leaked_bytes), (47, 35));
        assert_eq!((summary.peak_live_blocks, summary.leaked_blocks), (3, 2));
        assert_eq!(summary.peak_live_bytes_apart, 30 + 42);
        assert_eq!((summary.events, summary.operations), (4, 6));
        assert_eq!(summary.largest_request_bytes, 30);
        let (allocate, free) = (OpKind::Allocate, OpKind::Free);
        let ops: Vec<_> = ops(&program).iter().map(|op| (op.0, op.2)).collect();
        assert_eq!(
            ops,
            [(allocate, 7), (allocate, 30), (allocate, 10), (free, 30), (allocate, 25), (free, 7)]
        );
        let notes = summary.notes();
        assert!(notes[0].contains("at least 37B"), "{notes:?}");
    }

    #[test]
    fn a_second_free_is_left_out() {
        let program = program("1,0,allocate,0x100,10,0\n1,0,free,0x100,10,0\n1,0,free,0x100,10,0\n");
        let summary = program.summary();
        assert_eq!((summary.flaws.repeated_frees, summary.flaws.unknown_frees), (1, 0));
        assert_eq!((summary.flaws.first_repeated_free_line, summary.flaws.bytes_before), (Some(4), 0));
        assert_eq!(ops(&program).len(), 2);
    }

    #[test]
    fn an_allocation_at_a_live_address_ends_the_older_block() {
        let program = program("1,0,allocate,0x100,10,0\n1,0,allocate,0x100,20,0\n1,0,free,0x100,20,0\n");
        let summary = program.summary();
        assert_eq!((summary.flaws.duplicate_allocations, summary.peak_live_bytes), (1, 20));
        assert_eq!((summary.leaked_blocks, summary.leaked_bytes, summary.peak_live_blocks), (0, 0, 1));
        let (allocate, free) = (OpKind::Allocate, OpKind::Free);
        assert_eq!(ops(&program), [(allocate, 0, 10), (free, 0, 10), (allocate, 1, 20), (free, 1, 20)]);
    }

    #[test]
    fn failures_nothing_and_leaks() {
        let program = program(
            "1,0,allocate failure,(nil),99,0\n1,0,allocate,(nil),0,0x2\n1,0,free,(nil),0,0x2\n\
             1,0,allocate,0x100,7,0x5\n",
        );
        let summary = program.summary();
        assert_eq!((summary.failed_allocations, summary.failed_requests, summary.operations), (1, 1, 3));
        assert_eq!((summary.leaked_blocks, summary.leaked_bytes), (1, 7));
        assert_eq!((summary.peak_live_bytes, summary.largest_request_bytes), (7, 7));
        assert_eq!((summary.peak_needed_bytes, summary.largest_wanted_bytes), (99, 99));
        let nothing = [(OpKind::AllocateNothing, 0, 0), (OpKind::FreeNothing, 0, 0)];
        assert_eq!(ops(&program)[..3], [&[(OpKind::AskAgain, 0, 99)][..], &nothing].concat());
        assert_eq!((summary.streams, summary.threads), (3, 1));
        assert_eq!(summary.notes().len(), 2);
    }

    #[test]
    fn issue_9_failures_before_a_success_of_their_like_are_one_request() {
        let failure = |thread: u32, bytes: u32, stream: u32| {
            format!("{thread},0,allocate failure,(nil),{bytes},{stream}\n")
        };
        let rows = [
            "1,0,allocate,0x100,7,0\n".to_owned(),
            failure(1, 99, 0),
            "1,0,free,0x100,7,0\n".to_owned(),
            failure(1, 99, 0),
            failure(2, 99, 0), // another thread
            failure(1, 98, 0), // another size
            failure(1, 99, 5), // another stream
            failure(1, 99, 0),
            "1,0,allocate,0x200,99,0\n".to_owned(),
            failure(1, 99, 0), // a new request: the previous one was served
            failure(2, 99, 0), // no such success follows
        ];
        let program = program(&rows.concat());
        let asked: Vec<u32> = (0..program.block_count())
            .flat_map(|block| program.block(block).unwrap().to_vec())
            .filter(|op| op.kind == OpKind::AskAgain && !program.is_retry(op))
            .map(|op| op.line)
            .collect();
        assert_eq!(asked, [3, 6, 7, 8, 11, 12]);
        let summary = program.summary();
        assert_eq!((summary.failed_allocations, summary.failed_requests), (8, 6));
    }

    #[test]
    fn of_a_log_of_two_devices_the_first_one_s_rows_are_replayed() {
        let text = "Thread,Time,Action,Pointer,Size,Stream,Device\n\
                    1,0,allocate,0x100,7,0,cuda:1\n1,0,allocate,0x100,9,0,cuda:0\n\
                    1,0,free,0x100,7,0,cuda:1\n1,0,free,0x100,9,0,cuda:0\n1,0,allocate,0x200,5,0,sim:1\n";
        let reader = LogReader::from_reader("log", text.as_bytes()).unwrap();
        let program = Program::read(reader, Limits::default()).unwrap();
        let summary = program.summary();
        assert!(summary.flaws.sentences().is_empty());
        assert_eq!((summary.leaked_blocks, summary.peak_live_bytes, summary.events), (0, 7, 2));
        assert_eq!((summary.devices, summary.other_device_rows), (3, 3));
        assert!(summary.notes()[0].starts_with("3 rows of other devices left out"));
    }

    #[test]
    fn streams_apart_need_their_own_peaks_together() {
        let row = |action: &str, address: u32, bytes: u32, stream: u32| {
            format!("1,00:00:00.0,{action},{address:#x},{bytes},{stream}\n")
        };
        let rows = [
            row("allocate", 1, 10, 3),
            row("allocate", 2, 5, 4),
            row("free", 1, 10, 4),
            row("allocate", 3, 12, 4),
            row("allocate", 4, 4, 3),
        ];
        let program = program(&rows.concat());
        let summary = program.summary();
        // A block counts for the stream that allocated it, even if another frees it: peaks of 10 and 17,
        // together 21 at once.
        assert_eq!((summary.peak_live_bytes, summary.peak_live_bytes_apart), (21, 27));
    }

    #[test]
    fn the_free_keeps_its_stream_and_the_size_of_its_allocation() {
        let program = program("1,0,allocate,0x100,7,0x5\n2,0,free,0x100,8,0x6\n");
        assert_eq!(program.summary().flaws.size_mismatches, 1);
        let block = program.block(0).unwrap();
        assert_eq!(block[1].bytes, 7);
        let streams: Vec<u32> = block.iter().map(|op| program.lanes()[op.lane as usize].stream).collect();
        assert_eq!(streams, [0, 1]);
    }

    #[test]
    fn per_thread_streams_are_as_many_as_threads_and_legacy_ones_are_one() {
        let streams = ["0x2", "0", "0x1", "0x0", "0x77"];
        let rows: String = (0..10)
            .map(|row| format!("{},0,allocate,{:#x},1,{}\n", row % 2, 0x100 + row, streams[row / 2]))
            .collect();
        assert_eq!(program(&rows).summary().streams, 2 + 1 + 1);
    }

    #[test]
    fn huge_sizes_do_not_overflow_the_sum() {
        let program = program("1,0,allocate,0x100,18446744073709551615,0\n1,0,allocate,0x200,9,0\n");
        assert_eq!(program.summary().peak_live_bytes, u64::MAX);
    }

    #[test]
    fn sequence_and_durations_are_used_when_there() {
        let text = "Thread,Time,Action,Pointer,Size,Stream,Device,Sequence,DurationNs\n\
                    1,0,allocate,0x100,7,0,cuda:0,1,100\n1,0,free,0x100,7,0,cuda:0,1,300\n";
        let reader = LogReader::from_reader("log", text.as_bytes()).unwrap();
        let program = Program::read(reader, Limits::default()).unwrap();
        let summary = program.summary();
        assert_eq!((summary.devices, summary.out_of_sequence), (1, 1));
        assert_eq!(summary.logged_ns_per_op, Some(200.0));
    }
}
