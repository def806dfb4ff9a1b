//! A resource whose whole memory belongs to one scope for captured graphs. All streams are open in the scope.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex};

use millpond::resources::{CaptureScope, ScopedStream};
use millpond::stack::StackSpec;
use millpond::{
    AnyResource, DeviceMemoryResource, DevicePtr, DriverHandle, Layout, MemoryInfo, Result, StreamRef,
    forward_to_upstream,
};
use millpond_core::StreamId;

#[derive(Debug)]
struct Scoped {
    /// Declared before the stack, so that the scope's memory goes back first.
    opened: Mutex<HashMap<StreamId, ScopedStream>>,
    scope: CaptureScope,
    stack: AnyResource,
}

/// Builds a stack whose outermost layer makes scopes, and a scope over it.
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

    /// Memory that is free in the scope is free here.
    fn memory_info(&self) -> Result<MemoryInfo> {
        let (info, scope) = (self.stack.memory_info()?, self.scope.memory());
        let free = info.free + scope.bytes_held.saturating_sub(scope.bytes_in_use);
        Ok(MemoryInfo { free: free.min(info.total), ..info })
    }

    forward_to_upstream!(self.stack, except allocate, memory_info);
}
