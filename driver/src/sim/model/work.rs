//! Submitted work that is not done: one queue for each stream.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::access::Action;
use super::clock::{Epoch, Slot};
use super::memory::{Contents, Piece, Pieces};
use super::order::Waits;
use super::rng::Rng;
use super::violation::{ViolationKind, ViolationLog};
use crate::sim::config::{DEEPEST_QUEUE, Schedule};

/// One access of a kernel to one piece of memory.
pub(crate) type KernelAccess = (Piece, Action);

/// The effect of work when it runs.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Work that only holds its place in the order.
    Nothing,
    Kernel(SmallVec<[KernelAccess; 2]>),
    Fill(Pieces, u8),
    Copy {
        from: Pieces,
        to: Pieces,
    },
    CopyStaged {
        from: Box<[u8]>,
        to: Pieces,
    },
}

#[derive(Debug)]
struct Entry {
    tick: u64,
    finish_ns: u64,
    step: u64,
    waits: Waits,
    operation: Operation,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// How many entries are real work, not only places in the order.
    launched: usize,
    ready_ns: u64,
    listed: bool,
    frozen_until: u64,
}

impl Queue {
    /// Returns whether the queue takes no more work. Entries that only hold a place in the order count too,
    /// with a higher limit.
    fn is_full(&self) -> bool {
        self.launched >= DEEPEST_QUEUE || self.entries.len() >= 16 * DEEPEST_QUEUE
    }
}

/// The state that work changes.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) contents: Contents,
    pub(crate) log: ViolationLog,
}

/// Chooses the order of the work under [`Schedule::Seeded`].
#[derive(Debug)]
struct Adversary {
    rng: Rng,
    /// On average, the adversary does work in one of 2^`patience` choices.
    patience: u32,
}

/// The queues, and the virtual clock.
#[derive(Debug)]
pub(crate) struct Work {
    queues: Vec<Queue>,
    /// The slots whose queues are not empty.
    active: Vec<Slot>,
    adversary: Option<Adversary>,
    step: u64,
    now_ns: u64,
    next_finish_ns: u64,
    todo: Vec<Epoch>,
}

impl Work {
    pub(crate) fn new(schedule: Schedule, seed: u64) -> Self {
        let adversary = match schedule {
            Schedule::Timed => None,
            Schedule::Seeded(choice) => {
                let mut rng = Rng::new(super::rng::mix(seed) ^ choice);
                Some(Adversary { patience: 1 + rng.below(7) as u32, rng })
            }
        };
        Self {
            queues: Vec::new(),
            active: Vec::new(),
            adversary,
            step: 0,
            now_ns: 0,
            next_finish_ns: u64::MAX,
            todo: Vec::new(),
        }
    }

    pub(crate) const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Prepares the queue of a slot that was given to a stream.
    pub(crate) fn open(&mut self, slot: Slot) {
        if self.queues.len() <= slot {
            self.queues.resize_with(slot + 1, Queue::default);
        }
        let queue = &mut self.queues[slot];
        debug_assert!(queue.entries.is_empty());
        queue.frozen_until = 0;
    }

    /// Submits the work of one tick, which takes `duration_ns` from its start.
    pub(crate) fn push(
        &mut self,
        epoch: Epoch,
        waits: Waits,
        operation: Operation,
        duration_ns: u64,
        effects: &mut Effects,
    ) {
        let slot = epoch.slot();
        while self.queues[slot].is_full() {
            let Some(first) = self.first(slot) else { break };
            self.finish(first, effects);
        }
        let awaited = waits.iter().map(|wait| self.finish_ns(*wait)).max().unwrap_or(0);
        let start = self.now_ns.max(self.queues[slot].ready_ns).max(awaited);
        let finish_ns = start.saturating_add(duration_ns);
        self.next_finish_ns = self.next_finish_ns.min(finish_ns);
        let queue = &mut self.queues[slot];
        queue.ready_ns = finish_ns;
        queue.launched += usize::from(!matches!(operation, Operation::Nothing));
        queue.entries.push_back(Entry { tick: epoch.tick(), finish_ns, step: self.step, waits, operation });
        if !queue.listed {
            queue.listed = true;
            self.active.push(slot);
        }
    }

    /// The virtual time at which all work up to this epoch is done.
    fn finish_ns(&self, point: Epoch) -> u64 {
        let queue = &self.queues[point.slot()];
        let after = queue.entries.partition_point(|entry| entry.tick <= point.tick());
        after.checked_sub(1).map_or(0, |last| queue.entries[last].finish_ns)
    }

    /// Whether all work up to this epoch is done.
    pub(crate) fn is_done(&self, point: Epoch) -> bool {
        let queue = &self.queues[point.slot()];
        queue.entries.front().is_none_or(|entry| entry.tick > point.tick())
    }

    /// Whether the stream's queue is empty.
    pub(crate) fn is_idle(&self, slot: Slot) -> bool {
        self.queues[slot].entries.is_empty()
    }

    /// Advances virtual time and does the work that is due.
    pub(crate) fn pass(&mut self, ns: u64, effects: &mut Effects) {
        self.now_ns = self.now_ns.saturating_add(ns);
        if self.adversary.is_none() && self.now_ns >= self.next_finish_ns {
            self.finish_due(effects);
        }
    }

    /// Begins the program's step with this number; the adversary makes a choice.
    #[inline]
    pub(crate) fn begin_step(&mut self, step: u64, effects: &mut Effects) {
        self.step = step;
        if self.adversary.is_some() && !self.active.is_empty() {
            self.choose(effects);
        }
    }

    /// Makes one choice of the adversary: no work, or some work of a stream that it does not starve. The
    /// share of choices without work varies over time, from 1 in 2 to 127 in 128.
    fn choose(&mut self, effects: &mut Effects) {
        let Some(Adversary { rng, patience }) = &mut self.adversary else { return };
        if self.active.is_empty() {
            return;
        }
        let choice = rng.next();
        if choice >> 57 == 0 {
            // one in 128 choices
            *patience = 1 + rng.below(7) as u32;
        }
        if choice & ((1 << *patience) - 1) != 0 {
            return;
        }
        let index = rng.below(self.active.len() as u64) as usize;
        let slot = self.active[index];
        let queue = &mut self.queues[slot];
        if queue.frozen_until > self.step {
            return;
        }
        if (choice >> 32) & 15 == 0 {
            queue.frozen_until = self.step + (16 << ((choice >> 40) % 9));
            return;
        }
        // A little, much, or all of the work.
        let most = match (choice >> 48) & 3 {
            0 | 1 => 1 + ((choice >> 50) & 3),
            2 => 1 + ((choice >> 50) & 63),
            _ => u64::MAX,
        };
        let pulls = (choice >> 56) & 1 == 0; // otherwise stops if other streams' work must come first
        for _ in 0..most {
            let Some(entry) = self.queues[slot].entries.front() else { break };
            if entry.waits.iter().all(|wait| self.is_done(*wait)) {
                self.finish_first(slot, effects);
            } else if pulls {
                self.run(Epoch::new(slot, entry.tick), effects);
            } else {
                break;
            }
        }
        if self.is_idle(slot) {
            self.unlist(index);
        }
    }

    /// Makes the host wait for all work up to this epoch. On the timed schedule, all work due by then is done
    /// too. The adversary does the needed work, mixed with other work at random.
    pub(crate) fn finish(&mut self, point: Epoch, effects: &mut Effects) {
        if self.is_done(point) {
            return;
        }
        if self.adversary.is_none() {
            self.now_ns = self.now_ns.max(self.finish_ns(point));
            self.run(point, effects);
            self.finish_due(effects);
            return;
        }
        while let Some(first) = self.first(point.slot()).filter(|first| first.tick() <= point.tick()) {
            self.run(first, effects);
            self.choose(effects);
        }
    }

    /// Makes the host wait for all work.
    pub(crate) fn finish_all(&mut self, effects: &mut Effects) {
        while !self.active.is_empty() {
            let index = match &mut self.adversary {
                Some(Adversary { rng, .. }) => rng.below(self.active.len() as u64) as usize,
                None => 0,
            };
            let slot = self.active[index];
            match self.first(slot) {
                Some(first) => {
                    if self.adversary.is_none() {
                        self.now_ns = self.now_ns.max(self.finish_ns(first));
                    }
                    self.run(first, effects);
                }
                None => self.unlist(index),
            }
        }
        self.next_finish_ns = u64::MAX;
    }

    /// A stream's next work.
    fn first(&self, slot: Slot) -> Option<Epoch> {
        self.queues[slot].entries.front().map(|entry| Epoch::new(slot, entry.tick))
    }

    fn finish_due(&mut self, effects: &mut Effects) {
        let mut index = 0;
        self.next_finish_ns = u64::MAX;
        while index < self.active.len() {
            let slot = self.active[index];
            let queue = &self.queues[slot];
            let due = queue.entries.iter().take_while(|entry| entry.finish_ns <= self.now_ns).last();
            if let Some(entry) = due {
                self.run(Epoch::new(slot, entry.tick), effects);
            }
            match self.queues[slot].entries.front() {
                Some(entry) => {
                    self.next_finish_ns = self.next_finish_ns.min(entry.finish_ns);
                    index += 1;
                }
                None => self.unlist(index),
            }
        }
    }

    /// Does the work up to this point, and before it the work that it waits for. Avoids recursion, because
    /// chains may be long.
    fn run(&mut self, point: Epoch, effects: &mut Effects) {
        let mut todo = std::mem::take(&mut self.todo);
        todo.push(point);
        while let Some(&point) = todo.last() {
            let slot = point.slot();
            let first = self.queues[slot].entries.front().filter(|entry| entry.tick <= point.tick());
            match first.map(|entry| entry.waits.iter().find(|wait| !self.is_done(**wait))) {
                None => {
                    todo.pop();
                }
                Some(Some(wait)) => todo.push(*wait),
                Some(None) => self.finish_first(slot, effects),
            }
        }
        self.todo = todo;
    }

    fn finish_first(&mut self, slot: Slot, effects: &mut Effects) {
        let queue = &mut self.queues[slot];
        if let Some(entry) = queue.entries.pop_front() {
            queue.launched -= usize::from(!matches!(entry.operation, Operation::Nothing));
            effects.apply(entry.operation, entry.step);
        }
    }

    fn unlist(&mut self, index: usize) {
        let slot = self.active.swap_remove(index);
        self.queues[slot].listed = false;
    }
}

impl Effects {
    fn apply(&mut self, operation: Operation, step: u64) {
        match operation {
            Operation::Nothing => {}
            Operation::Kernel(accesses) => {
                for (piece, action) in &accesses {
                    match *action {
                        Action::Read => {}
                        Action::Write(tag) => self.contents.write_pattern(piece, tag),
                        Action::Check(tag) => self.check(piece, tag, step),
                    }
                }
            }
            Operation::Fill(pieces, value) => {
                for piece in &pieces {
                    self.contents.fill(piece, value);
                }
            }
            Operation::Copy { from, to } => self.copy(&from, &to),
            Operation::CopyStaged { from, to } => {
                let mut rest = &from[..];
                for piece in &to {
                    let (part, next) = rest.split_at(piece.bytes as usize);
                    self.contents.write(piece, 0, part);
                    rest = next;
                }
            }
        }
    }

    fn check(&mut self, piece: &Piece, tag: u64, step: u64) {
        if let Err((offset, found)) = self.contents.check(piece, tag) {
            self.log.add(ViolationKind::TagMismatch, step, || {
                let bytes = piece.bytes;
                format!("a kernel found {found:#x} at byte {offset} of {bytes}, instead of tag {tag:#x}")
            });
        }
    }

    fn copy(&mut self, from: &[Piece], to: &[Piece]) {
        let mut targets = to.iter().copied();
        let mut target = targets.next();
        for source in from {
            let mut source = *source;
            while source.bytes > 0 {
                let Some(room) = &mut target else { return };
                let bytes = source.bytes.min(room.bytes);
                self.contents.copy(&Piece { bytes, ..source }, &Piece { bytes, ..*room });
                source.advance(bytes);
                room.advance(bytes);
                if room.bytes == 0 {
                    target = targets.next();
                }
            }
        }
    }
}
