//! Visits the model; `MILLPOND_THOROUGH=1` visits more of it.

use millpond_testkit::size::is_thorough;

use super::{Id, Mistake, Scale, State};
use crate::stream_order::checker::explore::{finds, keeps_the_rule};

/// A scale in which the last `locals` streams are threads' default streams.
const fn scale(streams: Id, locals: Id, blocks: Id, threads: Id) -> Scale {
    Scale { streams, blocks, threads, locals: streams - locals }
}

#[test]
fn no_state_breaks_the_rule() {
    keeps_the_rule::<State>(scale(2, 1, 1, 2));
    keeps_the_rule::<State>(scale(3, 0, 1, 1));
    keeps_the_rule::<State>(scale(3, 1, 1, 2));
    keeps_the_rule::<State>(scale(3, 2, 1, 2));
    if is_thorough() {
        keeps_the_rule::<State>(scale(3, 0, 1, 2));
    }
}

#[test]
fn every_mistake_is_found() {
    for mistake in Mistake::ALL {
        let scale = match mistake {
            Mistake::OtherThreadsStream | Mistake::LegacyStandsForTwo => scale(3, 2, 1, 1),
            _ => scale(3, 0, 1, 1),
        };
        finds::<State>(mistake, scale);
    }
}
