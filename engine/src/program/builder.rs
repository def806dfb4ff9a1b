//! Builds a program from the events of a log.

use std::collections::VecDeque;

use millpond_core::DeviceId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::failed::FailedRequests;
use super::lanes::Lanes;
use super::store::OpWriter;
use super::{Limits, LogSummary, Op, OpKind, Program};
use crate::log::{Action, Event, LogError};
use crate::{Error, Result};

/// A slot is reused only if at least this many slots are free. Threads that replay freely wait for the
/// earlier blocks of a slot, so this distance lets them drift apart by that many frees. It also keeps
/// [`Op::ticket`] small: in a block of operations, a slot occurs at most 130 times.
const SLOT_DISTANCE: usize = 1024;

/// Builds a [`Program`] from a sequence of events.
#[derive(Debug)]
pub struct ProgramBuilder {
    ops: OpWriter,
    lanes: Lanes,
    live: FxHashMap<Place, Live>,
    failed: FailedRequests,
    live_bytes: u128,
    peak_live_bytes: u128,
    /// The live bytes of each stream, and their peak so far.
    stream_bytes: Vec<(u128, u128)>,
    /// Blocks whose address was allocated again without a free.
    lost: Vec<Live>,
    /// The number of operations on each slot.
    tickets: Vec<u16>,
    free_slots: VecDeque<u32>,
    devices: FxHashSet<DeviceId>,
    last_sequence: Option<u64>,
    durations: u64,
    duration_ns: u128,
    summary: LogSummary,
}

/// The place of a block. Two devices may have blocks at the same address.
type Place = (u64, Option<DeviceId>);

#[derive(Clone, Copy, Debug)]
struct Live {
    bytes: u64,
    slot: u32,
    lane: u32,
    line: u32,
    alignment_log2: u8,
}

impl ProgramBuilder {
    /// Returns a builder of an empty program.
    pub fn new(limits: Limits) -> Self {
        Self {
            ops: OpWriter::new(limits.ops_in_memory),
            lanes: Lanes::default(),
            live: FxHashMap::default(),
            failed: FailedRequests::default(),
            live_bytes: 0,
            peak_live_bytes: 0,
            stream_bytes: Vec::new(),
            lost: Vec::new(),
            tickets: Vec::new(),
            free_slots: VecDeque::new(),
            devices: FxHashSet::default(),
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

    /// Adds the operation of a row, if it has one.
    ///
    /// # Errors
    /// The temporary file cannot be written, or more blocks are live than a program can number (2^32).
    pub fn push(&mut self, event: &Event) -> Result<()> {
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
        let (bytes, alignment_log2) = (event.bytes, event.alignment.trailing_zeros() as u8);
        let slot = self.failed.failed(lane, bytes);
        let (kind, line) = (OpKind::AskAgain, clamped_line(event));
        self.write(Op { bytes, slot, lane, line, kind, alignment_log2, ticket: 0 })
    }

    fn allocate(&mut self, event: &Event, lane: u32) -> Result<()> {
        self.failed.succeeded(lane, event.bytes);
        self.summary.largest_request_bytes = self.summary.largest_request_bytes.max(event.bytes);
        let alignment_log2 = event.alignment.trailing_zeros() as u8;
        let line = clamped_line(event);
        let mut live = Live { bytes: event.bytes, slot: 0, lane, line, alignment_log2 };
        if event.pointer.is_null() {
            return self.emit(OpKind::AllocateNothing, live, lane, line);
        }
        live.slot = self.take_slot()?;
        if let Some(older) = self.live.insert((event.pointer.address(), event.device), live) {
            self.summary.duplicate_allocations += 1;
            self.summary.first_duplicate_allocation_line.get_or_insert(event.line);
            self.lost.push(older);
        }
        self.live_bytes += u128::from(event.bytes);
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        self.summary.live.push(self.live_bytes);
        let stream = self.lanes.stream(lane);
        if stream >= self.stream_bytes.len() {
            self.stream_bytes.resize(stream + 1, (0, 0));
        }
        let (of_stream, most) = &mut self.stream_bytes[stream];
        *of_stream += u128::from(event.bytes);
        *most = (*most).max(*of_stream);
        let blocks = (self.live.len() + self.lost.len()) as u64;
        self.summary.peak_live_blocks = self.summary.peak_live_blocks.max(blocks);
        self.emit(OpKind::Allocate, live, lane, line)
    }

    fn free(&mut self, event: &Event, lane: u32) -> Result<()> {
        let line = clamped_line(event);
        if event.pointer.is_null() {
            let nothing = Live { bytes: event.bytes, slot: 0, lane, line, alignment_log2: 8 };
            return self.emit(OpKind::FreeNothing, nothing, lane, line);
        }
        let Some(live) = self.live.remove(&(event.pointer.address(), event.device)) else {
            self.summary.unknown_frees += 1;
            self.summary.first_unknown_free_line.get_or_insert(event.line);
            return Ok(());
        };
        if live.bytes != event.bytes {
            self.summary.size_mismatches += 1;
            self.summary.first_size_mismatch_line.get_or_insert(event.line);
        }
        self.live_bytes -= u128::from(live.bytes);
        self.summary.live.push(self.live_bytes);
        self.stream_bytes[self.lanes.stream(live.lane)].0 -= u128::from(live.bytes);
        self.free_slots.push_back(live.slot);
        self.emit(OpKind::Free, live, lane, line)
    }

    fn emit(&mut self, kind: OpKind, block: Live, lane: u32, line: u32) -> Result<()> {
        self.summary.operations += 1;
        let Live { bytes, slot, alignment_log2, .. } = block;
        let mut op = Op { bytes, slot, lane, line, kind, alignment_log2, ticket: 0 };
        if matches!(kind, OpKind::Allocate | OpKind::Free) {
            let next = &mut self.tickets[slot as usize];
            op.ticket = *next;
            *next = next.wrapping_add(1);
        }
        self.write(op)
    }

    fn write(&mut self, op: Op) -> Result<()> {
        self.ops.push(op).map_err(Error::io("cannot write the replay's temporary file (see TMPDIR)"))
    }

    fn take_slot(&mut self) -> Result<u32> {
        if self.free_slots.len() >= SLOT_DISTANCE
            && let Some(slot) = self.free_slots.pop_front()
        {
            return Ok(slot);
        }
        let slot = u32::try_from(self.tickets.len()).map_err(|_| {
            millpond_core::Error::invalid_argument("the log has more than 2^32 blocks live at one time")
        })?;
        self.tickets.push(0);
        Ok(slot)
    }

    fn note_further_columns(&mut self, event: &Event) {
        if let Some(device) = event.device {
            self.devices.insert(device);
        }
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

    /// Returns the program of all events so far.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub fn finish(self) -> Result<Program> {
        let Self { ops, lanes, live, lost, failed, mut summary, .. } = self;
        summary.failed_requests = failed.count();
        let mut leaked: Vec<Live> = lost.into_iter().chain(live.into_values()).collect();
        leaked.sort_unstable_by_key(|block| (block.line, block.slot));
        summary.streams = lanes.stream_count();
        summary.threads = lanes.thread_count();
        summary.devices = self.devices.len();
        summary.peak_live_bytes = saturated(self.peak_live_bytes);
        summary.peak_live_bytes_apart = saturated(self.stream_bytes.iter().map(|(_, most)| most).sum());
        summary.leaked_blocks = leaked.len() as u64;
        summary.leaked_bytes = saturated(self.live_bytes);
        summary.logged_ns_per_op =
            (self.durations > 0).then(|| self.duration_ns as f64 / self.durations as f64);
        let leaks = leaked.iter().map(|&Live { bytes, slot, lane, line, alignment_log2 }| Op {
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
            ops: ops.finish().map_err(Error::io("cannot write the replay's temporary file (see TMPDIR)"))?,
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

fn saturated(bytes: u128) -> u64 {
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
    fn a_free_of_an_unknown_pointer_is_counted_and_left_out() {
        let program = program("1,0,free,0x100,10,0\n1,0,allocate,0x100,10,0\n1,0,free,0x100,10,0\n");
        assert_eq!(program.summary().unknown_frees, 1);
        assert_eq!(program.summary().first_unknown_free_line, Some(2));
        assert_eq!(ops(&program), [(OpKind::Allocate, 0, 10), (OpKind::Free, 0, 10)]);
        assert_eq!((program.summary().events, program.summary().operations), (3, 2));
    }

    #[test]
    fn an_allocation_at_a_live_address_is_a_new_block_and_the_old_one_a_leak() {
        let program = program("1,0,allocate,0x100,10,0\n1,0,allocate,0x100,20,0\n1,0,free,0x100,20,0\n");
        let summary = program.summary();
        assert_eq!((summary.duplicate_allocations, summary.peak_live_bytes), (1, 30));
        assert_eq!((summary.leaked_blocks, summary.leaked_bytes), (1, 10));
        assert_eq!(program.leaks().iter().map(|op| (op.slot, op.bytes)).collect::<Vec<_>>(), [(0, 10)]);
        assert_eq!(ops(&program).last(), Some(&(OpKind::Free, 1, 20)));
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
    fn issue_9_two_devices_may_have_blocks_at_one_address() {
        let text = "Thread,Time,Action,Pointer,Size,Stream,Device\n\
                    1,0,allocate,0x100,7,0,cuda:0\n1,0,allocate,0x100,9,0,cuda:1\n\
                    1,0,free,0x100,7,0,cuda:0\n1,0,free,0x100,9,0,cuda:1\n";
        let reader = LogReader::from_reader("log", text.as_bytes()).unwrap();
        let program = Program::read(reader, Limits::default()).unwrap();
        let summary = program.summary();
        assert_eq!((summary.duplicate_allocations, summary.size_mismatches), (0, 0));
        assert_eq!((summary.unknown_frees, summary.leaked_blocks, summary.peak_live_bytes), (0, 0, 16));
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
        assert_eq!(program.summary().size_mismatches, 1);
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
                    1,0,allocate,0x100,7,0,cuda:0,1,100\n1,0,free,0x100,7,0,cuda:1,1,300\n";
        let reader = LogReader::from_reader("log", text.as_bytes()).unwrap();
        let program = Program::read(reader, Limits::default()).unwrap();
        let summary = program.summary();
        assert_eq!((summary.devices, summary.out_of_sequence), (2, 1));
        assert_eq!(summary.logged_ns_per_op, Some(200.0));
    }
}
