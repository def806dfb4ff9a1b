//! A layer that makes one mistake, either when memory is out or when a free is refused.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond::{
    AnyResource, DeviceMemoryResource, DevicePtr, Error, ErrorKind, LayerMemory, Layout, ReportsMemory,
    Result, StreamRef, Traits, forward_to_upstream,
};

/// The mistake that the layer makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// No mistake.
    None,
    /// Its errors have no report.
    NoReport,
    /// If no state of memory can serve a request, it reports an invalid argument.
    InvalidArgument,
    /// It counts a free that the layer below refused.
    CountsRefusedFrees,
}

/// Counts bytes and makes a mistake.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) upstream: AnyResource,
    pub(crate) mistake: Mistake,
    pub(crate) used: AtomicU64,
}

impl Wrong {
    fn of(&self, error: Error, layout: Layout, stream: StreamRef) -> Error {
        let kind = match self.mistake {
            Mistake::NoReport if error.is_out_of_memory() => ErrorKind::OutOfMemory,
            Mistake::InvalidArgument if error.is_impossible() => ErrorKind::InvalidArgument,
            _ => return error,
        };
        let mut error = Error::new(kind, "").for_request(layout, stream).in_stack(self);
        drop(error.take_out_of_memory_report());
        error
    }
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds; only the errors
// differ.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Wrong {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr = self.upstream.allocate(layout, stream).map_err(|error| self.of(error, layout, stream))?;
        self.used.fetch_add(layout.bytes(), Ordering::Relaxed);
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let is_taken = millpond::misuse::is_taken(ptr, || {
            // SAFETY: the caller's promises hold for the upstream, where the block came from.
            unsafe { self.upstream.deallocate(ptr, layout, stream) }
        });
        if is_taken || self.mistake == Mistake::CountsRefusedFrees {
            self.used.fetch_sub(layout.bytes(), Ordering::Relaxed);
        }
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn ReportsMemory>(|it| it);
    }

    forward_to_upstream!(except allocate, deallocate, provide);
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+wrong", self.upstream)
    }
}

impl ReportsMemory for Wrong {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.limit_used_bytes = Some(self.used.load(Ordering::Relaxed));
        memory
    }
}
