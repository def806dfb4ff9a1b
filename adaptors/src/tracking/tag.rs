//! Tags, which mark the blocks of a part of the program.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

thread_local! {
    static TAG: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Tags the allocations of this thread until the returned guard is dropped. The reports of a stack with
/// `tracking` group live blocks by tag. If tags are nested, the innermost tag is used.
///
/// ```
/// use millpond_adaptors::tracking::{Stacks, tag};
/// use millpond_adaptors::TrackingResourceAdaptor;
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
/// let resource = TrackingResourceAdaptor::new(cuda, Stacks::Off);
/// {
///     let _loading = tag("data loader");
///     resource.allocate_bytes(1000, StreamRef::LEGACY)?;
/// }
/// let report = resource.memory_report();
/// assert_eq!(report.layers[0].holders[0].tag.as_deref(), Some("data loader"));
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub fn tag(name: impl Into<Arc<str>>) -> TagGuard {
    TagGuard { before: TAG.replace(Some(name.into())), not_send: std::marker::PhantomData }
}

/// Returns the present tag of the calling thread.
pub(super) fn current() -> Option<Arc<str>> {
    // An ending thread no longer has a tag.
    TAG.try_with(|tag| tag.borrow().clone()).ok().flatten()
}

/// A guard that ends a [`tag`] when the guard is dropped.
#[must_use = "the tag ends when this is dropped"]
pub struct TagGuard {
    before: Option<Arc<str>>,
    /// The tag belongs to its thread.
    not_send: std::marker::PhantomData<*const ()>,
}

impl fmt::Debug for TagGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagGuard").field("before", &self.before).finish_non_exhaustive()
    }
}

impl Drop for TagGuard {
    fn drop(&mut self) {
        let before = self.before.take();
        let _ = TAG.try_with(|tag| tag.replace(before));
    }
}
