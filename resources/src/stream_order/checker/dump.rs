//! Random states and all steps from them, for the proof: `scripts/proof/compare.py` makes the same steps.
//!
//! A run of the model visits true states. A few random changes make states with false beliefs of each kind.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Display};
use std::io::{self, BufWriter, Write};
use std::marker::PhantomData;

use millpond_core::environment::variable;
use millpond_testkit::{Rng, size};

use super::explore::Model;

/// The file for the steps.
const FILE: &str = "MILLPOND_MODEL_STEPS";

/// A model whose states can be changed at random.
pub(crate) trait Sampled: Model<Action: PartialEq, Mistake: PartialEq> {
    /// The name of the model: the end of the file's name.
    const NAME: &'static str;
    /// The latest epoch.
    const LATEST: u64;
    /// All mistakes.
    const MISTAKES: &'static [Self::Mistake];
    /// Actions after which less can happen.
    const SETBACKS: &'static [&'static str];
    /// The largest scale: each state is written in full.
    const WHOLE: Self::Scale;

    /// How many states with each kind of action are written.
    const ENOUGH: u64;

    /// Draws a scale.
    fn scale(rng: &mut Rng) -> Self::Scale;

    /// Changes a field of the state.
    fn change(&mut self, rng: &mut Rng, scale: Self::Scale);
}

/// Visits a model at random. If `MILLPOND_MODEL_STEPS` names a file, the steps are written to it, with the
/// model's name at its end.
///
/// # Panics
/// A kind of action was never possible, a part of the invariant was never broken, or a mistake never showed.
pub(crate) fn dump<M: Sampled>(kinds: usize, parts: usize) {
    let out: Box<dyn Write> = match variable(FILE) {
        Some(mut path) => {
            path.push(format!(".{}", M::NAME));
            Box::new(BufWriter::new(std::fs::File::create(path).expect("a writable file")))
        }
        None => Box::new(io::sink()),
    };
    let mut dump: Dump<M> =
        Dump { rng: Rng::new(35), out, counts: BTreeMap::new(), parts: BTreeSet::new(), model: PhantomData };
    let start = M::start(M::WHOLE);
    dump.line(format_args!("latest {}\nstart {start:?}", M::LATEST));
    dump.visit(None, 8);
    assert_eq!(dump.counts.len(), kinds, "only these actions were possible: {:?}", dump.counts);
    assert_eq!(dump.parts.len(), parts, "only these parts were broken: {:?}", dump.parts);
    for mistake in M::MISTAKES {
        dump.counts.clear();
        dump.visit(Some(*mistake), 4);
        assert!(!dump.counts.is_empty(), "{mistake:?} changes no step");
    }
    dump.out.flush().expect("written");
}

/// The states that were written.
struct Dump<M> {
    rng: Rng,
    out: Box<dyn Write>,
    /// For each kind of action, from how many states it was possible; or in how many the mistake showed.
    counts: BTreeMap<String, u64>,
    /// The numbers of the parts that states broke.
    parts: BTreeSet<&'static str>,
    model: PhantomData<M>,
}

impl<M: Sampled> Dump<M> {
    fn line(&mut self, text: impl Display) {
        writeln!(self.out, "{text}").expect("written");
    }

    /// Makes random steps at some scales. Writes the states from which rare actions are possible, or those
    /// where the mistake shows. Writes a copy of each, with a few random changes.
    fn visit(&mut self, mistake: Option<M::Mistake>, scales: u64) {
        for _ in 0..scales {
            let scale = M::scale(&mut self.rng);
            self.line(format_args!("{scale:?}\nmistake {mistake:?}"));
            let mut state = M::start(scale);
            for _ in 0..size::of(500, 5000) {
                let broken = state.broken_parts().next();
                assert!(broken.is_none() || mistake.is_some(), "{broken:?}: {state:?}");
                let steps = all_steps(&state, scale, mistake);
                let kinds: BTreeSet<String> = steps.iter().map(|it| kind(&it.0)).collect();
                let mut changed = state;
                (0..self.rng.between(1, 4)).for_each(|_| changed.change(&mut self.rng, scale));
                let written = match mistake {
                    None => kinds.clone(),
                    Some(_) => [state, changed]
                        .iter()
                        .any(|it| all_steps(it, scale, mistake) != all_steps(it, scale, None))
                        .then(|| "the mistake".to_owned())
                        .into_iter()
                        .collect(),
                };
                let enough = size::of(M::ENOUGH, 10 * M::ENOUGH);
                if written.iter().any(|it| self.counts.get(it).is_none_or(|count| *count < enough)) {
                    self.write(&state, &steps);
                    self.write(&changed, &all_steps(&changed, scale, mistake));
                    written.into_iter().for_each(|it| *self.counts.entry(it).or_default() += 1);
                }
                // Each kind is equally likely, except those after which less can happen.
                let is_likely = |it: &String| !M::SETBACKS.contains(&it.as_str()) || self.rng.percent(10);
                let likely: Vec<String> = kinds.into_iter().filter(is_likely).collect();
                let Some(next) = self.rng.pick(&likely).cloned() else { continue };
                let of_kind: Vec<_> = steps.iter().filter(|it| kind(&it.0) == next).collect();
                state = self.rng.pick(&of_kind).expect("the kind has an action").1;
            }
        }
    }

    /// Writes a state and all steps from it.
    fn write(&mut self, state: &M, steps: &[(M::Action, M)]) {
        let (broken, races) = (broken_parts(state), state.breaks_rule(M::WHOLE).is_some());
        self.line(format_args!("{state:?}\nbroken {broken:?}\nraces {races}"));
        self.parts.extend(broken);
        steps.iter().for_each(|(action, next)| self.line(format_args!("{action:?} => {next:?}")));
    }
}

fn all_steps<M: Model>(state: &M, scale: M::Scale, mistake: Option<M::Mistake>) -> Vec<(M::Action, M)> {
    M::actions(scale).into_iter().filter_map(|it| Some((it, state.after(it, scale, mistake)?))).collect()
}

/// Returns the numbers of the broken parts.
fn broken_parts<M: Model>(state: &M) -> Vec<&'static str> {
    state.broken_parts().map(|part| part.split(':').next().unwrap_or_default()).collect()
}

/// Returns the name of an action without its fields.
fn kind(action: &impl Debug) -> String {
    format!("{action:?}").split(' ').next().unwrap_or_default().to_owned()
}
