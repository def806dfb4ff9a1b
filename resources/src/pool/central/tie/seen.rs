//! The sums over the followers of several programs.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use super::calls::Shared;
use super::follow::TOO_MANY;

#[derive(Default)]
pub(super) struct Seen {
    pub(super) programs: u64,
    pub(super) operations: u64,
    pub(super) pools: u64,
    /// The pools with more streams than the model: their followers stopped.
    pub(super) stopped: u64,
    /// How often each action of the model was taken.
    pub(super) taken: BTreeMap<String, u64>,
}

impl Seen {
    /// Adds what one follower has seen. An error says how its pool and the model differ.
    pub(super) fn note(&mut self, follower: &Shared) -> Result<(), String> {
        let follower = follower.lock();
        match &follower.failed {
            Some(why) if why.contains(TOO_MANY) => self.stopped += 1,
            Some(why) => return Err(why.clone()),
            None => {}
        }
        self.pools += 1;
        for (name, count) in &follower.taken {
            *self.taken.entry(name.clone()).or_default() += count;
        }
        Ok(())
    }
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        let Self { programs, operations, pools, stopped, taken } = other;
        self.programs += programs;
        self.operations += operations;
        self.pools += pools;
        self.stopped += stopped;
        for (name, count) in taken {
            *self.taken.entry(name).or_default() += count;
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, operations, pools, stopped, taken } = self;
        let steps: u64 = taken.values().sum();
        write!(
            f,
            "{programs} programs, {operations} operations, {pools} pools ({stopped} stopped), {steps} steps"
        )
    }
}
