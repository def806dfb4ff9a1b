//! The model of the pool, for the checker.

use millpond_testkit::Rng;

use super::dump::{Sampled, dump};
use super::explore::Model;
use super::model::{Action, Call, Mistake, Place, Scale, Stage, State, actions};
use super::{BLOCKS, Epoch, STREAMS, THREADS};

impl Model for State {
    type Scale = Scale;
    type Action = Action;
    type Mistake = Mistake;

    fn start(_: Scale) -> Self {
        Self::START
    }

    fn actions(scale: Scale) -> Vec<Action> {
        actions(scale)
    }

    fn after(&self, action: Action, scale: Scale, mistake: Option<Mistake>) -> Option<Self> {
        self.after(action, scale, mistake)
    }

    fn shape(self, scale: Scale) -> Self {
        self.shape(scale)
    }

    fn breaks_rule(&self, scale: Scale) -> Option<&'static str> {
        self.breaks_rule(scale)
    }

    fn broken_parts(&self) -> impl Iterator<Item = &'static str> {
        self.broken_parts()
    }

    /// Shapes number epochs again, so a belief must not name an epoch that is not over.
    fn broken_shape(&self) -> Option<&'static str> {
        self.broken_epoch()
    }
}

impl Sampled for State {
    const NAME: &'static str = "pool";
    const LATEST: u64 = Epoch::MAX as u64;
    const MISTAKES: &'static [Mistake] = &Mistake::ALL;
    const SETBACKS: &'static [&'static str] = &["Destroy", "Sweep", "Skip", "GiveUp", "Leave", "BeginDevice"];
    const WHOLE: Scale = Scale { streams: STREAMS as u8, blocks: BLOCKS as u8, threads: 0, epochs: 0 };
    const ENOUGH: u64 = 40;

    fn scale(rng: &mut Rng) -> Scale {
        let [streams, blocks, threads] =
            [STREAMS, BLOCKS, THREADS].map(|it| rng.between(it as u64 - 1, it as u64) as u8);
        Scale { streams, blocks, threads, epochs: 12 }
    }

    fn change(&mut self, rng: &mut Rng, scale: Scale) {
        let stream = rng.below(scale.streams.into()) as u8;
        let thread = rng.below(scale.threads.into()) as u8;
        let epoch = rng.below(7) as Epoch;
        let is_set = rng.percent(50);
        let it = &mut self.streams[rng.below(scale.streams.into()) as usize];
        let block = &mut self.blocks[rng.below(scale.blocks.into()) as usize];
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
            _ => self.calls[thread as usize] = call(rng, scale, stream, epoch),
        }
    }
}

#[test]
fn all_actions_are_possible_and_all_parts_can_break() {
    dump::<State>(22, 18);
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
