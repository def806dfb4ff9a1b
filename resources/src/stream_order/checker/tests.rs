//! Visits the model; `MILLPOND_THOROUGH=1` visits more of it.

use millpond_testkit::size::is_thorough;

use super::explore::{Visited, explore};
use super::model::{Id, Mistake, Scale, State};
use super::*;

const fn scale(streams: Id, blocks: Id, threads: Id, epochs: Epoch) -> Scale {
    Scale { streams, blocks, threads, epochs }
}

fn visit(scale: Scale) {
    let Visited { states, steps, broken } = explore::<State>(scale, None);
    println!("{scale:?}: {states} states, {steps} steps");
    assert!(broken.is_none(), "{}", broken.unwrap_or_default());
}

#[test]
fn no_state_breaks_the_rule() {
    visit(scale(2, 1, 1, 6));
    visit(scale(2, 1, 2, 2));
    visit(scale(2, 2, 1, 2));
    if is_thorough() {
        visit(scale(2, 2, 1, 3));
        visit(scale(3, 1, 1, 2));
        visit(scale(2, 1, 2, 4));
    }
}

fn finds(mistake: Mistake, scale: Scale) {
    let Visited { states, broken, .. } = explore::<State>(scale, Some(mistake));
    let story = broken.unwrap_or_else(|| panic!("{mistake:?} is not found in {states} states"));
    println!("{mistake:?}, {scale:?}, {states} states: {}", story.lines().next().unwrap_or_default());
}

#[test]
fn every_mistake_is_found() {
    let one_thread = scale(2, 1, 1, 3);
    let two_threads = scale(2, 1, 2, 3);
    for mistake in Mistake::ALL {
        match mistake {
            Mistake::Merge2489 => finds(mistake, scale(3, 1, 1, 3)),
            Mistake::SeenAtSettle => finds(mistake, scale(3, 1, 2, 2)),
            Mistake::SecondEventCounts
            | Mistake::QueryKeptOverRecord
            | Mistake::DeviceCoversLater
            | Mistake::WorkAfterFree => finds(mistake, two_threads),
            Mistake::RecordBeforeEpochEnds
            | Mistake::WaitNotedEarly
            | Mistake::WaitCoversLater
            | Mistake::SweepKeepsSeen
            | Mistake::SweepDuringCalls
            | Mistake::SweepDuringFree
            | Mistake::FreeWithoutOrder => finds(mistake, one_thread),
        }
    }
}
