//! What is reclaimed from threads and streams before the pool grows.
//!
//! A small request is served from its thread's arena alone, unless memory is short: so for that, the small
//! blocks that threads of other arenas keep, and what streams own in those, stay as they are. What threads
//! left behind in an arena that none uses any more is had by large requests, before memory is out, by trim
//! and by decay.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::heap::request::Request;
use crate::pool::arena::Shard;
use crate::pool::cache::stream_cache::StreamCache;
use crate::pool::cache::thread_cache::ThreadCache;
use crate::pool::heaps::Heaps;
use crate::pool::protocol::Reclaim;
use crate::stream_order::{Epoch, Owner};

impl Heaps {
    /// The arena that a request is served from, if not from all.
    pub(super) fn only_arena(&self, request: &Request) -> Option<Shard> {
        (!self.is_short && self.is_small(request)).then_some(request.shard)
    }

    /// Reclaims what threads keep: all, or those that use one arena.
    pub(super) fn reclaim_from(&mut self, only: Option<Shard>, how: Reclaim) -> bool {
        let mut any = false;
        let uses = |thread_cache: &ThreadCache| {
            only.is_none_or(|only| thread_cache.counts.shard.load(Ordering::Relaxed) == only)
        };
        let has_some = |thread_cache: &&Arc<ThreadCache>| match how {
            // Of any thread: it may serve as a span.
            Reclaim::Large => thread_cache.counts.may_have_large(),
            Reclaim::All | Reclaim::Everything => {
                uses(thread_cache) && thread_cache.counts.totals().blocks_held > 0
            }
        };
        let mut thread_caches: Vec<Arc<ThreadCache>> =
            self.shared.thread_caches.lock().iter().filter(has_some).cloned().collect();
        let held: u64 = thread_caches.iter().map(|thread_cache| thread_cache.counts.small_bytes_held()).sum();
        // Little is not worth the work, unless it is all there is; where mapping pages is much more, none is
        // little. Where threads meet, growing costs them less than what they keep.
        let reserved = match only {
            Some(shard) if self.shared.arenas.are_contended() => {
                self.shared.arenas.lock(shard).heap.bytes_reserved
            }
            _ => self.large.bytes_reserved(),
        };
        let little = match (self.maps_pages(), self.shared.arenas.are_contended()) {
            (false, false) => reserved / 256,
            (true, false) => 0,
            (false, true) => reserved / 16,
            (true, true) => reserved / 4,
        };
        if how == Reclaim::All && !self.is_short && held < little {
            thread_caches.clear();
        }
        for stream_cache in thread_caches.iter().flat_map(|thread_cache| thread_cache.stream_caches()) {
            any |= self.flush(&stream_cache, how);
        }
        self.set_cache_limits();
        any | (how != Reclaim::Large && self.take_spans_back())
    }

    /// Reclaims all that is in a stream cache.
    pub(super) fn flush(&mut self, stream_cache: &StreamCache, how: Reclaim) -> bool {
        let Self { large, shared, .. } = self;
        let (owner, epoch) = (stream_cache.stream.owner, stream_cache.stream.epoch());
        let mut any = false;
        stream_cache.flush(how == Reclaim::Large, |addr| {
            any = true;
            let entry = shared.block_map.find(addr).expect("a kept block is entered");
            Self::free_entry(large, shared, entry, owner, epoch)
        });
        any
    }

    /// Takes whole spans back from the arenas.
    pub(super) fn take_spans_back(&mut self) -> bool {
        let mut any = false;
        for (_, mut arena) in self.shared.arenas.each() {
            while let Some(span) = arena.remove_free_span() {
                self.large.free(span.chunk, span.owner, span.epoch);
                any = true;
            }
        }
        any
    }

    /// Moves free blocks freed in epoch `upto` or before to another owner: large ones, and those in all
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
