//! Counts the memory that reading a file needs, and refuses to use more than the granted memory.

use std::fmt;

/// The memory left for the contents of a file, in bytes.
///
/// Before a structure that grows with the file allocates bytes, it takes them from the budget.
#[derive(Debug)]
pub(crate) struct Budget {
    granted: u64,
    left: u64,
}

/// The error if a file needs more memory than the granted amount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exceeded {
    /// The granted memory, in bytes.
    granted: u64,
}

impl Budget {
    /// Returns a budget of `granted` bytes.
    pub(crate) fn new(granted: u64) -> Self {
        Self { granted, left: granted }
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
            None => Err(Exceeded { granted: self.granted }),
        }
    }

    /// Returns freed memory to the budget.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.left = self.granted.min(self.left.saturating_add(bytes as u64));
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let granted = millpond_core::format_bytes(self.granted);
        write!(
            f,
            "needs more than {granted} of memory to import, which is the limit for a file of this size; if \
             you trust the file, "
        )?;
        f.write_str("raise the limit with `import --memory 4GiB`")
    }
}
