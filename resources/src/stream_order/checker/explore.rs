//! The checker: visits every state, breadth first, so that a mistake's story is as short as possible.

use std::fmt::{Debug, Write};
use std::hash::Hash;

use rustc_hash::FxHashMap;

/// A model whose states can be visited.
pub(crate) trait Model: Copy + Eq + Hash + Debug {
    /// How much of the model is used.
    type Scale: Copy + Debug;
    /// A step.
    type Action: Copy + Debug;
    /// A mistake in a step.
    type Mistake: Copy + Debug + 'static;

    /// Returns the first state.
    fn start(scale: Self::Scale) -> Self;

    /// Returns every action of this scale, possible or not.
    fn actions(scale: Self::Scale) -> Vec<Self::Action>;

    /// Returns the state after an action, with a mistake if one is given; `None` if the action is not
    /// possible.
    fn after(&self, action: Self::Action, scale: Self::Scale, mistake: Option<Self::Mistake>)
    -> Option<Self>;

    /// Returns the state that stands for all states from which the same steps are possible.
    fn shape(self, scale: Self::Scale) -> Self;

    /// Says how the state breaks the rule.
    fn breaks_rule(&self, scale: Self::Scale) -> Option<&'static str>;

    /// Returns each broken part of the invariant. Each begins with its number.
    fn broken_parts(&self) -> impl Iterator<Item = &'static str>;

    /// Returns the broken part on which shapes rely.
    fn broken_shape(&self) -> Option<&'static str> {
        None
    }
}

/// The counts of a visit.
#[derive(Clone, Debug, Default)]
struct Visited {
    /// The states. No two of them have the same shape.
    states: usize,
    /// The steps between them.
    steps: usize,
    /// The first state that breaks a rule, and the steps to it.
    broken: Option<String>,
}

/// Asserts that no state of this scale breaks the rule or the invariant, and prints how many there are.
pub(crate) fn keeps_the_rule<M: Model>(scale: M::Scale) {
    let Visited { states, steps, broken } = explore::<M>(scale, None);
    println!("{scale:?}: {states} states, {steps} steps");
    assert!(broken.is_none(), "{}", broken.unwrap_or_default());
}

/// Asserts that a state breaks the rule with this mistake, and prints how.
pub(crate) fn finds<M: Model>(mistake: M::Mistake, scale: M::Scale) {
    let Visited { states, broken, .. } = explore::<M>(scale, Some(mistake));
    let story = broken.unwrap_or_else(|| panic!("{mistake:?} is not found in {states} states"));
    println!("{mistake:?}, {scale:?}, {states} states: {}", story.lines().next().unwrap_or_default());
}

/// Visits all states that can be reached, and stops at the first state that breaks the rule. It also stops at
/// a broken part on which shapes rely, and without a mistake at any broken part.
fn explore<M: Model>(scale: M::Scale, mistake: Option<M::Mistake>) -> Visited {
    let actions = M::actions(scale);
    let start = M::start(scale).shape(scale);
    let mut numbers = FxHashMap::from_iter([(start, 0)]);
    let mut states = vec![(start, 0, None)];
    let mut visited = Visited::default();
    while visited.states < states.len() {
        let number = visited.states;
        let state = states[number].0;
        let broken_part = || state.broken_parts().next().filter(|_| mistake.is_none());
        if let Some(why) = state.breaks_rule(scale).or_else(broken_part) {
            visited.broken = Some(story(&states, number, why));
            return visited;
        }
        visited.states += 1;
        for action in &actions {
            let Some(next) = state.after(*action, scale, mistake) else { continue };
            visited.steps += 1;
            if let Some(why) = next.broken_shape() {
                visited.broken = Some(format!("{}\n  {action:?}", story(&states, number, why)));
                return visited;
            }
            let next = next.shape(scale);
            numbers.entry(next).or_insert_with(|| {
                states.push((next, number, Some(*action)));
                states.len() - 1
            });
        }
    }
    visited
}

/// Tells the steps to a state.
fn story<M: Model>(states: &[(M, usize, Option<M::Action>)], mut number: usize, why: &str) -> String {
    let mut lines = Vec::new();
    while let (state, before, Some(action)) = &states[number] {
        lines.push(format!("{action:?}\n    {state:?}"));
        number = *before;
    }
    lines.reverse();
    let mut text = format!("{why}, after {} steps:", lines.len());
    lines.iter().for_each(|line| _ = write!(text, "\n  {line}"));
    text
}
