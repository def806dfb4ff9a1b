//! Vector clocks.
//!
//! A *slot* is the place of one stream in every clock. Each stream counts its *ticks*: one for every piece of
//! work, and one for every wait that orders it after something new. A slot and a tick form an [`Epoch`]. A
//! clock knows an epoch if its entry for the slot is at least the tick. It then knows everything that the
//! stream knew at that tick (Lamport's happens-before; single epochs are from FastTrack, Flanagan and Freund,
//! PLDI 2009).

use smallvec::SmallVec;

/// The place of a stream in every clock.
pub(crate) type Slot = usize;

const TICK_BITS: u32 = 40;

/// The number of slots that an epoch can name.
pub(crate) const MAX_SLOTS: usize = 1 << (64 - TICK_BITS);

/// One point in a stream's order: slot and tick in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epoch(u64);

impl Epoch {
    pub(crate) fn new(slot: Slot, tick: u64) -> Self {
        debug_assert!(slot < MAX_SLOTS && tick < 1 << TICK_BITS);
        Self((slot as u64) << TICK_BITS | tick)
    }

    pub(crate) const fn slot(self) -> Slot {
        (self.0 >> TICK_BITS) as Slot
    }

    pub(crate) const fn tick(self) -> u64 {
        self.0 & ((1 << TICK_BITS) - 1)
    }
}

/// A few epochs, at most one per slot: the latest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Epochs(SmallVec<[Epoch; 2]>);

impl Epochs {
    pub(crate) fn add(&mut self, epoch: Epoch) {
        match self.0.iter_mut().find(|known| known.slot() == epoch.slot()) {
            Some(known) => *known = Epoch(known.0.max(epoch.0)),
            None => self.0.push(epoch),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Epoch> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The latest tick of each slot that a stream, an event or the host has observed.
#[derive(Debug, Default)]
pub(crate) struct Clock(Vec<u64>);

impl Clock {
    pub(crate) fn get(&self, slot: Slot) -> u64 {
        self.0.get(slot).copied().unwrap_or(0)
    }

    pub(crate) fn knows(&self, epoch: Epoch) -> bool {
        self.get(epoch.slot()) >= epoch.tick()
    }

    /// The latest epoch that the clock knows of each slot.
    pub(crate) fn epochs(&self) -> impl Iterator<Item = Epoch> + '_ {
        self.0.iter().enumerate().map(|(slot, tick)| Epoch::new(slot, *tick))
    }

    /// Whether this clock knows everything that `other` knows.
    pub(crate) fn knows_all(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(slot, tick)| self.get(slot) >= *tick)
    }

    /// Raises one entry.
    pub(crate) fn raise(&mut self, slot: Slot, tick: u64) {
        if self.0.len() <= slot {
            self.0.resize(slot + 1, 0);
        }
        self.0[slot] = self.0[slot].max(tick);
    }

    /// Adds everything that `other` knows.
    pub(crate) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Becomes a copy of `other`, and reuses its own memory.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.0.clone_from(&other.0);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_keeps_slot_and_tick() {
        let epoch = Epoch::new(MAX_SLOTS - 1, (1 << TICK_BITS) - 1);
        assert_eq!((epoch.slot(), epoch.tick()), (MAX_SLOTS - 1, (1 << TICK_BITS) - 1));
    }

    #[test]
    fn epochs_keep_the_latest_of_each_slot() {
        let mut epochs = Epochs::default();
        for (slot, tick) in [(3, 5), (1, 9), (3, 4), (3, 7), (8, 1)] {
            epochs.add(Epoch::new(slot, tick));
        }
        let mut all: Vec<_> = epochs.iter().map(|e| (e.slot(), e.tick())).collect();
        all.sort_unstable();
        assert_eq!(all, [(1, 9), (3, 7), (8, 1)]);
    }

    #[test]
    fn a_join_is_the_least_upper_bound() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.raise(0, 4);
        a.raise(1, 1);
        b.raise(1, 3);
        b.raise(5, 2);
        a.join(&b);
        assert_eq!([0, 1, 2, 5, 9].map(|slot| a.get(slot)), [4, 3, 0, 2, 0]);
        assert!(a.knows(Epoch::new(5, 2)) && !a.knows(Epoch::new(5, 3)) && a.knows(Epoch::new(9, 0)));
        assert!(a.knows_all(&b) && !b.knows_all(&a));
        b.copy_from(&a);
        assert_eq!(b.get(0), 4);
        a.raise(0, 2);
        assert_eq!(a.get(0), 4, "never lowered");
    }
}
