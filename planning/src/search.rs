//! The search for one piece of a problem. Skylines come first, then rounds of repair and exact search.
//!
//! In each round, each of a fixed number of workers gets an amount of work. The amount depends neither on the
//! clock nor on the number of cores. So a search that is not stopped early finds the same placement on every
//! machine.

use std::sync::{Mutex, PoisonError};

use crate::best_fit::best_fit;
use crate::exact::{Exact, Outcome};
use crate::instance::Instance;
use crate::parallel::{self, Race};
use crate::repair::Repair;
use crate::skyline;

/// The most blocks of a piece that is searched exactly. An exact search nests once for each block, and for
/// larger pieces it seldom ends.
const EXACT_BLOCKS: usize = 1500;
/// For up to this number of blocks, the first skyline is never stopped, because it takes only milliseconds.
const SURE_BLOCKS: usize = 1 << 14;
/// The work of a worker in the first round: the number of conflicts that a repair examines.
const FIRST_WORK: u64 = 1 << 16;
/// How many times the work doubles. It doubles every second round.
const DOUBLINGS: u32 = 8;
/// A drop of the exact search takes about as long as examining this many conflicts in a repair.
const WORK_PER_DROP: u64 = 12;
/// If a repair had this many rounds without success, it starts again from the best placement.
const PATIENCE: u32 = 6;

const WORKERS: usize = 8;
/// The height that each worker aims at, in 16ths of the distance from the goal to the best placement. If the
/// goal is too hard, a worker may still find a better placement than the best one.
const SHARES: [u64; WORKERS] = [0, 8, 0, 12, 0, 4, 1, 0];
/// The workers that search exactly, if a piece is small enough.
const EXACT: [usize; 6] = [0, 1, 2, 4, 5, 6];
/// The heights that these workers aim at in rounds that do not aim at the goal, one after another.
const EXACT_SHARES: [u64; 5] = [14, 8, 12, 16, 4];
/// In this many first rounds, every second round aims at the goal. After that, every fourth round does.
const HALF_ROUNDS: u32 = 12;

#[derive(Default)]
struct Worker {
    repair: Option<Repair>,
    /// The number of rounds since the repair began.
    rounds: u32,
}

/// One piece: blocks that are live at no position at which blocks of other pieces are live.
pub(crate) struct Piece {
    pub(crate) instance: Instance,
    /// The base of the piece in units. The blocks below it live longer than the piece.
    pub(crate) base: u64,
    /// A placement at this height suffices. In units above the base.
    goal: u64,
    /// No placement is lower than this height. In units above the base.
    bound: u64,
    /// Whether workers aim only at the goal.
    all_or_nothing: bool,
    best: Vec<u64>,
    height: u64,
    workers: Vec<Mutex<Worker>>,
    round: u32,
}

enum Found {
    Placement(Vec<u64>),
    /// No placement has at most this height.
    Impossible(u64),
    Nothing,
}

impl Piece {
    /// Makes a piece without a placement. `goal` is in units above the base. `None` means the bound.
    pub(crate) fn new(instance: Instance, base: u64, goal: u64, bound: u64, all_or_nothing: bool) -> Self {
        Self {
            instance,
            base,
            goal: goal.max(bound),
            bound,
            all_or_nothing,
            best: Vec::new(),
            height: u64::MAX,
            workers: (0..WORKERS).map(|_| Mutex::default()).collect(),
            round: 0,
        }
    }

    /// Sets the height at which the search stops, in units above the base.
    pub(crate) fn aim(&mut self, goal: u64) {
        self.goal = goal.max(self.bound);
    }

    pub(crate) fn height(&self) -> u64 {
        self.height
    }

    pub(crate) fn offsets(&self) -> &[u64] {
        &self.best
    }

    pub(crate) fn bound(&self) -> u64 {
        self.bound
    }

    /// Returns whether more search is useless.
    pub(crate) fn is_done(&self) -> bool {
        self.height <= self.goal.max(self.bound)
    }

    /// Stores a placement if it is lower than the best placement.
    pub(crate) fn offer(&mut self, offsets: Vec<u64>) {
        let tops = offsets.iter().zip(&self.instance.size).map(|(offset, size)| offset + size);
        let height = tops.max().unwrap_or(0);
        if height < self.height {
            self.height = height;
            self.best = offsets;
        }
    }

    /// Returns whether a placement reaches the goal.
    pub(crate) fn is_reached_by(&self, offsets: &[u64]) -> bool {
        offsets.iter().zip(&self.instance.size).all(|(offset, size)| offset + size <= self.goal)
    }

    /// Returns the height at this number of 16ths of the distance between the goal and the best placement.
    fn target(&self, share: u64) -> u64 {
        let goal = self.goal.max(self.bound);
        let room = self.height.saturating_sub(goal + 1);
        let share = if self.all_or_nothing { 0 } else { share };
        goal + (u128::from(room) * u128::from(share) / 16) as u64
    }

    /// Returns the number of the exact search that a worker makes in this round, and its share. Returns
    /// `None` if the worker repairs.
    fn exact(&self, worker: usize) -> Option<(usize, u64)> {
        if !self.is_small() {
            return None;
        }
        let place = EXACT.iter().position(|&exact| exact == worker)?;
        let (turn, aims_at_goal) = self.turn();
        let share = if aims_at_goal { 0 } else { EXACT_SHARES[turn as usize % EXACT_SHARES.len()] };
        Some((turn as usize * EXACT.len() + place, share))
    }

    /// Returns how many earlier rounds had the same aim, and whether exact searches aim at the goal in this
    /// round.
    fn turn(&self) -> (u32, bool) {
        if self.all_or_nothing || !self.is_small() {
            return (self.round, true);
        }
        // Every second round at first, later every fourth round.
        let early = self.round.min(HALF_ROUNDS);
        let late = self.round - early;
        let at_goal = early.div_ceil(2) + late.div_ceil(4);
        let aims_at_goal = if late == 0 { early.is_multiple_of(2) } else { late.is_multiple_of(4) };
        (if aims_at_goal { at_goal } else { self.round - at_goal }, aims_at_goal)
    }

    fn is_small(&self) -> bool {
        self.instance.len() <= EXACT_BLOCKS && self.instance.is_one_lane()
    }

    /// Runs one round of all workers. A placement must have been offered before.
    pub(crate) fn search(&mut self, threads: usize, seed: u64, stop: &(dyn Fn() -> bool + Sync)) {
        let race = Race::new();
        let (turn, aims_at_goal) = self.turn();
        // Aims above the goal are easier: there, many short searches succeed more often than a few long ones.
        let slowly = if aims_at_goal { 2 } else { 4 };
        let work = FIRST_WORK << (turn / slowly).min(DOUBLINGS);
        let found = parallel::run(threads, self.workers.len(), |number| {
            let stop = || stop() || race.is_over_for(number);
            if stop() {
                return Found::Nothing;
            }
            let found = self.work(number, work, seed, &stop);
            if let Found::Placement(offsets) = &found
                && (self.is_small() || self.is_reached_by(offsets))
            {
                race.reached(number);
            }
            found
        });
        self.round += 1;
        for (number, found) in found.into_iter().enumerate() {
            // Results from after the end of the race depend on the clock.
            if race.is_over_for(number) {
                self.workers[number] = Mutex::default();
                continue;
            }
            match found {
                Found::Placement(offsets) => self.offer(offsets),
                Found::Impossible(capacity) => self.bound = self.bound.max(capacity + 1),
                Found::Nothing => {}
            }
        }
    }

    fn work(&self, number: usize, work: u64, seed: u64, stop: &dyn Fn() -> bool) -> Found {
        if let Some((exact_number, share)) = self.exact(number) {
            let target = self.target(share);
            let mut exact = Exact::new(&self.instance, target, stop);
            return match exact.search(exact_number, seed, work / WORK_PER_DROP) {
                Outcome::Found(offsets) => Found::Placement(offsets),
                Outcome::Impossible => Found::Impossible(target),
                Outcome::Unknown => Found::Nothing,
            };
        }
        let target = self.target(SHARES[number]);
        let mut worker = self.workers[number].lock().unwrap_or_else(PoisonError::into_inner);
        if worker.rounds >= PATIENCE {
            *worker = Worker::default();
        }
        let instance = &self.instance;
        let own_seed = seed.wrapping_mul(31).wrapping_add(u64::from(self.round) * 64 + number as u64);
        let begin = || Repair::new(instance, target, self.best.clone(), own_seed);
        let mut repair = worker.repair.take().unwrap_or_else(begin);
        if target < repair.capacity() {
            repair.lower(instance, target);
        }
        let mut left = work;
        if repair.run(instance, &mut left, stop) {
            let offsets = repair.offsets().to_vec();
            *worker = Worker { repair: Some(repair), rounds: 0 };
            return Found::Placement(offsets);
        }
        *worker = Worker { repair: Some(repair), rounds: worker.rounds + 1 };
        Found::Nothing
    }
}

/// Computes the skylines of all pieces. For pieces that no skyline solves, also computes a best fit.
pub(crate) fn skylines(pieces: &mut [Piece], threads: usize, stop: &(dyn Fn() -> bool + Sync)) {
    let races: Vec<Race> = pieces.iter().map(|_| Race::new()).collect();
    let is_sure = pieces.iter().map(|piece| piece.instance.len()).sum::<usize>() <= SURE_BLOCKS;
    let found = parallel::run(threads, pieces.len() * skyline::KEYS, |number| {
        let (at, key) = (number / skyline::KEYS, number % skyline::KEYS);
        let (piece, race) = (&pieces[at], &races[at]);
        let stop = || !(key == 0 && is_sure) && (stop() || race.is_over_for(key));
        if stop() {
            return None;
        }
        let offsets = skyline::skyline(&piece.instance, &skyline::keys(&piece.instance, key), &stop)?;
        if piece.is_reached_by(&offsets) {
            race.reached(key);
        }
        Some(offsets)
    });
    for (number, offsets) in found.into_iter().enumerate() {
        if let Some(offsets) = offsets {
            pieces[number / skyline::KEYS].offer(offsets);
        }
    }
    // The time may have stopped the skylines that would be lower.
    for piece in pieces.iter_mut().filter(|piece| !piece.is_done()) {
        piece.offer(best_fit(&piece.instance));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{Problem, bounds, pieces, synthetic, validate};

    /// Places a problem whose time is over, and counts how often that asks for the time.
    fn asked_late(problem: &Problem) -> (Vec<u64>, usize) {
        let asked = AtomicUsize::new(0);
        let is_late = || {
            asked.fetch_add(1, Ordering::Relaxed);
            true
        };
        let ids = (0..problem.blocks().len() as u32).collect();
        let (placed, parts) = pieces::divide(problem, ids, 0, &is_late);
        let piece = |(instance, base)| Piece::new(instance, base, 0, 0, false);
        let mut pieces: Vec<Piece> = parts.into_iter().map(piece).collect();
        skylines(&mut pieces, 1, &is_late);
        let mut offsets = vec![0; problem.blocks().len()];
        placed.into_iter().for_each(|(id, offset)| offsets[id as usize] = offset * problem.unit());
        for piece in &pieces {
            for (&id, &offset) in piece.instance.ids.iter().zip(piece.offsets()) {
                offsets[id as usize] = (piece.base + offset) * problem.unit();
            }
        }
        (offsets, asked.into_inner())
    }

    #[test]
    fn a_large_problem_without_time_is_placed_by_best_fit() {
        let problem = Problem::new(synthetic::training(40_000, 1), 512).unwrap();
        let (offsets, asked) = asked_late(&problem);
        let height = validate(&problem, &offsets).unwrap();
        let least = bounds(&problem).bytes;
        assert!(height < least * 3 / 2, "{height} of {least}");
        // Each skyline asks once and stops.
        assert!(asked <= 1 + 2 * skyline::KEYS, "{asked}");
    }

    #[test]
    fn a_small_problem_always_has_its_first_skyline() {
        let problem = Problem::new(synthetic::training(4_000, 1), 512).unwrap();
        let instance = Instance::one_lane(&problem, 0..problem.blocks().len() as u32);
        let whole = skyline::skyline(&instance, &skyline::keys(&instance, 0), &|| false).unwrap();
        let tops = whole.iter().zip(&instance.size).map(|(offset, size)| offset + size);
        let height = tops.max().unwrap();
        let mut pieces = [Piece::new(instance, 0, 0, 0, false)];
        skylines(&mut pieces, 1, &|| true);
        assert!(pieces[0].height() <= height, "{} above {height}", pieces[0].height());
    }
}
