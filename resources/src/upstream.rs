//! What becomes of memory that a resource gives back to its upstream.

use std::iter;

use millpond_core::{DeviceMemoryResource, Error, Result};

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

/// Trims `upstream`, to which a resource has just returned `released` bytes; returns the bytes that reached
/// the device.
pub(crate) fn trim_upstream(
    upstream: &dyn DeviceMemoryResource,
    released: u64,
    keep_bytes: u64,
) -> Result<u64> {
    let arrived = if passes_frees_on(upstream) { released } else { 0 };
    Ok(arrived + upstream.trim(keep_bytes)?)
}

/// Whether memory that goes back to `upstream` reaches the device at once: the base of the stack is plain
/// memory, and no layer keeps free memory. A layer that submits work is stream-ordered, and keeps nothing.
fn passes_frees_on(upstream: &dyn DeviceMemoryResource) -> bool {
    let base = iter::successors(Some(upstream), |resource| resource.upstream()).last();
    let keeps_none = || upstream.statistics().is_none_or(|known| known.bytes_free() == 0);
    base.is_some_and(|base| !base.is_stream_ordered()) && keeps_none()
}
