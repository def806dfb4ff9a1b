//! The settings of a replay.

use millpond_core::stack::StackSpec;
use millpond_driver::DeviceSpec;
use millpond_engine::Options;

/// The device, the stacks and the options of a replay.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The device.
    pub device: DeviceSpec,
    /// The stacks; empty for the [standard line-up](crate::lineup).
    pub stacks: Vec<StackSpec>,
    /// The threads and passes.
    pub options: Options,
}

impl Settings {
    /// Returns the settings of a replay with the default options.
    pub fn new(device: DeviceSpec, stacks: Vec<StackSpec>) -> Self {
        Self { device, stacks, options: Options::default() }
    }

    millpond_core::setters! { options: Options }
}
