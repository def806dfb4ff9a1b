//! Random states and all steps from them, for the proof: `scripts/proof/compare.py` makes the same steps.
//!
//! A run of the model visits true states. A few random changes make states with false beliefs of each kind.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io::{self, BufWriter, Write};

use millpond_core::environment::variable;
use millpond_testkit::{Rng, size};

use super::model::{Action, Call, Mistake, Place, Scale, Stage, State, actions};
use super::{BLOCKS, Epoch, STREAMS, THREADS};

/// The file for the steps.
const FILE: &str = "MILLPOND_MODEL_STEPS";

/// Actions after which less can happen.
const SETBACKS: [&str; 6] = ["Destroy", "Sweep", "Skip", "GiveUp", "Leave", "BeginDevice"];

/// Visits the model at random. If `MILLPOND_MODEL_STEPS` names a file, the steps are written to it.
#[test]
fn all_actions_are_possible_and_all_parts_can_break() {
    let out: Box<dyn Write> = match variable(FILE) {
        Some(path) => Box::new(BufWriter::new(std::fs::File::create(path).expect("a writable file"))),
        None => Box::new(io::sink()),
    };
    let mut dump = Dump { rng: Rng::new(35), out, counts: BTreeMap::new(), parts: BTreeSet::new() };
    dump.line(format_args!("latest {}\nstart {:?}", Epoch::MAX, State::START));
    dump.visit(None, 8);
    assert_eq!(dump.counts.len(), 22, "only these actions were possible: {:?}", dump.counts);
    assert_eq!(dump.parts.len(), 18, "only these parts were broken: {:?}", dump.parts);
    for mistake in Mistake::ALL {
        dump.counts.clear();
        dump.visit(Some(mistake), 4);
        assert!(!dump.counts.is_empty(), "{mistake:?} changes no step");
    }
    dump.out.flush().expect("written");
}

/// The states that were written.
struct Dump {
    rng: Rng,
    out: Box<dyn Write>,
    /// For each kind of action, from how many states it was possible; or in how many the mistake showed.
    counts: BTreeMap<String, u64>,
    /// The numbers of the parts that states broke.
    parts: BTreeSet<&'static str>,
}

impl Dump {
    fn line(&mut self, text: impl Display) {
        writeln!(self.out, "{text}").expect("written");
    }

    /// Makes random steps at some scales. Writes the states from which rare actions are possible, or those
    /// where the mistake shows. Writes a copy of each, with a few random changes.
    fn visit(&mut self, mistake: Option<Mistake>, scales: u64) {
        for _ in 0..scales {
            let [streams, blocks, threads] =
                [STREAMS, BLOCKS, THREADS].map(|it| self.rng.between(it as u64 - 1, it as u64) as u8);
            let scale = Scale { streams, blocks, threads, epochs: 12 };
            self.line(format_args!("{scale:?}\nmistake {mistake:?}"));
            let mut state = State::START;
            for _ in 0..size::of(500, 5000) {
                let broken = state.broken();
                assert!(broken.is_none() || mistake.is_some(), "{broken:?}: {state:?}");
                let steps = all_steps(&state, scale, mistake);
                let kinds: BTreeSet<String> = steps.iter().map(|it| kind(&it.0)).collect();
                let mut changed = state;
                (0..self.rng.between(1, 4)).for_each(|_| change(&mut changed, &mut self.rng, scale));
                let written = match mistake {
                    None => kinds.clone(),
                    Some(_) => [state, changed]
                        .iter()
                        .any(|it| all_steps(it, scale, mistake) != all_steps(it, scale, None))
                        .then(|| "the mistake".to_owned())
                        .into_iter()
                        .collect(),
                };
                let enough = size::of(40, 400);
                if written.iter().any(|it| self.counts.get(it).is_none_or(|count| *count < enough)) {
                    self.write(&state, &steps);
                    self.write(&changed, &all_steps(&changed, scale, mistake));
                    written.into_iter().for_each(|it| *self.counts.entry(it).or_default() += 1);
                }
                // Each kind is equally likely, except those after which less can happen.
                let is_likely = |it: &String| !SETBACKS.contains(&it.as_str()) || self.rng.percent(10);
                let likely: Vec<String> = kinds.into_iter().filter(is_likely).collect();
                let Some(next) = self.rng.pick(&likely).cloned() else { continue };
                let of_kind: Vec<_> = steps.iter().filter(|it| kind(&it.0) == next).collect();
                state = self.rng.pick(&of_kind).expect("the kind has an action").1;
            }
        }
    }

    /// Writes a state and all steps from it.
    fn write(&mut self, state: &State, steps: &[(Action, State)]) {
        const SCALE: Scale = Scale { streams: STREAMS as u8, blocks: BLOCKS as u8, threads: 0, epochs: 0 };
        let (broken, races) = (broken_parts(state), state.breaks_rule(SCALE).is_some());
        self.line(format_args!("{state:?}\nbroken {broken:?}\nraces {races}"));
        self.parts.extend(broken);
        steps.iter().for_each(|(action, next)| self.line(format_args!("{action:?} => {next:?}")));
    }
}

fn all_steps(state: &State, scale: Scale, mistake: Option<Mistake>) -> Vec<(Action, State)> {
    actions(scale).into_iter().filter_map(|it| Some((it, state.after(it, scale, mistake)?))).collect()
}

/// Returns the numbers of the broken parts.
fn broken_parts(state: &State) -> Vec<&'static str> {
    state.broken_parts().map(|part| part.split(':').next().unwrap_or_default()).collect()
}

/// Returns the name of an action without its fields.
fn kind(action: &Action) -> String {
    format!("{action:?}").split(' ').next().unwrap_or_default().to_owned()
}

/// Changes a field of the state.
fn change(state: &mut State, rng: &mut Rng, scale: Scale) {
    let stream = rng.below(scale.streams.into()) as u8;
    let thread = rng.below(scale.threads.into()) as u8;
    let epoch = rng.below(7) as Epoch;
    let is_set = rng.percent(50);
    let it = &mut state.streams[rng.below(scale.streams.into()) as usize];
    let block = &mut state.blocks[rng.below(scale.blocks.into()) as usize];
    match rng.below(13) {
        0 => it.exists = is_set,
        1 => it.is_known = is_set,
        2 => it.epoch = epoch,
        3 => it.has_event = is_set,
        4 => it.recorded = epoch,
        5 => it.recorded_seen[stream as usize] = epoch,
        6 => it.seen[stream as usize] = epoch,
        7 => block.before ^= 1 << stream,
        8 => block.covered ^= 1 << stream,
        9 => block.held ^= 1 << thread,
        10 => block.is_done = is_set,
        11 => {
            block.place = *rng
                .pick(&[
                    Place::Live,
                    Place::Unowned,
                    Place::Free { owner: stream, epoch },
                    Place::Freeing { owner: stream, epoch },
                ])
                .expect("a place");
        }
        _ => state.calls[thread as usize] = call(rng, scale, stream, epoch),
    }
}

fn call(rng: &mut Rng, scale: Scale, stream: u8, epoch: Epoch) -> Call {
    let mut epochs = [0; STREAMS];
    epochs[..scale.streams as usize].iter_mut().for_each(|it| *it = rng.below(7) as Epoch);
    let [is_first, is_made, is_reached] = std::array::from_fn(|_| rng.percent(50));
    let waiter = rng.below(scale.streams.into()) as u8;
    let stages = [Stage::Picked, Stage::Reached, Stage::Waits(waiter)];
    match rng.below(4) {
        0 => Call::Idle,
        1 => Call::Record { stream, epoch, seen: epochs, is_first, is_made, is_reached },
        2 => Call::Event { stream, epoch, seen: epochs, stage: *rng.pick(&stages).expect("a stage") },
        _ => Call::Device { epochs, is_made },
    }
}
