//! Takes every step of the model in the pool, too, in every state of the checker.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use super::rig::Rig;
use super::world::World;
use crate::stream_order::checker::THREADS;
use crate::stream_order::checker::model::{Action, Call, Mistake, Place, Scale, Stage, State, actions};

/// A state of the model, the pool in the same state, and the steps that led there.
struct Pair {
    state: State,
    world: World,
    steps: Vec<Action>,
}

/// The counts of a comparison.
#[derive(Default, Debug)]
pub(super) struct Compared {
    /// The states. No two of them have the same shape.
    pub(super) states: usize,
    /// The steps that both took.
    pub(super) steps: usize,
    /// The steps that both refused.
    pub(super) refused: usize,
}

/// Lets the pool take every step of the model in the first `most` states, with a mistake in the model if one
/// is given.
///
/// # Errors
/// The first step after which the two differ, with the steps before it.
pub(super) fn compare(scale: Scale, mistake: Option<Mistake>, most: usize) -> Result<Compared, String> {
    let rig = Rig::new();
    // The limits of the scale are not the pool's: they only say how far the comparison goes.
    let roomy = Scale { threads: THREADS as u8, epochs: 100, ..scale };
    let actions = actions(scale);
    let mut shapes = FxHashSet::from_iter([State::START.shape(scale)]);
    let mut open = VecDeque::from([Pair { state: State::START, world: rig.start(), steps: Vec::new() }]);
    let mut compared = Compared::default();
    while let Some(Pair { state, world, steps }) = open.pop_front() {
        if compared.states == most {
            break;
        }
        compared.states += 1;
        let few = state.renumbered();
        for action in &actions {
            let next = state.after(*action, roomy, mistake);
            if next.is_none() && !is_for_the_pool_to_refuse(&state, *action) {
                continue;
            }
            let mut world = world.clone();
            let is_possible = rig.step(&mut world, *action);
            let differs = |what: String| {
                Err(format!(
                    "the pool and the model differ: {what}\nafter {steps:?}\nat {action:?}\nin {state:?}"
                ))
            };
            let Some(next) = next else {
                if is_possible {
                    return differs("the pool takes a step that the model refuses".to_owned());
                }
                compared.refused += 1;
                continue;
            };
            if !is_possible {
                return differs("the pool refuses a step of the model".to_owned());
            }
            match world.in_words_of(&next) {
                Ok(pool) if pool == next => {}
                Ok(pool) => return differs(format!("model {next:?}\npool  {pool:?}")),
                Err(why) => return differs(why),
            }
            compared.steps += 1;
            let is_in_scale = few.after(*action, scale, mistake).is_some();
            if is_in_scale && shapes.insert(next.shape(scale)) {
                let steps = steps.iter().copied().chain([*action]).collect();
                open.push_back(Pair { state: next, world, steps });
            }
        }
    }
    Ok(compared)
}

/// Returns whether the pool itself refuses this step, since its beliefs do not allow it. Other steps are not
/// possible because the program, the driver or the thread does not make them.
fn is_for_the_pool_to_refuse(state: &State, action: Action) -> bool {
    match action {
        Action::Meet { stream } | Action::Take { stream, .. } => state.streams[stream as usize].exists,
        Action::Sweep { .. } | Action::Skip { .. } => true,
        Action::Pick { .. } => {
            let is_free = |place| !matches!(place, Place::Freeing { .. });
            state.calls.iter().all(|call| *call == Call::Idle)
                && state.blocks.iter().all(|block| is_free(block.place))
        }
        Action::Disown { thread, .. } => {
            matches!(state.calls[thread as usize], Call::Event { stage: Stage::Reached, .. })
        }
        _ => false,
    }
}
