//! Who can access a resource's memory.

use std::fmt;

/// Who can read and write a resource's memory at its address: the device, the host, or both.
///
/// ```
/// use millpond_core::Accessibility;
///
/// assert_eq!(Accessibility::DEVICE.to_string(), "device");
/// assert_eq!(Accessibility::DEVICE_AND_HOST.and(Accessibility::HOST), Accessibility::HOST);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "only the device and the host can access memory")]
pub struct Accessibility {
    /// Kernels and copies of the resource's device can access it.
    pub device: bool,
    /// Code on the host can access it.
    pub host: bool,
}

impl Accessibility {
    /// The device alone: plain CUDA memory.
    pub const DEVICE: Self = Self { device: true, host: false };
    /// The host alone: system memory, if the device cannot read it.
    pub const HOST: Self = Self { device: false, host: true };
    /// Both: managed and pinned memory, and system memory if the device can read it.
    pub const DEVICE_AND_HOST: Self = Self { device: true, host: true };

    /// Returns the access that `self` and `other` have in common.
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
