//! Decay: returns memory to the driver after the pool has not needed it for a while.
//!
//! At each step, a sixteenth of the decay's time, the pool notes the bytes that it needed since the last
//! step. It keeps a weighted maximum of the needs of recent steps; older steps count less ([`window`]). So a
//! loop keeps its memory, and the rest of a peak is released in small parts. Then a step
//!
//! 1. flushes the stream caches of idle threads, one size class at a time;
//! 2. asks the driver which work is completed, and makes those blocks unowned;
//! 3. returns free spans to the large heap, one at a time;
//! 4. releases fully free handles to the driver, one at a time.
//!
//! So no allocation waits for more than the driver calls of one handle, and only if it needs new memory. On a
//! real device, one thread for all pools of the process makes the steps ([`background`]).

mod background;
mod option;
mod window;

use std::sync::Arc;
use std::time::Duration;

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{DriverHandle, Result};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

pub(super) use crate::pool::decay::background::DecayHandle;
pub use crate::pool::decay::option::Decay;

use crate::heap::request::Cursor;
use crate::pool::cache::stream_cache::StreamCache;
use crate::pool::central::CentralCore;
use crate::pool::decay::window::Window;
use crate::pool::heaps::Heaps;
use crate::pool::heaps::Reclaim;
use crate::pool::shared::Shared;
use crate::store::pages::Pages;
use crate::stream_order::{Epoch, Owner};
use crate::tuning::DECAY_STEPS;

/// The decay of one pool.
#[derive(Debug)]
pub(super) struct PoolDecay {
    core: Arc<CentralCore>,
    shared: Arc<Shared>,
    driver: DriverHandle,
    time: Duration,
    /// The bytes that the pool always keeps.
    least_bytes: u64,
    history: Mutex<History>,
}

/// The observations of the last steps.
#[derive(Debug)]
struct History {
    window: Window,
    /// The number of calls of each thread so far, by the address of its counters.
    calls: FxHashMap<usize, u64>,
}

impl PoolDecay {
    pub(super) fn new(
        core: &Arc<CentralCore>,
        shared: &Arc<Shared>,
        driver: &DriverHandle,
        time: Duration,
        least_bytes: u64,
    ) -> Self {
        let history = History { window: Window::new(time), calls: FxHashMap::default() };
        Self {
            core: Arc::clone(core),
            shared: Arc::clone(shared),
            driver: Arc::clone(driver),
            time,
            least_bytes,
            history: Mutex::new(history),
        }
    }

    /// Returns the time between two steps.
    fn interval(&self) -> Duration {
        self.time / DECAY_STEPS
    }

    /// Makes a step, if one is due at this time; returns the bytes released to the driver.
    ///
    /// # Errors
    /// The driver's error. Memory that was released before the error stays released; the next step tries the
    /// rest again.
    pub(super) fn step(&self, now: Duration) -> Result<u64> {
        // Foreign code in a step may call this again.
        let Some(mut history) = self.history.try_lock() else { return Ok(0) };
        if history.window.last_step().is_some_and(|last| now.saturating_sub(last) < self.interval()) {
            return Ok(0);
        }
        let needed = |heaps: &mut Heaps| (heaps.store.bytes_reserved(), most_used(heaps));
        let Some((reserved, used)) = self.core.with_live_heaps(needed) else { return Ok(0) };
        history.window.add(now, used);
        let keep = history.window.keep(now).max(self.least_bytes);
        let idle = self.idle_caches(&mut history.calls);
        if reserved <= keep && !idle.is_all {
            return Ok(0);
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        idle.stream_caches.iter().for_each(|stream_cache| self.flush(stream_cache));
        let flushed = self.core.with_live_heaps(|heaps| std::mem::take(&mut heaps.flushed));
        self.core.trace_flush(flushed.unwrap_or(0));
        self.core.collect_incrementally()?;
        self.take_spans_back();
        let released = self.core.release_incrementally(keep)?;
        // This call resets the peak, so that the next step counts from here.
        self.core.with_live_heaps(most_used);
        if released > 0 {
            self.core.trace_decay(released, keep);
        }
        Ok(released)
    }

    /// Returns the stream caches of threads that made no call since the last step.
    fn idle_caches(&self, calls: &mut FxHashMap<usize, u64>) -> Idle {
        let before = std::mem::take(calls);
        let mut idle = Idle { stream_caches: Vec::new(), is_all: true };
        self.shared.thread_caches.each(|thread_cache| {
            let counts = thread_cache.counts.totals();
            let (id, made) =
                (Arc::as_ptr(&thread_cache.counts).addr(), counts.allocations + counts.deallocations);
            calls.insert(id, made);
            if before.get(&id) != Some(&made) {
                idle.is_all = false;
            } else if counts.blocks_held > 0 {
                idle.stream_caches.extend(thread_cache.stream_caches());
            }
        });
        idle
    }

    /// Flushes a stream cache. It takes the pool's lock for one size class at a time.
    fn flush(&self, stream_cache: &StreamCache) {
        self.core.with_live_heaps(|heaps| heaps.flush(stream_cache, Reclaim::Large));
        for class in stream_cache.filled_classes() {
            self.core.with_live_heaps(|heaps| {
                stream_cache.flush_class(class, |addr| {
                    let entry = self.shared.block_map.find(addr).expect("a cached block has a block entry");
                    heaps.flushed += 1;
                    heaps.free_cached(entry, &stream_cache.stream)
                });
            });
        }
    }

    /// Returns the arenas' free spans to the large heap. It takes the pool's lock for one span at a time.
    fn take_spans_back(&self) {
        let mut shard = 0;
        while let Some(Some(found)) = self.core.with_live_heaps(|heaps| take_span_back(heaps, shard)) {
            shard += usize::from(!found);
        }
    }
}

/// The caches of threads that made no call since the last step.
struct Idle {
    stream_caches: Vec<Arc<StreamCache>>,
    /// Whether no thread made a call.
    is_all: bool,
}

/// Returns the most bytes that were not free since the last call.
fn most_used(heaps: &mut Heaps) -> u64 {
    let held = heaps.store.bytes_reserved();
    heaps.store.pages_mut().map_or(held, Pages::take_most_used)
}

/// Returns one free span of an arena to the large heap. Returns `None` after the last arena.
fn take_span_back(heaps: &mut Heaps, shard: usize) -> Option<bool> {
    let shared = Arc::clone(&heaps.shared);
    let span = shared.arenas.get(shard)?.remove_free_span();
    if let Some(span) = &span {
        heaps.store.free(span.chunk, span.owner, span.epoch);
    }
    Some(span.is_some())
}

impl Heaps {
    /// Makes some blocks unowned that were freed in epoch `upto` or before: first in the large heaps, then in
    /// the arenas.
    pub(crate) fn disown_step(&mut self, owner: Owner, upto: Epoch, at: &mut Cursor) {
        let large = self.store.heaps_mut();
        let next = match at.part.checked_sub(large.len()) {
            None => large[at.part].disown_step(owner, upto, at.bytes),
            Some(shard) => match self.shared.arenas.get(shard) {
                Some(mut arena) => arena.heap.disown_step(owner, upto, at.bytes),
                None => return at.is_at_end = true,
            },
        };
        match next {
            Some(bytes) => at.bytes = bytes,
            None => at.end_part(usize::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::{DeviceMemoryResourceExt, StreamRef};
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::{CudaMemoryResource, PagesMode, PoolLayer};

    /// Even a pool that holds no excess memory takes back an idle thread's cached blocks. It leaves the
    /// caches of an active thread alone.
    #[test]
    fn an_idle_pool_keeps_no_blocks_in_caches() {
        for (calls_between, is_flushed) in [(false, true), (true, false)] {
            let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
            let layer = PoolLayer::new().initial_bytes(16 << 20).pages(PagesMode::On);
            let pool = cuda.layer(layer).expect("there is room");
            let allocate = || pool.allocate_bytes(1000, StreamRef::LEGACY).expect("there is room");
            // SAFETY: the block came from the pool with this size and is freed once.
            let free = |ptr| unsafe { pool.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
            let blocks = [(); 10].map(|()| allocate());
            pool.central.with_heaps(|heaps| heaps.set_cache_limits());
            blocks.into_iter().for_each(free);
            let held = || pool.shared.thread_caches.my_cache(pool.id).counts.totals().blocks_held;
            assert_eq!(held(), 10);
            for seconds in [0, 1] {
                pool.decay_step(Duration::from_secs(seconds)).expect("the device is there");
                assert_eq!(held() == 0, is_flushed && seconds == 1, "after {seconds} seconds");
                if calls_between {
                    free(allocate());
                }
            }
            pool.validate();
        }
    }

    /// A pool that is called all the time releases only the memory that it does not need. While it holds no
    /// such memory, the caches of other threads stay too.
    #[test]
    fn a_busy_pool_releases_only_what_it_does_not_need() {
        const MIB: u64 = 1 << 20;
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let layer = PoolLayer::new().initial_bytes(16 * MIB).pages(PagesMode::On);
        let pool = cuda.layer(layer).expect("there is room");
        let take = |bytes| pool.allocate_bytes(bytes, StreamRef::LEGACY).expect("there is room");
        // SAFETY: each block came from the pool with this size and is freed once.
        let give = |ptr, bytes| unsafe { pool.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
        let held_by_others = || {
            let own = pool.shared.thread_caches.my_cache(pool.id).counts.totals().blocks_held;
            let mut held = 0;
            pool.shared.thread_caches.each(|it| held += it.counts.totals().blocks_held);
            held - own
        };
        let step = |seconds| {
            // More calls than the stream needs to have a cache.
            (0..4).for_each(|_| give(take(1000), 1000));
            crate::pool::Pool::decay_step(&pool, Duration::from_secs(seconds)).expect("the device is there")
        };
        step(0);
        pool.central.with_heaps(|heaps| heaps.set_cache_limits());
        std::thread::scope(|scope| {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let (ready, is_ready) = std::sync::mpsc::channel();
            scope.spawn(move || {
                (0..4).for_each(|_| give(take(1000), 1000));
                ready.send(()).expect("the other thread waits");
                _ = ended.recv();
            });
            is_ready.recv().expect("the thread has a cache");
            let held = held_by_others();
            assert!(held > 0);
            for seconds in 1..5 {
                assert_eq!((step(seconds), held_by_others()), (0, held), "after {seconds} seconds");
            }
            drop(end);
        });
        give(take(64 * MIB), 64 * MIB);
        let most = pool.pool_bytes();
        assert!(most >= 64 * MIB);
        let released: u64 = (5..60).map(step).sum();
        assert_eq!(pool.pool_bytes(), most - released);
        assert!((16 * MIB..20 * MIB).contains(&pool.pool_bytes()), "{} bytes are kept", pool.pool_bytes());
        pool.validate();
    }
}
