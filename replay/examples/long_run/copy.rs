//! A log in memory, and perturbed copies of it.

use std::collections::HashMap;

use millpond_core::Layout;
use millpond_engine::log::StreamKey;
use millpond_engine::program::{OpKind, Program};

use super::random::Random;

/// One operation. Its size is an index into [`Log::sizes`], so equal sizes change together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) kind: OpKind,
    pub(crate) slot: u32,
    pub(crate) lane: u32,
    pub(crate) alignment_log2: u8,
    pub(crate) size: u32,
}

/// A log, ready to be replayed on one thread.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) steps: Vec<Step>,
    /// The distinct sizes in bytes, in the order of their first operations.
    pub(crate) sizes: Vec<u64>,
    /// The stream of each lane: `None` for the legacy default stream, other streams are numbered from 0.
    pub(crate) streams: Vec<Option<u32>>,
    pub(crate) slots: usize,
}

impl Log {
    /// Reads a log. It leaves out requests that failed when the log was written.
    pub(crate) fn new(program: &Program) -> millpond_engine::Result<Self> {
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        let streams = program.lanes().iter().map(|lane| {
            let next = numbers.len() as u32;
            (lane.key != StreamKey::Legacy).then(|| *numbers.entry(lane.stream).or_insert(next))
        });
        let streams = streams.collect();
        let (mut steps, mut sizes, mut by_size) = (Vec::new(), Vec::new(), HashMap::new());
        for index in 0..program.block_count() {
            let block = program.block(index)?;
            for op in block.iter().filter(|op| op.kind != OpKind::AskAgain) {
                let size = *by_size.entry(op.bytes).or_insert_with(|| {
                    sizes.push(op.bytes);
                    sizes.len() as u32 - 1
                });
                let (kind, slot, lane, alignment_log2) = (op.kind, op.slot, op.lane, op.alignment_log2);
                steps.push(Step { kind, slot, lane, alignment_log2, size });
            }
        }
        Ok(Self { steps, sizes, streams, slots: program.slots() as usize })
    }

    /// Returns a copy with other sizes. Of the neighbours that can swap places, a share of `swaps` do.
    pub(crate) fn perturbed(&self, spread: f64, swaps: f64, random: &mut Random) -> Self {
        let mut copy = self.clone();
        copy.change_sizes(spread, random);
        if swaps > 0.0 {
            copy.swap_neighbours(swaps, random);
        }
        copy
    }

    /// Multiplies each distinct size by its own factor. Zero stays zero.
    pub(crate) fn change_sizes(&mut self, spread: f64, random: &mut Random) {
        for size in self.sizes.iter_mut().filter(|size| **size > 0) {
            *size = ((*size as f64 * random.factor(spread)).round() as u64).max(1);
        }
    }

    /// Moves each operation by one place at most. Two operations of the same slot never swap, so a block's
    /// free stays after its allocation, and before the next allocation into the slot.
    fn swap_neighbours(&mut self, share: f64, random: &mut Random) {
        let mut at = 1;
        while at < self.steps.len() {
            let independent = self.steps[at - 1].slot != self.steps[at].slot;
            if independent && random.unit() < share {
                self.steps.swap(at - 1, at);
                at += 1;
            }
            at += 1;
        }
    }

    /// Returns a copy in which a share of the allocations, and their frees, have their own sizes: the log's
    /// size multiplied by a factor from 0.5 to 1.5.
    pub(crate) fn resized(&self, share: f64, random: &mut Random) -> Self {
        let mut copy = self.clone();
        let mut own = vec![None; self.slots];
        for step in &mut copy.steps {
            let bytes = self.sizes[step.size as usize];
            match step.kind {
                OpKind::Allocate if bytes > 0 && random.unit() < share => {
                    copy.sizes.push(((bytes as f64 * random.factor(0.5)).round() as u64).max(1));
                    step.size = copy.sizes.len() as u32 - 1;
                    own[step.slot as usize] = Some(step.size);
                }
                OpKind::Free => step.size = own[step.slot as usize].take().unwrap_or(step.size),
                _ => {}
            }
        }
        copy
    }

    /// Returns a copy without the allocations in one stretch of the log, and without their frees. Blocks from
    /// before the stretch are freed where the log frees them.
    pub(crate) fn without_stretch(&self, share: f64, random: &mut Random) -> Self {
        let length = (self.steps.len() as f64 * share) as usize;
        let start = ((self.steps.len() - length) as f64 * random.unit()) as usize;
        let mut left_out = vec![false; self.slots];
        let mut copy = Self { steps: Vec::with_capacity(self.steps.len()), ..self.clone() };
        for (at, step) in self.steps.iter().enumerate() {
            let is_in_stretch = (start..start + length).contains(&at);
            let is_kept = match step.kind {
                OpKind::Allocate => {
                    left_out[step.slot as usize] = is_in_stretch;
                    !is_in_stretch
                }
                OpKind::Free => !std::mem::take(&mut left_out[step.slot as usize]),
                _ => !is_in_stretch,
            };
            copy.steps.extend(is_kept.then_some(*step));
        }
        copy
    }

    #[inline]
    pub(crate) fn layout(&self, step: &Step) -> Layout {
        let plain = Layout::new(self.sizes[step.size as usize]);
        let alignment = 1 << step.alignment_log2;
        if alignment == plain.alignment() {
            return plain;
        }
        Layout::with_alignment(plain.bytes(), alignment).unwrap_or(plain)
    }

    /// Returns the most bytes live at one time in the first `count` operations.
    pub(crate) fn peak_live(&self, count: usize) -> u64 {
        let (mut live, mut peak) = (0_u64, 0_u64);
        for step in &self.steps[..count] {
            let bytes = self.sizes[step.size as usize];
            match step.kind {
                OpKind::Allocate => live = live.saturating_add(bytes),
                OpKind::Free => live = live.saturating_sub(bytes),
                _ => {}
            }
            peak = peak.max(live);
        }
        peak
    }
}
