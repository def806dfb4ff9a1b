//! Several resources of one device behind one.

use std::any::Any;
use std::fmt;

use millpond_core::driver::DriverHandle;
use millpond_core::{
    Accessibility, AnyResource, DeviceMemoryResource, DevicePtr, Layout, MemoryInfo, ResourceStatistics,
    Result, StreamRef, Traits, is_same,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Puts several resources of one device behind one. The size and the stream of a request select the resource
/// that serves it. Each block returns to the resource that it came from.
///
/// If there are pools among them and memory is short, the pools must release free memory to each other.
pub struct Several {
    resources: Vec<AnyResource>,
    /// The index of the resource that each live block came from.
    owners: Mutex<FxHashMap<DevicePtr, usize>>,
}

impl Several {
    /// Puts the resources behind one.
    ///
    /// # Panics
    /// If there is no resource.
    pub fn new(resources: Vec<AnyResource>) -> Self {
        assert!(!resources.is_empty(), "there is no resource");
        Self { resources, owners: Mutex::default() }
    }

    /// Returns the resources behind this one.
    pub fn resources(&self) -> &[AnyResource] {
        &self.resources
    }
}

// SAFETY: the resource that hands out a block also takes it back, and its contract holds. All resources
// belong to one device.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Several
where
    Self: Any,
{
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let mixed = (layout.bytes() ^ stream.id().get().rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let index = (mixed >> 32) as usize % self.resources.len();
        let ptr = self.resources[index].allocate(layout, stream)?;
        if !ptr.is_null() {
            self.owners.lock().insert(ptr, index);
        }
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let owner = self.owners.lock().remove(&ptr).unwrap_or(0);
        // SAFETY: the caller makes the promises that the resource requires, and the block came from this
        // resource.
        unsafe { self.resources[owner].deallocate(ptr, layout, stream) };
    }

    fn driver(&self) -> &DriverHandle {
        self.resources[0].driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.resources[0].memory_info()
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        self.resources.iter().any(|resource| resource.is_stream_ordered())
    }

    fn accessibility(&self) -> Accessibility {
        self.resources
            .iter()
            .map(|resource| resource.accessibility())
            .fold(Accessibility::DEVICE_AND_HOST, Accessibility::and)
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        None
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.resources.iter().try_fold(0, |given, resource| Ok(given + resource.trim(keep_bytes)?))
    }

    fn provide(&self, _traits: &mut Traits) {}
}

impl fmt::Debug for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Several").field("resources", &self.resources).finish_non_exhaustive()
    }
}

impl fmt::Display for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, resource) in self.resources.iter().enumerate() {
            write!(f, "{}{resource}", if index == 0 { "" } else { " next to " })?;
        }
        Ok(())
    }
}
