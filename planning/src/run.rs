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

/// The placement of one stream in progress, in units.
pub(crate) struct Lane {
    /// The blocks that outlive their piece, with their offsets.
    outliving: Vec<(u32, u64)>,
    /// The end of the highest of these blocks.
    below: u64,
    pub(crate) pieces: Vec<Piece>,
    /// A lower bound, from before the search.
    bound: u64,
    goal: u64,
}

impl Lane {
    pub(crate) fn height(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.base + piece.height()).fold(self.below, u64::max)
    }

    /// Sets the height at which the search stops.
    pub(crate) fn aim(&mut self, height: u64) {
        self.goal = height.max(self.bound);
        self.pieces.iter_mut().for_each(|piece| piece.aim(self.goal - piece.base));
    }

    /// Returns the proved lower bound.
    pub(crate) fn bound(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.base + piece.bound()).fold(self.bound, u64::max)
    }

    /// Writes the offsets of the blocks, above `base`, by id in the problem.
    pub(crate) fn write(&self, base: u64, offsets: &mut [u64]) {
        for &(id, offset) in &self.outliving {
            offsets[id as usize] = base + offset;
        }
        for piece in &self.pieces {
            for (&id, &offset) in piece.instance.ids.iter().zip(piece.offsets()) {
                offsets[id as usize] = base + piece.base + offset;
            }
        }
    }
}

/// The options of one run, with its end.
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
        let mut lane = self.first_placement(problem, ids, capacity);
        self.improve(&mut lane.pieces);
        let mut offsets = vec![0; problem.blocks().len()];
        lane.write(0, &mut offsets);
        Placed { offsets, height: lane.height(), bound: lane.bound(), goal: lane.goal }
    }

    /// Makes the first placement of the blocks of one stream. A capacity, in units, is the goal of the search
    /// that follows.
    pub(crate) fn first_placement(&self, problem: &Problem, ids: Vec<u32>, capacity: Option<u64>) -> Lane {
        let (placed, parts) = pieces::divide(problem, ids, 0, &|| self.is_late());
        let size = |id: u32| problem.blocks()[id as usize].size.div_ceil(problem.unit());
        let below = placed.iter().map(|&(id, offset)| offset + size(id)).max().unwrap_or(0);
        let loads: Vec<u64> = parts.iter().map(|(instance, _)| instance.load()).collect();
        let bound = parts.iter().zip(&loads).map(|((_, base), load)| base + load).max().unwrap_or(0);
        let bound = bound.max(below);
        let goal = capacity.unwrap_or(bound).max(bound);
        let pieces = parts.into_iter().zip(loads);
        let mut pieces: Vec<Piece> = pieces
            .map(|((instance, base), load)| Piece::new(instance, base, goal - base, load, capacity.is_some()))
            .collect();
        search::skylines(&mut pieces, self.threads, &|| self.is_late());
        Lane { outliving: placed, below, pieces, bound, goal }
    }

    /// Searches the highest piece, round by round, until it need not or cannot be lower.
    pub(crate) fn improve(&self, pieces: &mut [Piece]) {
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
