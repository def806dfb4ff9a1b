//! The name of a device.

use std::fmt;

/// Identifies one device: a CUDA device, a simulated device, or the device of your own driver.
///
/// ```
/// use millpond_core::DeviceId;
/// assert_eq!(DeviceId::cuda(1).to_string(), "cuda:1");
/// assert_eq!(DeviceId::sim(0).to_string(), "sim:0");
/// assert_eq!(DeviceId::own(2).to_string(), "own:2");
/// assert_eq!(DeviceId::cuda(1).ordinal(), 1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(u32);

const SIM_BIT: u32 = 1 << 31;
const OWN_BIT: u32 = 1 << 30;
const ORDINAL: u32 = OWN_BIT - 1;

impl DeviceId {
    /// Returns the id of the CUDA device with the number `ordinal`, as CUDA counts devices.
    pub const fn cuda(ordinal: u32) -> Self {
        Self(ordinal & ORDINAL)
    }

    /// Returns the id of the simulated device with this number. Each simulated device in a process has a
    /// different number.
    pub const fn sim(number: u32) -> Self {
        Self(number & ORDINAL | SIM_BIT)
    }

    /// Returns the id of a device that belongs to a [driver of your own](crate::Driver#a-driver-of-your-own).
    /// You choose the number.
    pub const fn own(number: u32) -> Self {
        Self(number & ORDINAL | OWN_BIT)
    }

    /// Returns whether this is the id of a CUDA device.
    pub const fn is_cuda(self) -> bool {
        self.0 <= ORDINAL
    }

    /// Returns whether this is the id of a simulated device.
    pub const fn is_sim(self) -> bool {
        self.0 & SIM_BIT != 0
    }

    /// Returns the device's number among the devices of the same kind. For a CUDA device, the number is
    /// CUDA's ordinal. The number is less than 2^30.
    pub const fn ordinal(self) -> u32 {
        self.0 & ORDINAL
    }

    /// Returns the kind of the device: `cuda`, `sim` or `own`. `Display` prints the kind before a colon, as
    /// in `cuda:0`.
    pub const fn kind(self) -> &'static str {
        match self.0 & !ORDINAL {
            0 => "cuda",
            OWN_BIT => "own",
            _ => "sim",
        }
    }

    /// Returns the id of the device with this kind and number; `None` if there is no such kind.
    pub fn of_kind(kind: &str, number: u32) -> Option<Self> {
        match kind {
            "cuda" => Some(Self::cuda(number)),
            "sim" => Some(Self::sim(number)),
            "own" => Some(Self::own(number)),
            _ => None,
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind(), self.ordinal())
    }
}
