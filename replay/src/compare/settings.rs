//! The settings of a replay.

use millpond_core::stack::StackSpec;
use millpond_driver::DeviceSpec;
use millpond_engine::Options;

/// The device, the stacks and the options of a replay.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The device of the replay.
    pub device: DeviceSpec,
    /// The stacks to replay through. If there are none, the [standard line-up](crate::lineup) is used.
    pub stacks: Vec<StackSpec>,
    /// Stacks that also replay the log, after the stacks or the line-up.
    pub beside: Vec<StackSpec>,
    /// The threads, the passes, and whether failed requests are repeated.
    pub options: Options,
}

impl Settings {
    /// Returns the settings of a replay with the default options.
    pub fn new(device: DeviceSpec, stacks: Vec<StackSpec>) -> Self {
        Self { device, stacks, beside: Vec::new(), options: Options::default() }
    }

    millpond_core::setters! { beside: Vec<StackSpec>, options: Options }
}
