//! Reclaims cached and stream-owned free blocks before the pool grows.
//!
//! Unless memory is short, only the thread's own arena serves a small request, and the caches and arenas of
//! other threads stay untouched. Large requests, trim and decay reclaim blocks left in an unused arena, and
//! so does the pool before an out-of-memory error.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::heap::request::Request;
use crate::pool::arena::Shard;
use crate::pool::cache::stream_cache::StreamCache;
use crate::pool::cache::thread_cache::ThreadCache;
use crate::pool::heaps::{Heaps, Reclaim};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::LITTLE;

impl Heaps {
    /// Returns the only arena that serves the request; `None` if all arenas do.
    pub(super) fn only_arena(&self, request: Option<&Request>) -> Option<Shard> {
        request.filter(|request| !self.is_short && self.is_small(request)).map(|request| request.shard)
    }

    /// Reclaims the caches of all threads; with a request, only the caches whose blocks could serve it.
    /// Returns whether there were any blocks.
    pub(crate) fn reclaim(&mut self, request: Option<&Request>, how: Reclaim) -> bool {
        let only = self.only_arena(request);
        let mut any = false;
        let uses = |thread_cache: &ThreadCache| {
            only.is_none_or(|only| thread_cache.counts.shard.load(Ordering::Relaxed) == only)
        };
        let has_some = |thread_cache: &&Arc<ThreadCache>| match how {
            // From all threads, since a large block may become a span.
            Reclaim::Large => thread_cache.counts.may_have_large(),
            Reclaim::All | Reclaim::Everything => {
                uses(thread_cache) && thread_cache.counts.totals().blocks_held > 0
            }
        };
        let mut thread_caches: Vec<Arc<ThreadCache>> =
            self.shared.thread_caches.lock().iter().filter(has_some).cloned().collect();
        // If the store consists of regions, or while threads contend, growth costs less than the loss of the
        // caches.
        if how == Reclaim::All && !self.is_short && !self.shared.saves_memory() {
            let held = thread_caches.iter().map(|thread_cache| thread_cache.counts.small_bytes_held());
            let reserved = match only {
                Some(shard) if self.shared.arenas.are_contended() => {
                    self.shared.arenas.lock(shard).heap.bytes_reserved
                }
                _ => self.store.bytes_reserved(),
            };
            if held.sum::<u64>() < reserved / LITTLE {
                thread_caches.clear();
            }
        }
        for stream_cache in thread_caches.iter().flat_map(|thread_cache| thread_cache.stream_caches()) {
            any |= self.flush(&stream_cache, how);
        }
        self.set_cache_limits();
        any | (how != Reclaim::Large && self.take_spans_back())
    }

    /// Frees all blocks of a stream cache, or only the large one; returns whether there were any.
    pub(super) fn flush(&mut self, stream_cache: &StreamCache, how: Reclaim) -> bool {
        let Self { store, shared, flushed, .. } = self;
        let (owner, epoch) = (stream_cache.stream.owner, stream_cache.stream.epoch());
        let before = *flushed;
        stream_cache.flush(how == Reclaim::Large, |addr| {
            *flushed += 1;
            let entry = shared.block_map.find(addr).expect("a cached block has a block entry");
            Self::free_entry(&mut **store, shared, entry, owner, epoch)
        });
        *flushed > before
    }

    /// Returns the arenas' free spans to the large heap; returns whether there were any.
    pub(super) fn take_spans_back(&mut self) -> bool {
        let mut any = false;
        for (_, mut arena) in self.shared.arenas.each() {
            while let Some(span) = arena.remove_free_span() {
                self.store.free(span.chunk, span.owner, span.epoch);
                any = true;
            }
        }
        any
    }

    /// Makes the owner's blocks unowned that were freed in epoch `upto` or before; with a request, only the
    /// ones that could serve it. Returns whether it made all of them unowned.
    pub(crate) fn disown(&mut self, request: Option<&Request>, owner: Owner, upto: Epoch) -> bool {
        let only = self.only_arena(request);
        for (_, mut arena) in self.shared.arenas.each_of([owner], only) {
            arena.heap.migrate(owner, upto, ANY_STREAM, 0);
        }
        // Before the large blocks, since spans keep their owner.
        self.take_spans_back();
        self.store.migrate(owner, upto, ANY_STREAM, 0);
        only.is_none() || !self.shared.arenas.are_contended()
    }

    /// Returns the bytes of an owner's free blocks; with a request, only of blocks that could serve it.
    pub(crate) fn free_bytes(&self, request: Option<&Request>, owner: Owner) -> u64 {
        let arenas = self.shared.arenas.each_of([owner], self.only_arena(request));
        arenas.map(|(_, arena)| arena.heap.free_bytes(owner)).sum::<u64>() + self.store.free_bytes(owner)
    }
}

#[cfg(test)]
mod tests;
