//! Compares the pool with the model; `MILLPOND_THOROUGH=1` compares more states.

use millpond_testkit::size::is_thorough;

use super::compare::compare;
use crate::stream_order::checker::Epoch;
use crate::stream_order::checker::model::{Id, Mistake, Scale};

const fn scale(streams: Id, blocks: Id, threads: Id, epochs: Epoch) -> Scale {
    Scale { streams, blocks, threads, epochs }
}

/// The pool takes every step of the model, with the same answer and the same beliefs.
#[test]
fn the_pool_takes_the_steps_of_the_model() {
    const ALL: usize = usize::MAX;
    let mut scales = vec![
        (scale(2, 1, 1, 6), ALL),
        (scale(2, 1, 2, 2), ALL),
        (scale(2, 2, 1, 2), ALL),
        (scale(2, 1, 2, 3), 20_000),
    ];
    if is_thorough() {
        scales.extend([(scale(2, 2, 1, 3), ALL), (scale(3, 1, 1, 2), ALL), (scale(2, 1, 2, 3), ALL)]);
    }
    for (scale, most) in scales {
        match compare(scale, None, most) {
            Ok(compared) => println!("{scale:?}: {compared:?}"),
            Err(why) => panic!("{scale:?}: {why}"),
        }
    }
}

/// A mistake in the model makes the two differ. The two mistakes of a layer or the program change no belief;
/// the checker's rule finds them.
#[test]
fn a_mistake_in_the_model_is_found() {
    for mistake in Mistake::ALL {
        let scale = scale(if mistake == Mistake::Merge2489 { 3 } else { 2 }, 1, 2, 3);
        if matches!(mistake, Mistake::WorkAfterFree | Mistake::FreeWithoutOrder) {
            continue;
        }
        let why = compare(scale, Some(mistake), usize::MAX).expect_err("the pool has no such mistake");
        let lines: Vec<&str> = why.lines().collect();
        println!("{mistake:?}: {}", lines[lines.len() - 2]);
    }
}
