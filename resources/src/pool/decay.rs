//! Memory that nobody has needed for a while goes back to the driver.
//!
//! At each tick, a sixteenth of the decay's time, the pool notes how many bytes it needed since the last one.
//! It keeps what the ticks of that time needed, each the less the longer it is ago ([`window`]): what a loop
//! takes again and again stays, and what is left over after a peak goes in small steps. Then
//!
//! 1. what idle threads keep in fronts is taken back, a class at a time;
//! 2. what streams gave back and is done becomes anyone's: the driver is asked, and nobody waits;
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

pub(super) use background::Member;
pub use option::Decay;

use super::errand::PoolErrand;
use super::front::Front;
use super::heaps::{Heaps, Shared};
use super::large::Large;
use crate::ordered::{Core, Cursor, Epoch, Gather, Owner};
use window::Window;

/// So many steps are made in the decay's time.
const TICKS: u32 = 16;

/// The decay of one pool.
#[derive(Debug)]
pub(super) struct PoolDecay {
    core: Arc<Core>,
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
        core: &Arc<Core>,
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
        if watch.window.latest().is_some_and(|latest| now.saturating_sub(latest) < self.tick()) {
            return Ok(0);
        }
        let needed = |heaps: &mut Heaps| (heaps.large.bytes_reserved(), most_used(heaps));
        let Some((reserved, used)) = self.core.with_living_store(needed) else { return Ok(0) };
        watch.window.add(now, used);
        let keep = watch.window.keep(now).max(self.least_bytes);
        let idle = self.idle_fronts(&mut watch.calls);
        if reserved <= keep && !idle.is_all {
            return Ok(0);
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        idle.fronts.iter().for_each(|front| self.drain(front));
        self.core.collect_in_bites()?;
        self.take_spans_back();
        let released = self.core.release_in_bites(keep)?;
        // What was needed from here on is the next step's.
        self.core.with_living_store(most_used);
        if released > 0 {
            self.core.trace_decay(released, keep);
        }
        Ok(released)
    }

    /// The fronts of threads that made no call since the last step.
    fn idle_fronts(&self, calls: &mut FxHashMap<usize, u64>) -> Idle {
        let before = std::mem::take(calls);
        let mut idle = Idle { fronts: Vec::new(), is_all: true };
        self.shared.caches.each(|cache| {
            let counts = cache.counts.totals();
            let (id, made) = (Arc::as_ptr(&cache.counts).addr(), counts.allocations + counts.deallocations);
            calls.insert(id, made);
            if before.get(&id) != Some(&made) {
                idle.is_all = false;
            } else if counts.blocks_held > 0 {
                idle.fronts.extend(cache.fronts());
            }
        });
        idle
    }

    /// Takes back what is in a front. Each class is a bite.
    fn drain(&self, front: &Front) {
        self.core.with_living_store(|heaps| heaps.drain(front, Gather::Large));
        for class in front.filled_classes() {
            self.core.with_living_store(|heaps| {
                front.drain_class(class, |addr| {
                    let entry = self.shared.directory.find(addr).expect("a kept block is entered");
                    heaps.give_kept(entry, &front.stream)
                });
            });
        }
    }

    /// Takes whole spans back from the arenas. Each span is a bite.
    fn take_spans_back(&self) {
        let mut shard = 0;
        while let Some(Some(found)) = self.core.with_living_store(|heaps| take_span_back(heaps, shard)) {
            shard += usize::from(!found);
        }
    }
}

/// Threads that made no call for a while.
struct Idle {
    fronts: Vec<Arc<Front>>,
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
        heaps.large.give(span.chunk, span.owner, span.epoch);
    }
    Some(span.is_some())
}

/// [`Store::errand_for_bite`](crate::ordered::Store::errand_for_bite) of a pool.
pub(super) fn errand_for_bite(heaps: &mut Heaps, keep_bytes: u64, at: &mut Cursor) -> Option<PoolErrand> {
    let Large::Pages(pages) = &mut heaps.large else {
        at.is_at_end = true;
        return None;
    };
    pages.plan_bite(keep_bytes, at).map(PoolErrand::Release)
}

/// [`Store::migrate_bite`](crate::ordered::Store::migrate_bite) of a pool: first the large heaps, then the
/// arenas.
pub(super) fn migrate_bite(
    heaps: &mut Heaps,
    from: Owner,
    upto: Epoch,
    to: Owner,
    epoch: Epoch,
    at: &mut Cursor,
) {
    let large = heaps.large.parts();
    let next = match at.part.checked_sub(large) {
        None => heaps.large.migrate_bite(at.part, from, upto, to, epoch, at.bytes),
        Some(shard) => match heaps.shared.arenas.get(shard) {
            Some(mut arena) => arena.heap.migrate_bite(from, upto, to, epoch, at.bytes),
            None => return at.is_at_end = true,
        },
    };
    match next {
        Some(bytes) => at.bytes = bytes,
        None => at.end_part(usize::MAX),
    }
}
