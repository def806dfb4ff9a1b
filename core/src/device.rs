//! The name of a device.

use std::fmt;

/// Names one device: a CUDA ordinal, or a simulated device.
///
/// ```
/// use millpond_core::DeviceId;
/// assert_eq!(DeviceId::cuda(1).to_string(), "cuda:1");
/// assert_eq!(DeviceId::sim(0).to_string(), "sim:0");
/// assert_eq!(DeviceId::cuda(1).ordinal(), 1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(u32);

const SIM_BIT: u32 = 1 << 31;

impl DeviceId {
    /// The CUDA device with this ordinal.
    pub const fn cuda(ordinal: u32) -> Self {
        Self(ordinal & !SIM_BIT)
    }

    /// The simulated device with this number; each simulated device of a process has its own.
    pub const fn sim(number: u32) -> Self {
        Self(number | SIM_BIT)
    }

    /// Whether the device is simulated.
    pub const fn is_sim(self) -> bool {
        self.0 & SIM_BIT != 0
    }

    /// The CUDA ordinal, or the number of the simulated device.
    pub const fn ordinal(self) -> u32 {
        self.0 & !SIM_BIT
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_sim() { "sim" } else { "cuda" };
        write!(f, "{kind}:{}", self.ordinal())
    }
}
