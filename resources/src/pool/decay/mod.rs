//! Memory that nobody has needed for a while goes back to the driver.
//!
//! At each tick, a sixteenth of the decay's time, the pool notes how many bytes it needed since the last one.
//! It keeps what the ticks of that time needed, each the less the longer it is ago ([`window`]): what a loop
//! takes again and again stays, and what is left over after a peak goes in small steps. Then
//!
//! 1. what idle threads keep in stream caches is reclaimed, a class at a time;
//! 2. what streams gave back and is done becomes unowned: the driver is asked, and nobody waits;
//! 3. spans of small blocks that are free go back to the large heap, one at a time;
//! 4. handles that are free from end to end go back to the driver, one at a time.
//!
//! So no allocation waits for more than the driver calls of one handle, and that only where it needs new
//! memory itself. On a real device a thread of the process's own makes the steps ([`background`]).

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

use crate::backing::Large;
use crate::heap::request::Cursor;
use crate::pool::cache::stream_cache::StreamCache;
use crate::pool::central::CentralCore;
use crate::pool::decay::window::Window;
use crate::pool::heaps::{Heaps, Shared};
use crate::pool::protocol::Reclaim;
use crate::pool::task::Task;
use crate::stream_order::{Epoch, Owner};

/// So many steps are made in the decay's time.
const TICKS: u32 = 16;

/// The decay of one pool.
#[derive(Debug)]
pub(super) struct PoolDecay {
    core: Arc<CentralCore>,
    shared: Arc<Shared>,
    driver: DriverHandle,
    time: Duration,
    /// Bytes that are kept in any case.
    least_bytes: u64,
    watch: Mutex<Watch>,
}

/// What the last steps saw.
#[derive(Debug)]
struct Watch {
    window: Window,
    /// Calls of each thread so far, by the address of its counters.
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
        let watch = Watch { window: Window::new(time), calls: FxHashMap::default() };
        Self {
            core: Arc::clone(core),
            shared: Arc::clone(shared),
            driver: Arc::clone(driver),
            time,
            least_bytes,
            watch: Mutex::new(watch),
        }
    }

    /// How often a step is made.
    fn tick(&self) -> Duration {
        self.time / TICKS
    }

    /// Makes a step, if one is due at this time; says how many bytes went back.
    ///
    /// # Errors
    /// What the driver reports. What went back before stays there; the rest is tried again.
    pub(super) fn step(&self, now: Duration) -> Result<u64> {
        let mut watch = self.watch.lock();
        if watch.window.last_large().is_some_and(|last_large| now.saturating_sub(last_large) < self.tick()) {
            return Ok(0);
        }
        let needed = |heaps: &mut Heaps| (heaps.large.bytes_reserved(), most_used(heaps));
        let Some((reserved, used)) = self.core.with_live_heaps(needed) else { return Ok(0) };
        watch.window.add(now, used);
        let keep = watch.window.keep(now).max(self.least_bytes);
        let idle = self.idle_caches(&mut watch.calls);
        if reserved <= keep && !idle.is_all {
            return Ok(0);
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        idle.stream_caches.iter().for_each(|stream_cache| self.flush(stream_cache));
        self.core.collect_incrementally()?;
        self.take_spans_back();
        let released = self.core.release_incrementally(keep)?;
        // What was needed from here on is the next step's.
        self.core.with_live_heaps(most_used);
        if released > 0 {
            self.core.trace_decay(released, keep);
        }
        Ok(released)
    }

    /// The stream caches of threads that made no call since the last step.
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

    /// Reclaims what is in a stream cache. Each class is a step.
    fn flush(&self, stream_cache: &StreamCache) {
        self.core.with_live_heaps(|heaps| heaps.flush(stream_cache, Reclaim::Large));
        for class in stream_cache.filled_classes() {
            self.core.with_live_heaps(|heaps| {
                stream_cache.flush_class(class, |addr| {
                    let entry = self.shared.block_map.find(addr).expect("a kept block is entered");
                    heaps.free_cached(entry, &stream_cache.stream)
                });
            });
        }
    }

    /// Takes whole spans back from the arenas. Each span is a step.
    fn take_spans_back(&self) {
        let mut shard = 0;
        while let Some(Some(found)) = self.core.with_live_heaps(|heaps| take_span_back(heaps, shard)) {
            shard += usize::from(!found);
        }
    }
}

/// Threads that made no call for a while.
struct Idle {
    stream_caches: Vec<Arc<StreamCache>>,
    /// Whether no thread made any.
    is_all: bool,
}

/// The most bytes that were not free since this was asked last.
fn most_used(heaps: &mut Heaps) -> u64 {
    match &mut heaps.large {
        Large::Regions(heap) => heap.bytes_reserved,
        Large::Pages(pages) => pages.take_most_used(),
    }
}

/// Takes one span back from an arena; `None` beyond the last arena.
fn take_span_back(heaps: &mut Heaps, shard: usize) -> Option<bool> {
    let shared = Arc::clone(&heaps.shared);
    let span = shared.arenas.get(shard)?.remove_free_span();
    if let Some(span) = &span {
        heaps.large.free(span.chunk, span.owner, span.epoch);
    }
    Some(span.is_some())
}

/// [`Store::plan_release_step`](crate::pool::central::Store::plan_release_step) of a pool.
pub(super) fn plan_release_step(heaps: &mut Heaps, keep_bytes: u64, at: &mut Cursor) -> Option<Task> {
    let Large::Pages(pages) = &mut heaps.large else {
        at.is_at_end = true;
        return None;
    };
    pages.plan_release_step(keep_bytes, at).map(Task::Release)
}

/// [`Store::migrate_step`](crate::pool::central::Store::migrate_step) of a pool: first the large heaps, then
/// the arenas.
pub(super) fn migrate_step(
    heaps: &mut Heaps,
    from: Owner,
    upto: Epoch,
    to: Owner,
    epoch: Epoch,
    at: &mut Cursor,
) {
    let large = heaps.large.parts();
    let next = match at.part.checked_sub(large) {
        None => heaps.large.migrate_step(at.part, from, upto, to, epoch, at.bytes),
        Some(shard) => match heaps.shared.arenas.get(shard) {
            Some(mut arena) => arena.heap.migrate_step(from, upto, to, epoch, at.bytes),
            None => return at.is_at_end = true,
        },
    };
    match next {
        Some(bytes) => at.bytes = bytes,
        None => at.end_part(usize::MAX),
    }
}
