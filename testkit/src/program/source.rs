//! Chooses a program's operations, and the devices and threads that run them.

use super::Config;
use super::broken::Broken;
use super::generate::Generator;
use super::op::Op;
use super::session::Session;
use crate::Rng;

/// One operation in this many switches to another device or thread.
const SWITCH: u64 = 16;

pub(super) struct Source {
    generators: Vec<Generator>,
    rng: Rng,
    devices: u8,
    threads: u8,
}

impl Source {
    pub(super) fn new(seed: u64, config: &Config) -> Self {
        let generators =
            (0..u64::from(config.devices)).map(|device| Generator::new(seed ^ device << 48, config));
        Self {
            generators: generators.collect(),
            rng: Rng::new(!seed),
            devices: config.devices,
            threads: config.threads,
        }
    }

    pub(super) fn next(&mut self, session: &Session) -> Result<Op, Broken> {
        if self.devices > 1 && self.rng.below(SWITCH) == 0 {
            return Ok(Op::Device { device: self.rng.below(self.devices.into()) as u8 });
        }
        if self.threads > 1 && self.rng.below(SWITCH) == 0 {
            return Ok(Op::Thread { thread: self.rng.below(self.threads.into()) as u8 });
        }
        Ok(self.generators[session.device()].next(session.current()?))
    }
}
