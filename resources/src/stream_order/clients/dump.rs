//! Random states and all steps from them, for the proof.

use millpond_testkit::Rng;

use super::{BLOCKS, Call, Mistake, Place, STREAMS, Scale, State, THREADS};
use crate::stream_order::checker::dump::{Sampled, dump};

impl Sampled for State {
    const NAME: &'static str = "clients";
    const LATEST: u64 = 0;
    const MISTAKES: &'static [Mistake] = &Mistake::ALL;
    const SETBACKS: &'static [&'static str] = &["Destroy", "Order", "PassOn", "Fail", "Share"];
    const WHOLE: Scale =
        Scale { streams: STREAMS as u8, blocks: BLOCKS as u8, threads: THREADS as u8, locals: 2 };
    const ENOUGH: u64 = 8;

    fn scale(rng: &mut Rng) -> Scale {
        Scale { locals: rng.between(1, STREAMS as u64) as u8, ..Self::WHOLE }
    }

    fn change(&mut self, rng: &mut Rng, scale: Scale) {
        let [stream, other] = std::array::from_fn(|_| rng.below(scale.streams.into()) as usize);
        let block = rng.below(scale.blocks.into()) as usize;
        let thread = rng.below(scale.threads.into()) as usize;
        let is_set = rng.percent(50);
        match rng.below(15) {
            0 => self.exists[stream] = is_set,
            1 => self.captures[stream] = is_set,
            2 => self.local[stream] = is_set,
            3 => {
                let places = [Place::Pool, Place::New, Place::Held, Place::Old];
                self.place[block] = *rng.pick(&places).expect("a place");
            }
            4 => self.home[block] = stream as u8,
            5 => self.foreign[block] = is_set,
            6 => self.at_large[block] = is_set,
            7 => self.stray[block] = is_set,
            8 => self.ready[block][stream] = is_set,
            9 => self.after[block][stream][other] = is_set,
            10 => {
                let calls = [Call::Idle, Call::Use, Call::Loan, Call::Unnamed];
                self.call[thread] = *rng.pick(&calls).expect("a call");
            }
            11 => self.of[thread] = block as u8,
            12 => self.after[block][stream][self.home[block] as usize] = is_set,
            13 => self.at_large[block] = false,
            _ => self.on[thread] = stream as u8,
        }
    }
}

#[test]
fn all_actions_are_possible_and_all_parts_can_break() {
    dump::<State>(20, 8);
}
