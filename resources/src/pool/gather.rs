//! What is taken back from threads and streams before the pool grows.
//!
//! A small request is served from its thread's arena alone, unless memory is short: so for that, the small
//! blocks that threads of other arenas keep, and what streams own in those, stay as they are. What threads
//! left behind in an arena that none uses any more is had by large requests, before memory is out, by trim
//! and by decay.

use std::sync::atomic::Ordering;

use super::arena::Shard;
use super::front::Front;
use super::heaps::Heaps;
use super::thread::Cache;
use crate::ordered::{Epoch, Gather, Owner, Request};

impl Heaps {
    /// The arena that a request is served from, if not from all.
    pub(super) fn only_arena(&self, request: &Request) -> Option<Shard> {
        (!self.is_short && self.is_small(request)).then_some(request.shard)
    }

    /// Takes back what threads keep: all, or those that use one arena.
    pub(super) fn gather_from(&mut self, only: Option<Shard>, how: Gather) -> bool {
        let mut any = false;
        let (mut fronts, mut held) = (Vec::new(), 0);
        // Any large block may serve as a span.
        let only = only.filter(|_| how != Gather::Large);
        let uses = |cache: &Cache| only.is_none_or(|only| cache.counts.shard.load(Ordering::Relaxed) == only);
        self.shared.caches.each(|cache| {
            if uses(cache) && cache.counts.totals().blocks_held > 0 {
                held += cache.counts.small_bytes_held();
                fronts.extend(cache.fronts());
            }
        });
        // Little is not worth the work, unless it is all there is; where mapping pages is much more, none is
        // little. Where threads meet, growing costs them less than what they keep.
        let reserved = match only {
            Some(shard) if self.shared.arenas.are_many() => {
                self.shared.arenas.lock(shard).heap.bytes_reserved
            }
            _ => self.large.bytes_reserved(),
        };
        let little = match (self.runs_errands(), self.shared.arenas.are_many()) {
            (false, false) => reserved / 256,
            (true, false) => 0,
            (false, true) => reserved / 16,
            (true, true) => reserved / 4,
        };
        if how == Gather::All && !self.is_short && held < little {
            fronts.clear();
        }
        for front in fronts {
            any |= self.drain(&front, how);
        }
        self.set_keep_bytes();
        any | (how != Gather::Large && self.take_spans_back())
    }

    /// Takes back all that is in a front.
    pub(super) fn drain(&mut self, front: &Front, how: Gather) -> bool {
        let Self { large, shared, .. } = self;
        let (owner, epoch) = (front.stream.owner, front.stream.epoch());
        let mut any = false;
        front.drain(how == Gather::Large, |addr| {
            any = true;
            let entry = shared.directory.find(addr).expect("a kept block is entered");
            Self::give_back(large, shared, entry, owner, epoch)
        });
        any
    }

    /// Takes whole spans back from the arenas.
    pub(super) fn take_spans_back(&mut self) -> bool {
        let mut any = false;
        for (_, mut arena) in self.shared.arenas.each() {
            while let Some(span) = arena.remove_free_span() {
                self.large.give(span.chunk, span.owner, span.epoch);
                any = true;
            }
        }
        any
    }

    /// Moves free blocks given back in epoch `upto` or before to another owner: large ones, and those in all
    /// arenas, or one.
    pub(super) fn migrate_in(
        &mut self,
        only: Option<Shard>,
        from: Owner,
        upto: Epoch,
        to: Owner,
        epoch: Epoch,
    ) {
        for (_, mut arena) in self.shared.arenas.each_of(from, only) {
            arena.heap.migrate(from, upto, to, epoch);
        }
        // Spans come back as their owner's.
        self.take_spans_back();
        self.large.migrate(from, upto, to, epoch);
    }

    /// Bytes in the free blocks of an owner: large ones, and those in all arenas, or one.
    pub(super) fn free_bytes_in(&self, only: Option<Shard>, owner: Owner) -> u64 {
        let arenas = self.shared.arenas.each_of(owner, only);
        arenas.map(|(_, arena)| arena.heap.free_bytes(owner)).sum::<u64>() + self.large.free_bytes(owner)
    }
}
