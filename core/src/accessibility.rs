//! Who can access a resource's memory.

use std::fmt;

/// Tells whether the device, the host, or both can read and write a resource's memory directly.
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
    /// Whether the resource's device can access the memory, in kernels and copies.
    pub device: bool,
    /// Whether code on the host can access the memory.
    pub host: bool,
}

impl Accessibility {
    /// Only the device can access the memory: plain CUDA memory.
    pub const DEVICE: Self = Self { device: true, host: false };
    /// Only the host can access the memory: system memory that the device cannot read.
    pub const HOST: Self = Self { device: false, host: true };
    /// Both the device and the host can access the memory: managed memory, pinned memory, and system memory
    /// that the device can read.
    pub const DEVICE_AND_HOST: Self = Self { device: true, host: true };

    /// Returns the access that both `self` and `other` allow.
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
