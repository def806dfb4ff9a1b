//! The shape of a state: one state for all that differ only in names, and in epochs that tell nothing apart.
//!
//! Streams, blocks and threads have equal rights, so the checker may swap them. The pool only compares a
//! stream's epochs, so the checker may number them again. The steps of two states of one shape lead to states
//! of one shape. So the checker visits one state of each shape, and no bound on epochs is left: the scale
//! bounds only how many of a stream's epochs matter at one time.

use super::model::{Block, Call, Epochs, Id, Place, Scale, Stage, State};
use super::{Bits, Epoch, STREAMS, THREADS};

const ORDERS: [[Id; STREAMS]; 6] = [[0, 1, 2], [1, 0, 2], [0, 2, 1], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

impl State {
    /// Returns the state that stands for all of this shape.
    pub(crate) fn shape(mut self, scale: Scale) -> Self {
        self = self.renumbered();
        let orders =
            ORDERS.iter().filter(|order| (scale.streams..STREAMS as Id).all(|it| order[it as usize] == it));
        let shapes = orders.flat_map(|order| {
            let renamed = self.renamed(order);
            let swapped = (scale.threads as usize == THREADS).then(|| renamed.with_threads_swapped());
            [Some(renamed), swapped].into_iter().flatten().map(|it| it.sorted(scale))
        });
        shapes.min().expect("there is an order")
    }

    /// Returns the state of this shape with the same names and the fewest epochs.
    pub(crate) fn renumbered(mut self) -> Self {
        self.forget_order();
        self.forget_epochs();
        self.number_epochs();
        self
    }

    /// The order after the work on a block no longer matters once the host knows that this work is done, or
    /// once the program has the block, since its free submits more.
    fn forget_order(&mut self) {
        for block in &mut self.blocks {
            if block.is_done || block.place == Place::Live {
                *block = Block { place: block.place, ..Block::NEW };
            }
        }
    }

    /// A seen epoch that includes the same blocks as an earlier one becomes the epoch of the latest of these
    /// blocks. One that includes no block becomes the first epoch and not 0: once a forgotten stream counts
    /// from the first epoch again, a stale entry would include blocks, and a 0 would hide it.
    fn forget_epochs(&mut self) {
        let blocks = self.blocks;
        let latest = |stream: usize, upto: Epoch| {
            let owned = blocks.iter().filter_map(Block::owner);
            owned.filter(|(owner, epoch)| *owner as usize == stream && *epoch <= upto).map(|it| it.1).max()
        };
        let forget = |epochs: &mut Epochs| {
            for (stream, epoch) in epochs.iter_mut().enumerate() {
                *epoch = latest(stream, *epoch).unwrap_or((*epoch).min(1));
            }
        };
        for it in &mut self.streams {
            forget(&mut it.seen);
            if it.recorded == 0 {
                it.recorded_seen = [0; STREAMS];
            }
            forget(&mut it.recorded_seen);
        }
        for call in &mut self.calls {
            match call {
                // Only a wait passes on what an event's stream had seen.
                Call::Event { seen, stage: Stage::Reached, .. } => *seen = [0; STREAMS],
                Call::Record { seen, .. } | Call::Event { seen, .. } => forget(seen),
                Call::Idle | Call::Device { .. } => {}
            }
        }
    }

    /// Numbers each stream's epochs 1, 2, 3, … in their order. A seen epoch that includes no block becomes 1,
    /// and 1 then includes no block and is over.
    fn number_epochs(&mut self) {
        for stream in 0..STREAMS as Id {
            let mut used = 1_u128 << self.epoch_of(stream);
            self.each_epoch(stream, |epoch| used |= 1 << *epoch);
            used &= !1;
            let of_blocks = self.blocks.iter().filter_map(Block::owner).filter(|(owner, _)| *owner == stream);
            let of_blocks = of_blocks.fold(0_u128, |all, (_, epoch)| all | 1 << epoch);
            let (mut is_early, lowest) = (false, used & used.wrapping_neg());
            self.each_seen(stream, |epoch| is_early |= *epoch == 1 && of_blocks & 2 == 0);
            let is_shifted = is_early && lowest & (of_blocks | 1 << self.epoch_of(stream)) != 0;
            let rank = |epoch: Epoch| match epoch {
                0 => 0,
                _ => (used & ((2 << epoch) - 1)).count_ones() as Epoch + Epoch::from(is_shifted),
            };
            self.streams[stream as usize].epoch = rank(self.epoch_of(stream));
            self.each_epoch(stream, |epoch| *epoch = rank(*epoch));
            self.each_seen(stream, |epoch| {
                *epoch = if *epoch == 1 && of_blocks & 2 == 0 { 1 } else { rank(*epoch) };
            });
        }
    }

    fn epoch_of(&self, stream: Id) -> Epoch {
        self.streams[stream as usize].epoch
    }

    /// Calls `each` with each epoch of a stream, except for the present one and the seen ones.
    fn each_epoch(&mut self, stream: Id, mut each: impl FnMut(&mut Epoch)) {
        let it = &mut self.streams[stream as usize];
        if it.is_known {
            each(&mut it.recorded);
        }
        for block in &mut self.blocks {
            if let Place::Freeing { owner, epoch } | Place::Free { owner, epoch } = &mut block.place
                && *owner == stream
            {
                each(epoch);
            }
        }
        for call in &mut self.calls {
            match call {
                Call::Record { stream: of, epoch, .. } | Call::Event { stream: of, epoch, .. } => {
                    if *of == stream {
                        each(epoch);
                    }
                }
                Call::Device { epochs, .. } => each(&mut epochs[stream as usize]),
                Call::Idle => {}
            }
        }
    }

    /// Calls `each` with each epoch of a stream that others have seen.
    fn each_seen(&mut self, stream: Id, mut each: impl FnMut(&mut Epoch)) {
        let at = stream as usize;
        for it in &mut self.streams {
            each(&mut it.seen[at]);
            each(&mut it.recorded_seen[at]);
        }
        for call in &mut self.calls {
            if let Call::Record { seen, .. } | Call::Event { seen, .. } = call {
                each(&mut seen[at]);
            }
        }
    }

    /// Renames each stream `it` to `to[it]`.
    fn renamed(&self, to: &[Id; STREAMS]) -> Self {
        let bits = |set: Bits| (0..STREAMS).fold(0, |all, it| all | (set >> it & 1) << to[it]);
        let epochs = |old: Epochs| {
            let mut new = [0; STREAMS];
            (0..STREAMS).for_each(|it| new[to[it] as usize] = old[it]);
            new
        };
        let name = |it: Id| to[it as usize];
        let mut new = *self;
        for (it, id) in self.streams.iter().zip(to) {
            let renamed = &mut new.streams[*id as usize];
            *renamed = *it;
            (renamed.seen, renamed.recorded_seen) = (epochs(it.seen), epochs(it.recorded_seen));
        }
        for block in &mut new.blocks {
            (block.before, block.covered) = (bits(block.before), bits(block.covered));
            if let Place::Freeing { owner, .. } | Place::Free { owner, .. } = &mut block.place {
                *owner = name(*owner);
            }
        }
        for call in &mut new.calls {
            match call {
                Call::Record { stream, seen, .. } => (*stream, *seen) = (name(*stream), epochs(*seen)),
                Call::Event { stream, seen, stage, .. } => {
                    (*stream, *seen) = (name(*stream), epochs(*seen));
                    if let Stage::Waits(waiter) = stage {
                        *waiter = name(*waiter);
                    }
                }
                Call::Device { epochs: ended, .. } => *ended = epochs(*ended),
                Call::Idle => {}
            }
        }
        new
    }

    fn with_threads_swapped(mut self) -> Self {
        self.calls.reverse();
        for block in &mut self.blocks {
            block.held = (0..THREADS).fold(0, |all, it| all | (block.held >> it & 1) << (THREADS - 1 - it));
        }
        self
    }

    fn sorted(mut self, scale: Scale) -> Self {
        self.blocks[..scale.blocks as usize].sort_unstable();
        self
    }
}
