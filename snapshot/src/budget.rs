//! Counts the memory that reading a file takes, and refuses more than the granted memory.

use std::fmt;

/// The memory left for the contents of a file, in bytes.
///
/// Each structure that grows with the file takes its bytes here before it allocates them.
#[derive(Debug)]
pub(crate) struct Budget {
    granted: u64,
    left: u64,
}

/// A file needs more memory than the granted amount.
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

    /// Takes memory for a coming allocation.
    ///
    /// # Errors
    /// Fewer than `bytes` are left.
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
            "needs more than {granted} of memory to import, the limit for a file of this size; if you trust \
             the file, "
        )?;
        f.write_str("raise the limit with `import --memory 4GiB`")
    }
}
