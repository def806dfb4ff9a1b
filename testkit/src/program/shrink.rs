//! Shrinks a failed program.

use std::collections::BTreeSet;

use super::op::{Op, Stream};
use super::{Build, Config, Failure, replay};

/// How many other schedules are tried. Fewer operations may fail only if the work runs in another order.
const SCHEDULES: u64 = 12;

/// Programs up to this length also lose operations in pairs.
const PAIRS_UP_TO: usize = 60;

/// Removes operations from a failing program, and simplifies the other operations, as long as the same rule
/// is broken.
///
/// It first removes smaller and smaller groups of operations (Zeller's delta debugging), and then pairs. Then
/// it merges streams, and simplifies sizes and alignments. The result is deterministic.
pub fn shrink(failure: Failure, config: &Config, build: &Build<'_>) -> Failure {
    let mut shrinking =
        Shrinking { seed: failure.seed, found: failure.operations_found, best: failure, config, build };
    let mut others = 0;
    loop {
        let before = shrinking.best.operations.clone();
        shrinking.remove_stretches(others);
        shrinking.join_streams(others);
        shrinking.simplify(others);
        if shrinking.best.operations == before {
            shrinking.remove_pairs(others);
        }
        match (shrinking.best.operations == before, others) {
            (true, SCHEDULES) => break,
            (true, _) => others = SCHEDULES,
            (false, _) => {}
        }
    }
    Failure { seed: shrinking.seed, operations_found: shrinking.found, ..shrinking.best }
}

struct Shrinking<'a> {
    seed: u64,
    found: usize,
    best: Failure,
    config: &'a Config,
    build: &'a Build<'a>,
}

impl Shrinking<'_> {
    /// Runs these operations under the current schedule and under `others` more. Keeps the operations if they
    /// break the same rule.
    fn attempt(&mut self, operations: &[Op], others: u64) -> bool {
        let schedules = std::iter::once(self.best.schedule).chain(0..others);
        for schedule in schedules {
            if let Err(failure) = replay(schedule, operations, self.config, self.build)
                && failure.kind == self.best.kind
                && failure.operations.len() <= operations.len()
            {
                self.best = *failure;
                return true;
            }
        }
        false
    }

    fn remove_stretches(&mut self, others: u64) {
        let mut length = self.best.operations.len().next_power_of_two() / 2;
        while length > 0 {
            let mut start = 0;
            while start < self.best.operations.len() {
                let mut fewer = self.best.operations.clone();
                fewer.drain(start..(start + length).min(fewer.len()));
                if !self.attempt(&fewer, others) {
                    start += length;
                }
            }
            length /= 2;
        }
    }

    fn remove_pairs(&mut self, others: u64) {
        let mut first = 0;
        while first < self.best.operations.len() && self.best.operations.len() <= PAIRS_UP_TO {
            let mut second = first + 1;
            while second < self.best.operations.len() {
                let mut fewer = self.best.operations.clone();
                fewer.remove(second);
                fewer.remove(first);
                if !self.attempt(&fewer, others) {
                    second += 1;
                }
            }
            first += 1;
        }
    }

    /// Replaces one stream by another everywhere.
    fn join_streams(&mut self, others: u64) {
        let streams: BTreeSet<Stream> = self.best.operations.iter().filter_map(|op| stream_of(*op)).collect();
        for &gone in streams.iter().rev() {
            for &kept in streams.iter().filter(|&&kept| kept < gone) {
                let rename = |op: &Op| with_stream(*op, |stream| if stream == gone { kept } else { stream });
                let operations: Vec<Op> = self.best.operations.iter().map(rename).collect();
                if operations != self.best.operations && self.attempt(&operations, others) {
                    break;
                }
            }
        }
    }

    fn simplify(&mut self, others: u64) {
        let mut index = 0;
        while index < self.best.operations.len() {
            for simpler in simpler(self.best.operations[index]) {
                let mut operations = self.best.operations.clone();
                operations[index] = simpler;
                if self.attempt(&operations, others) {
                    break;
                }
            }
            index += 1;
        }
    }
}

/// Simpler forms of an operation, simplest first.
fn simpler(op: Op) -> Vec<Op> {
    let Op::Allocate { block, stream, bytes, alignment } = op else { return Vec::new() };
    let smaller = [256, 1 << 20, bytes.next_power_of_two() / 2, bytes & !255];
    let smaller =
        smaller.into_iter().filter(|&plain| 0 < plain && plain < bytes).map(|plain| (plain, alignment));
    let aligned = (alignment > 256).then_some((bytes, 256));
    let forms = smaller.chain(aligned);
    forms.map(|(bytes, alignment)| Op::Allocate { block, stream, bytes, alignment }).collect()
}

fn stream_of(op: Op) -> Option<Stream> {
    let mut found = None;
    with_stream(op, |stream| {
        found = Some(stream);
        stream
    });
    found
}

fn with_stream(mut op: Op, mut change: impl FnMut(Stream) -> Stream) -> Op {
    match &mut op {
        Op::Allocate { stream, .. }
        | Op::Deallocate { stream, .. }
        | Op::Read { stream, .. }
        | Op::Write { stream, .. }
        | Op::Record { stream, .. }
        | Op::Wait { stream, .. }
        | Op::SyncStream { stream }
        | Op::DestroyStream { stream }
        | Op::BeginCapture { stream, .. }
        | Op::EndCapture { stream }
        | Op::LaunchGraph { stream, .. }
        | Op::OpenScope { stream, .. }
        | Op::CloseScope { stream }
        | Op::Misuse { stream, .. } => *stream = change(*stream),
        Op::QueryEvent { .. }
        | Op::SyncEvent { .. }
        | Op::SyncDevice
        | Op::Trim { .. }
        | Op::PassTime { .. }
        | Op::FailCall { .. }
        | Op::DropScope { .. }
        | Op::Device { .. }
        | Op::Thread { .. }
        | Op::ResetContext
        | Op::LoseDevice => {}
    }
    op
}
