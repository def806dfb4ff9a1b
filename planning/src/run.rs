//! One run of the planner: its pieces and its time.

use std::time::Instant;

use crate::first_fit::first_fit;
use crate::instance::Instance;
use crate::search::{self, Piece};
use crate::{Options, Problem, parallel, pieces, skyline};

/// A placement in units, by the ids of blocks in the problem.
pub(crate) struct Placed {
    pub(crate) offsets: Vec<u64>,
    pub(crate) height: u64,
    /// The proved lower bound.
    pub(crate) bound: u64,
    /// The height at which the search stops.
    pub(crate) goal: u64,
}

/// The options of one run, and the time at which the run ends.
pub(crate) struct Search {
    end: Option<Instant>,
    threads: usize,
    rounds: u32,
    seed: u64,
}

impl Search {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            // If the time is beyond the clock's range, the run has no end.
            end: Instant::now().checked_add(options.time),
            threads: parallel::threads(options.threads),
            rounds: options.rounds,
            seed: options.seed,
        }
    }

    /// Returns the same search with an equal share of the remaining time, for one of this number of parts.
    pub(crate) fn part_of(&self, parts: usize) -> Self {
        let parts = u32::try_from(parts).unwrap_or(u32::MAX).max(1);
        let now = Instant::now();
        let end = self.end.map(|end| now + end.saturating_duration_since(now) / parts);
        Self { end, ..*self }
    }

    pub(crate) fn is_late(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Places blocks as if all of them belonged to one stream. If there is a capacity, in units, it is the
    /// goal of the search.
    pub(crate) fn one_lane(&self, problem: &Problem, ids: Vec<u32>, capacity: Option<u64>) -> Placed {
        let (placed, parts) = pieces::divide(problem, ids, 0, &|| self.is_late());
        let unit = problem.unit();
        let mut offsets = vec![0; problem.blocks().len()];
        let (mut height, mut bound) = (0, 0);
        for (id, offset) in placed {
            offsets[id as usize] = offset;
            height = height.max(offset + problem.blocks()[id as usize].size.div_ceil(unit));
        }
        bound = bound.max(height);
        let loads: Vec<u64> = parts.iter().map(|(instance, _)| instance.load()).collect();
        for ((_, base), load) in parts.iter().zip(&loads) {
            bound = bound.max(base + load);
        }
        let goal = capacity.unwrap_or(bound).max(bound);
        let mut pieces: Vec<Piece> = parts
            .into_iter()
            .zip(loads)
            .map(|((instance, base), load)| Piece::new(instance, base, goal - base, load, capacity.is_some()))
            .collect();
        search::skylines(&mut pieces, self.threads, &|| self.is_late());
        self.improve(&mut pieces);
        for piece in &pieces {
            height = height.max(piece.base + piece.height());
            bound = bound.max(piece.base + piece.bound());
            for (&id, &offset) in piece.instance.ids.iter().zip(piece.offsets()) {
                offsets[id as usize] = piece.base + offset;
            }
        }
        Placed { offsets, height, bound, goal }
    }

    /// Searches the highest piece in rounds, until no lower placement is possible.
    fn improve(&self, pieces: &mut [Piece]) {
        let mut rounds = vec![0; pieces.len()];
        loop {
            let top = |at: &usize| pieces[*at].base + pieces[*at].height();
            let Some(highest) = (0..pieces.len()).max_by_key(|at| (top(at), std::cmp::Reverse(*at))) else {
                return;
            };
            if pieces[highest].is_done() || rounds[highest] >= self.rounds || self.is_late() {
                return;
            }
            rounds[highest] += 1;
            self.round(&mut pieces[highest]);
        }
    }

    pub(crate) fn round(&self, piece: &mut Piece) {
        piece.search(self.threads, self.seed, &|| self.is_late());
    }

    /// Runs first fit with each key.
    pub(crate) fn first_fits(&self, instance: &Instance) -> Vec<Option<Vec<u64>>> {
        parallel::run(self.threads, skyline::KEYS, |key| first_fit(instance, key, &|| self.is_late()))
    }

    pub(crate) fn rounds(&self) -> u32 {
        self.rounds
    }
}
