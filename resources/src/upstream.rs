//! Collects the results of giving memory back to upstream.

use millpond_core::{Error, Result};

/// The bytes that several resources gave back. If one fails, the others still give back.
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
    /// The first error, even if other resources gave something back.
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
