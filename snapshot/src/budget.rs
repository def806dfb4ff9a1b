//! Counts the memory that reading a file needs, and refuses to use more than the granted memory.

use std::fmt;

use millpond_core::format_bytes;

/// The smallest limit in bytes that an error suggests: the usual one.
const LEAST_MORE: u64 = 64 << 20;

/// The memory left for the contents of a file, in bytes.
///
/// Before a structure that grows with the file allocates bytes, it takes them from the budget.
#[derive(Debug)]
pub(crate) struct Budget {
    granted: u64,
    left: u64,
    /// The memory that the user granted, and the size of the file, in bytes.
    limits: (u64, u64),
}

/// The error if a file needs more memory than the granted amount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exceeded {
    /// The memory that the user granted, and the size of the file, in bytes.
    limits: (u64, u64),
}

impl Budget {
    /// Returns a budget of `granted` bytes.
    pub(crate) fn new(granted: u64) -> Self {
        Self { granted, left: granted, limits: (granted, 0) }
    }

    /// Returns the budget for a file of `size` bytes: `memory` bytes and the file's size. `overhead` bytes of
    /// them are for buffers.
    pub(crate) fn of_file(memory: u64, size: u64, overhead: u64) -> Self {
        let budget = Self::new(memory.saturating_sub(overhead).saturating_add(size));
        Self { limits: (memory, size), ..budget }
    }

    /// Takes the memory of an allocation, before the allocation is made.
    ///
    /// # Errors
    /// Fewer than `bytes` bytes are left in the budget.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Exceeded> {
        match self.left.checked_sub(bytes as u64) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Exceeded { limits: self.limits }),
        }
    }

    /// Returns freed memory to the budget.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.left = self.granted.min(self.left.saturating_add(bytes as u64));
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (memory, size) = self.limits;
        let [sum, granted, own, more] =
            [memory.saturating_add(size), memory, size, memory.saturating_mul(16).max(LEAST_MORE)]
                .map(format_bytes);
        let limits = match size {
            0 => format!("(--memory {granted})"),
            _ => format!("(--memory {granted} and the file's {own})"),
        };
        write!(
            f,
            "needs more than {sum} of memory to import {limits}; if you trust the file, raise the limit: \
             --memory {more}"
        )
    }
}
