//! The fallible constructors of a layout.

use super::{ALLOCATION_ALIGNMENT, Layout};
use crate::{Error, ErrorKind, OutOfMemoryReport, Result, StreamRef};

impl Layout {
    /// Creates a layout of `bytes` bytes with this `alignment`. If `alignment` is less than
    /// [`ALLOCATION_ALIGNMENT`], the layout gets `ALLOCATION_ALIGNMENT`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if `alignment` is not a power of
    /// two.
    pub fn with_alignment(bytes: u64, alignment: u64) -> Result<Self> {
        if !alignment.is_power_of_two() {
            return Err(Error::invalid_argument(format!(
                "alignment {alignment} is not a power of two; use 256, 512, 1024, …"
            )));
        }
        Ok(Self { bytes, alignment: alignment.max(ALLOCATION_ALIGNMENT) })
    }

    /// Returns the layout of `count` values of `T`.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if the size overflows.
    pub fn array<T>(count: u64) -> Result<Self> {
        let bytes = (size_of::<T>() as u64).checked_mul(count).ok_or_else(|| {
            let message = format!(
                "{count} elements of {} bytes are more than an address space holds; check the number for an \
                 overflow",
                size_of::<T>()
            );
            let mut report = OutOfMemoryReport::new(Self::new(u64::MAX), StreamRef::LEGACY);
            report.is_impossible = true;
            Error::new(ErrorKind::OutOfMemory, message).for_layout(Self::new(u64::MAX)).with_report(report)
        })?;
        Self::with_alignment(bytes, align_of::<T>() as u64)
    }
}
