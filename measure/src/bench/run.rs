//! Runs a workload on one or more threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use millpond_core::StreamRef;
use millpond_engine::Error;

use super::barrier::Barrier;
use super::effort::Effort;
use super::measure::{self, Lap};
use super::plan::{Plan, Replacement, Request};
use super::setback::{Attempt, Setback};
use super::subject::Subject;

/// A live block. All live blocks are freed before the subject is dropped.
#[derive(Clone, Copy, Debug)]
struct Block {
    address: u64,
    of: Request,
}

impl Block {
    /// An empty slot: its block was freed, and no block replaced it.
    const NONE: Self = Self { address: 0, of: Request { bytes: 0, stream: 0 } };

    const fn is_none(&self) -> bool {
        self.of.bytes == 0
    }
}

/// The times of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Timing {
    /// The laps by thread, and then by round.
    laps: Vec<Vec<Lap>>,
    samples: Vec<u64>,
    /// The first blocks of all threads together, which are allocated before the clock starts.
    filling: Filling,
}

/// The blocks that are allocated while the resource grows.
#[derive(Clone, Copy, Debug, Default)]
struct Filling {
    blocks: u64,
    time: Duration,
}

impl Timing {
    pub(super) fn steps(&self) -> u64 {
        self.laps.iter().flatten().map(|lap| lap.steps).sum()
    }

    /// Returns the mean nanoseconds of a step on the thread that does the step.
    pub(super) fn ns_per_step(&self) -> f64 {
        let ns: u64 = self.laps.iter().flatten().map(|lap| lap.ns).sum();
        ns as f64 / self.steps().max(1) as f64
    }

    /// Returns the mean nanoseconds of an allocation while the resource grows; `None` if no block was
    /// allocated.
    pub(super) fn ns_per_fill(&self) -> Option<f64> {
        let Filling { blocks, time } = self.filling;
        (blocks > 0).then(|| time.as_nanos() as f64 / blocks as f64)
    }

    pub(super) fn p99_ns(&mut self) -> u64 {
        measure::percentile_99(&mut self.samples)
    }

    /// Returns the steps of all threads divided by the time from the first start to the last end. Both are
    /// summed over all rounds.
    pub(super) fn steps_per_second(&self) -> f64 {
        let rounds = self.laps.iter().map(Vec::len).min().unwrap_or(0);
        let mut wall = Duration::ZERO;
        for round in 0..rounds {
            let laps = || self.laps.iter().map(|laps| laps[round]);
            let start = laps().map(|lap| lap.start).min();
            let end = laps().map(|lap| lap.end()).max();
            wall += start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
        }
        self.steps() as f64 / wall.as_secs_f64().max(1e-9)
    }
}

/// Allocates and frees blocks of one size, one at a time.
pub(super) fn pairs<S: Subject>(
    subject: &S,
    stream: StreamRef,
    bytes: u64,
    steps: usize,
    effort: &Effort,
) -> Attempt<Timing> {
    const WARM_UP: usize = 100;
    let pair = |_| {
        let address = subject.allocate(bytes, stream)?;
        // SAFETY: the block is from the line above.
        unsafe { subject.free(address, bytes, stream) };
        Ok(())
    };
    (0..WARM_UP).try_for_each(pair)?;
    let mut samples = Vec::new();
    let lap = measure::steps(steps, effort.measured, &mut samples, pair)?;
    Ok(Timing { laps: vec![vec![lap]], samples, filling: Filling::default() })
}

/// Threads that keep blocks live, and replace these blocks.
pub(super) struct Churn<'a, S> {
    subject: &'a S,
    /// The plans of the threads, one for each thread.
    plans: &'a [Plan],
    /// The streams, in the order of their numbers in the plans.
    streams: Vec<StreamRef>,
    /// Whether another thread replaces the blocks that a thread allocated in a round.
    hands_over: bool,
    effort: Effort,
    shelves: Vec<Mutex<Vec<Block>>>,
    barrier: Barrier,
    stop: AtomicBool,
}

impl<'a, S: Subject> Churn<'a, S> {
    pub(super) fn new(
        subject: &'a S,
        plans: &'a [Plan],
        streams: Vec<StreamRef>,
        hands_over: bool,
        effort: Effort,
    ) -> Self {
        Self {
            subject,
            plans,
            streams,
            hands_over,
            effort,
            shelves: plans.iter().map(|_| Mutex::default()).collect(),
            barrier: Barrier::new(plans.len()),
            stop: AtomicBool::new(false),
        }
    }

    pub(super) fn run(&self) -> Attempt<Timing> {
        let work = |me| move || self.work(me);
        let workers = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.plans.len()).map(|me| scope.spawn(work(me))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| Err(panicked(&*panic))))
                .collect::<Vec<_>>()
        });
        let mut timing = Timing::default();
        for worker in workers {
            let (laps, samples, filling) = worker?;
            timing.laps.push(laps);
            timing.samples.extend(samples);
            timing.filling.blocks += filling.blocks;
            timing.filling.time += filling.time;
        }
        Ok(timing)
    }

    /// Does the work of one thread. Even after an error, the thread waits for the others at each barrier, so
    /// that no thread waits forever.
    fn work(&self, me: usize) -> Attempt<(Vec<Lap>, Vec<u64>, Filling)> {
        let plan = &self.plans[me];
        let mut samples = Vec::with_capacity(plan.steps() / 16 + plan.rounds.len());
        let mut laps = Vec::with_capacity(plan.rounds.len());
        let mut filling = Filling::default();
        let mut outcome = self.guarded(|| self.prepare(me, &mut filling));
        for (round, steps) in plan.rounds.iter().enumerate() {
            // Threads request a stop only between the second barrier of a round and the first barrier of the
            // next round. So all threads read the same value here.
            self.barrier.wait();
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            self.barrier.wait();
            let spent = laps.first().map_or(Duration::ZERO, |lap: &Lap| lap.start.elapsed());
            let limit = self.effort.measured.saturating_sub(spent);
            let lap = self.guarded(|| self.round(me, round + 1, (steps, limit), &mut samples));
            outcome = lap.map(|lap| laps.push(lap));
        }
        self.barrier.wait();
        let emptied = self.guarded(|| self.empty(me));
        outcome.and(emptied).map(|()| (laps, samples, filling))
    }

    /// If `phase` fails, asks all threads to stop. A resource that panics has a bug, but it must not make
    /// other threads hang.
    fn guarded<T>(&self, phase: impl FnOnce() -> Attempt<T>) -> Attempt<T> {
        let result = catch_unwind(AssertUnwindSafe(phase)).unwrap_or_else(|panic| Err(panicked(&*panic)));
        if result.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
        result
    }

    fn prepare(&self, me: usize, filling: &mut Filling) -> Attempt<()> {
        let plan = &self.plans[me];
        let mut shelf = lock(&self.shelves[me])?;
        self.fill(&mut shelf, &plan.fragments, filling)?;
        for &index in &plan.freed {
            self.free(&mut shelf[index as usize]);
        }
        shelf.retain(|block| !block.is_none());
        let fragments = shelf.len();
        self.fill(&mut shelf, &plan.fill, filling)?;
        // The slots come first. The fragmenting blocks come after them, and stay until the end.
        shelf.rotate_left(fragments);
        let steps = &plan.warm_up;
        let replace = |index| self.replace(&mut shelf, steps[index]);
        measure::steps(steps.len(), self.effort.warming, &mut Vec::new(), replace).map(|_| ())
    }

    fn fill(&self, shelf: &mut Vec<Block>, requests: &[Request], filling: &mut Filling) -> Attempt<()> {
        let begin = Instant::now();
        shelf.reserve_exact(requests.len());
        for (index, &of) in requests.iter().enumerate() {
            shelf.push(self.allocate(of)?);
            if index % 64 == 0 && begin.elapsed() > self.effort.preparing {
                let (count, limit) = (requests.len(), self.effort.preparing);
                let reason = format!("only {index} of the first {count} blocks were allocated in {limit:?}");
                return Err(Setback::skipped(reason));
            }
        }
        filling.blocks += requests.len() as u64;
        filling.time += begin.elapsed();
        Ok(())
    }

    fn round(
        &self,
        me: usize,
        round: usize,
        (steps, limit): (&[Replacement], Duration),
        samples: &mut Vec<u64>,
    ) -> Attempt<Lap> {
        // If threads hand over blocks, each thread works on the blocks of its neighbour in the next round.
        let shift = if self.hands_over { round } else { 0 };
        let mut shelf = lock(&self.shelves[(me + shift) % self.plans.len()])?;
        let replace = |index: usize| self.replace(&mut shelf, steps[index]);
        let lap = measure::steps(steps.len(), limit, samples, replace)?;
        if lap.steps < steps.len() as u64 {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(lap)
    }

    /// Does one step.
    #[inline]
    fn replace(&self, shelf: &mut [Block], step: Replacement) -> Attempt<()> {
        let slot = &mut shelf[step.slot as usize];
        self.free(slot);
        *slot = self.allocate(step.by)?;
        Ok(())
    }

    #[inline]
    fn allocate(&self, of: Request) -> Attempt<Block> {
        let address = self.subject.allocate(of.bytes.into(), self.streams[of.stream as usize])?;
        Ok(Block { address, of })
    }

    /// Frees the block in a slot on the stream that allocated the block.
    #[inline]
    fn free(&self, slot: &mut Block) {
        let Block { address, of } = *slot;
        *slot = Block::NONE;
        // SAFETY: a block in a slot is live, and the slot no longer holds it.
        unsafe { self.subject.free(address, of.bytes.into(), self.streams[of.stream as usize]) };
    }

    /// Frees the thread's blocks. If a thread panicked, its blocks are not freed, because it is not known
    /// which of them are live.
    fn empty(&self, me: usize) -> Attempt<()> {
        lock(&self.shelves[me])?
            .iter_mut()
            .filter(|block| !block.is_none())
            .for_each(|block| self.free(block));
        Ok(())
    }
}

fn lock(shelf: &Mutex<Vec<Block>>) -> Attempt<MutexGuard<'_, Vec<Block>>> {
    shelf.lock().map_err(|_| Setback::failed("another thread panicked".to_owned()))
}

fn panicked(payload: &(dyn std::any::Any + Send)) -> Setback {
    Error::panicked(payload).into()
}
