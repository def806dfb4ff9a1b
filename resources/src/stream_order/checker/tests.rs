//! Visits the model; `MILLPOND_THOROUGH=1` visits more of it.

use millpond_testkit::size::is_thorough;

use super::explore::{finds, keeps_the_rule};
use super::model::{Id, Mistake, Scale, State};
use super::*;

const fn scale(streams: Id, blocks: Id, threads: Id, epochs: Epoch) -> Scale {
    Scale { streams, blocks, threads, epochs }
}

#[test]
fn no_state_breaks_the_rule() {
    keeps_the_rule::<State>(scale(2, 1, 1, 6));
    keeps_the_rule::<State>(scale(2, 1, 2, 2));
    keeps_the_rule::<State>(scale(2, 2, 1, 2));
    if is_thorough() {
        keeps_the_rule::<State>(scale(2, 2, 1, 3));
        keeps_the_rule::<State>(scale(3, 1, 1, 2));
        keeps_the_rule::<State>(scale(2, 1, 2, 4));
    }
}

#[test]
fn every_mistake_is_found() {
    let one_thread = scale(2, 1, 1, 3);
    let two_threads = scale(2, 1, 2, 3);
    for mistake in Mistake::ALL {
        match mistake {
            Mistake::Merge2489 => finds::<State>(mistake, scale(3, 1, 1, 3)),
            Mistake::SeenAtSettle => finds::<State>(mistake, scale(3, 1, 2, 2)),
            Mistake::SecondEventCounts
            | Mistake::QueryKeptOverRecord
            | Mistake::DeviceCoversLater
            | Mistake::WorkAfterFree => finds::<State>(mistake, two_threads),
            Mistake::RecordBeforeEpochEnds
            | Mistake::WaitNotedEarly
            | Mistake::WaitCoversLater
            | Mistake::SweepKeepsSeen
            | Mistake::SweepDuringCalls
            | Mistake::SweepDuringFree
            | Mistake::FreeWithoutOrder => finds::<State>(mistake, one_thread),
        }
    }
}
