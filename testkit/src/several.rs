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

/// Several resources of one device behind one: each request goes to one of them, chosen by its size and its
/// stream, and each block goes back to the resource that it came from.
///
/// With pools among them, and too little memory, the pools have to release free memory to each other.
pub struct Several {
    resources: Vec<AnyResource>,
    /// The index of the resource that each live block came from.
    owners: Mutex<FxHashMap<DevicePtr, usize>>,
}

impl Several {
    /// Puts the resources behind one.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(resources: Vec<AnyResource>) -> Self {
        assert!(!resources.is_empty(), "there is no resource");
        Self { resources, owners: Mutex::default() }
    }

    /// The resources behind this one.
    pub fn resources(&self) -> &[AnyResource] {
        &self.resources
    }
}

// SAFETY: a block is handed out and taken back by the same resource, whose contract holds; all of them are of
// one device.
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
        // SAFETY: the caller's promises are those that the resource wants, and the block is of this resource.
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
            write!(f, "{}{resource}", if index == 0 { "" } else { " beside " })?;
        }
        Ok(())
    }
}
