//! One memory access of a simulated kernel.

use millpond_core::DevicePtr;

/// An access of a simulated kernel to a range of memory; see
/// [`SimDevice::launch`](crate::sim::SimDevice::launch).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub(crate) ptr: DevicePtr,
    pub(crate) bytes: u64,
    pub(crate) action: Action,
}

/// A tag means that the range is filled with the tag's eight little-endian bytes, repeated, in phase with the
/// address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Read,
    Write(u64),
    Check(u64),
}

impl Access {
    /// Reads `bytes` bytes at `ptr`. The read is correct for any contents.
    pub const fn read(ptr: DevicePtr, bytes: u64) -> Self {
        Self { ptr, bytes, action: Action::Read }
    }

    /// Fills `bytes` bytes at `ptr` with the pattern of a tag. The pattern is the eight bytes of `tag` in
    /// little-endian order, repeated.
    pub const fn write(ptr: DevicePtr, bytes: u64, tag: u64) -> Self {
        Self { ptr, bytes, action: Action::Write(tag) }
    }

    /// Reads `bytes` bytes at `ptr`, and compares them with the pattern of `tag`. If a byte differs, the
    /// device records a violation.
    pub const fn check(ptr: DevicePtr, bytes: u64, tag: u64) -> Self {
        Self { ptr, bytes, action: Action::Check(tag) }
    }
}
