//! Counts the memory that reading a file takes, and refuses more than was granted.

use std::fmt;

/// The memory that is left for what is read from a file, in bytes.
///
/// Each structure that grows with the file takes its bytes here before it allocates them.
#[derive(Debug)]
pub(crate) struct Budget {
    granted: u64,
    left: u64,
}

/// A file needs more memory than was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exceeded {
    /// The memory that was granted, in bytes.
    granted: u64,
}

impl Budget {
    /// A budget of `granted` bytes.
    pub(crate) fn new(granted: u64) -> Self {
        Self { granted, left: granted }
    }

    /// Takes memory for something that is about to be allocated.
    ///
    /// # Errors
    /// Less than `bytes` are left.
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

    /// Gives memory back that was taken and has been freed.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.left = self.granted.min(self.left.saturating_add(bytes as u64));
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let granted = millpond_core::format_bytes(self.granted);
        write!(f, "needs more than the {granted} of memory that its size grants; if you trust the file, ")?;
        f.write_str("grant more with `import --memory 4GiB`")
    }
}
