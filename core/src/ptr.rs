//! Addresses in device memory.

use std::fmt;

/// An address in device memory, or null.
///
/// A `DevicePtr` is a number, not a Rust pointer. The host can dereference the address only if the memory is
/// managed or pinned. A `DevicePtr` does not guarantee that there is live memory at the address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct DevicePtr(u64);

impl DevicePtr {
    /// The null pointer. A request for zero bytes returns it.
    pub const NULL: Self = Self(0);

    /// Returns the pointer with this address.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// Returns the address.
    pub const fn address(self) -> u64 {
        self.0
    }

    /// Returns whether this is [`DevicePtr::NULL`].
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns the pointer that is `bytes` bytes higher. The address wraps around at the end of the address
    /// space.
    #[must_use]
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// Returns whether the address is a multiple of `alignment`, which is a power of two.
    pub const fn is_aligned_to(self, alignment: u64) -> bool {
        self.0 & (alignment - 1) == 0
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
