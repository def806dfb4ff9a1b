//! What becomes of memory that a resource gives back to its upstream.

use millpond_core::{Error, Result};

/// What several resources gave back. One that fails keeps none of the others from doing so.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    pub(crate) bytes: u64,
    /// The first error.
    pub(crate) error: Option<Error>,
}

impl Returned {
    pub(crate) fn add(&mut self, returned: Result<u64>) {
        match returned {
            Ok(bytes) => self.bytes += bytes,
            Err(error) => _ = self.error.get_or_insert(error),
        }
    }

    /// # Errors
    /// The first error, though other resources gave something back.
    pub(crate) fn bytes(self) -> Result<u64> {
        self.error.map_or(Ok(self.bytes), Err)
    }
}

impl FromIterator<Result<u64>> for Returned {
    fn from_iter<T: IntoIterator<Item = Result<u64>>>(each: T) -> Self {
        let mut all = Self::default();
        each.into_iter().for_each(|returned| all.add(returned));
        all
    }
}
