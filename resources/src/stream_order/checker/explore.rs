//! The checker: visits every state, breadth first, so that a mistake's story is as short as possible.

use std::fmt::Write;

use rustc_hash::FxHashMap;

use super::model::{Action, Mistake, Scale, State, actions};

/// The counts of a visit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visited {
    /// The states. No two of them have the same shape.
    pub(super) states: usize,
    /// The steps between them.
    pub(super) steps: usize,
    /// The first state that breaks a rule, and the steps to it.
    pub(super) broken: Option<String>,
}

/// Visits all states that can be reached, and stops at the first state in which the pool's next block breaks
/// the rule. It also stops at a belief about an epoch that is not over, because shapes rely on this part of
/// the invariant, and without a mistake at any broken part. Calls `each` with every step.
pub(crate) fn explore(
    scale: Scale,
    mistake: Option<Mistake>,
    mut each: impl FnMut(&State, Action, &State),
) -> Visited {
    let actions = actions(scale);
    let start = State::START.shape(scale);
    let mut numbers = FxHashMap::from_iter([(start, 0)]);
    let mut states = vec![(start, 0, Action::Sweep { stream: 0 })];
    let mut visited = Visited::default();
    while visited.states < states.len() {
        let number = visited.states;
        let state = states[number].0;
        if let Some(why) = state.breaks_rule(scale).or_else(|| state.broken().filter(|_| mistake.is_none())) {
            visited.broken = Some(story(&states, number, why));
            return visited;
        }
        visited.states += 1;
        for action in &actions {
            let Some(next) = state.after(*action, scale, mistake) else { continue };
            visited.steps += 1;
            each(&state, *action, &next);
            if let Some(why) = next.broken_epoch() {
                visited.broken = Some(format!("{}\n  {action:?}", story(&states, number, why)));
                return visited;
            }
            let next = next.shape(scale);
            numbers.entry(next).or_insert_with(|| {
                states.push((next, number, *action));
                states.len() - 1
            });
        }
    }
    visited
}

/// Tells the steps to a state.
fn story(states: &[(State, usize, Action)], mut number: usize, why: &str) -> String {
    let mut lines = Vec::new();
    while number > 0 {
        let (state, before, action) = &states[number];
        lines.push(format!("{action:?}\n    {state:?}"));
        number = *before;
    }
    lines.reverse();
    let mut text = format!("{why}, after {} steps:", lines.len());
    lines.iter().for_each(|line| _ = write!(text, "\n  {line}"));
    text
}
