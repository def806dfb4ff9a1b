//! Visits the model; `MILLPOND_THOROUGH=1` visits more of it.

use millpond_testkit::size::is_thorough;

use super::{Id, Mistake, Scale, State};
use crate::stream_order::checker::explore::{Visited, explore};

/// A scale in which the last `locals` streams are threads' default streams.
const fn scale(streams: Id, locals: Id, blocks: Id, threads: Id) -> Scale {
    Scale { streams, blocks, threads, locals: streams - locals }
}

fn visit(scale: Scale) {
    let Visited { states, steps, broken } = explore::<State>(scale, None);
    println!("{scale:?}: {states} states, {steps} steps");
    assert!(broken.is_none(), "{}", broken.unwrap_or_default());
}

#[test]
fn no_state_breaks_the_rule() {
    visit(scale(2, 1, 1, 2));
    visit(scale(3, 0, 1, 1));
    visit(scale(3, 1, 1, 2));
    visit(scale(3, 2, 1, 2));
    if is_thorough() {
        visit(scale(3, 0, 1, 2));
    }
}

#[test]
fn every_mistake_is_found() {
    for mistake in Mistake::ALL {
        let scale = match mistake {
            Mistake::OtherThreadsStream | Mistake::LegacyStandsForTwo => scale(3, 2, 1, 1),
            _ => scale(3, 0, 1, 1),
        };
        let Visited { states, broken, .. } = explore::<State>(scale, Some(mistake));
        let story = broken.unwrap_or_else(|| panic!("{mistake:?} is not found in {states} states"));
        println!("{mistake:?}, {scale:?}, {states} states: {}", story.lines().next().unwrap_or_default());
    }
}
