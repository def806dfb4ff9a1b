//! What can reach a resource's memory.

use std::fmt;

/// Whether the device, the host, or both read and write a resource's memory at its address.
///
/// ```
/// use millpond_core::Accessibility;
///
/// assert_eq!(Accessibility::DEVICE.to_string(), "device");
/// assert_eq!(Accessibility::DEVICE_AND_HOST.and(Accessibility::HOST), Accessibility::HOST);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Accessibility {
    /// Kernels and copies of the resource's device reach it.
    pub device: bool,
    /// Code on the host reaches it.
    pub host: bool,
}

impl Accessibility {
    /// The device alone: plain CUDA memory.
    pub const DEVICE: Self = Self { device: true, host: false };
    /// The host alone: memory of the system where the device does not read it.
    pub const HOST: Self = Self { device: false, host: true };
    /// Both: managed and pinned memory, and memory of the system where the device reads it.
    pub const DEVICE_AND_HOST: Self = Self { device: true, host: true };

    /// What reaches the memory of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { device: self.device && other.device, host: self.host && other.host }
    }
}

impl fmt::Display for Accessibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.device, self.host) {
            (true, true) => "device and host",
            (true, false) => "device",
            (false, true) => "host",
            (false, false) => "nothing",
        })
    }
}
