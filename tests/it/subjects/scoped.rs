//! A resource all of whose memory is that of one scope for captured graphs, in which all streams are open.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex};

use millpond::resources::{CaptureScope, ScopedStream};
use millpond::stack::StackSpec;
use millpond::{
    AnyResource, DeviceMemoryResource, DevicePtr, DriverHandle, Layout, MemoryInfo, ResourceStatistics,
    Result, StreamRef, is_same,
};
use millpond_core::{Accessibility, StreamId, Traits};

#[derive(Debug)]
struct Scoped {
    /// Before the stack: what the scope has goes back first.
    opened: Mutex<HashMap<StreamId, ScopedStream>>,
    scope: CaptureScope,
    stack: AnyResource,
}

/// Builds a stack, whose outermost layer makes scopes, and a scope over it.
pub(crate) fn build(text: &str, driver: &DriverHandle) -> Result<AnyResource> {
    let stack = text.parse::<StackSpec>()?.build(&millpond::layers(), driver)?;
    Ok(Arc::new(Scoped { opened: Mutex::default(), scope: CaptureScope::of(&stack)?, stack }))
}

impl fmt::Display for Scoped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+scoped", self.stack)
    }
}

// SAFETY: every call goes to the stack.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Scoped {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if let Entry::Vacant(stream_id) = self.opened.lock().expect("no test panics").entry(stream.id()) {
            stream_id.insert(self.scope.begin(stream)?);
        }
        self.stack.allocate(layout, stream)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // SAFETY: the caller's promises hold for the stack, where the block came from.
        unsafe { self.stack.deallocate(ptr, layout, stream) }
    }

    fn driver(&self) -> &DriverHandle {
        self.stack.driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(&self.stack)
    }

    /// What is free in the scope is free here.
    fn memory_info(&self) -> Result<MemoryInfo> {
        let (info, scope) = (self.stack.memory_info()?, self.scope.memory());
        let free = info.free + scope.bytes_held.saturating_sub(scope.bytes_in_use);
        Ok(MemoryInfo { free: free.min(info.total), ..info })
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        self.stack.is_stream_ordered()
    }

    fn accessibility(&self) -> Accessibility {
        self.stack.accessibility()
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        None
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.stack.trim(keep_bytes)
    }

    fn provide(&self, _traits: &mut Traits) {}
}
