//! A wrapper that reports all blocks to the checks.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use millpond_core::{
    DeviceMemoryResource, DevicePtr, Layout, Result, StreamRef, debug_as_text, downcast, forward_to_upstream,
};
use millpond_driver::sim::SimDevice;
use parking_lot::Mutex;

use crate::shadow::{Fault, ShadowAllocator};

/// Reports the blocks that the resource below allocates and frees to two checkers: the simulated device, and
/// a [`ShadowAllocator`].
///
/// Put this wrapper on top of the resource under test. The device then checks that blocks do not overlap, lie
/// in allocated memory, and reach each stream after every earlier use. The shadow checks addresses and
/// layouts in the same way, and counts blocks. In every other respect the wrapper changes nothing, also for
/// `Display`. It is a layer of its own, so `find_trait` and `stack` continue in the resource under test.
pub struct Checked<R> {
    inner: R,
    device: Option<Arc<SimDevice>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    shadow: ShadowAllocator,
    faults: Vec<Fault>,
}

impl<R: DeviceMemoryResource> Checked<R> {
    /// Puts the checks on top of `inner`. `device` is the simulated device that owns the memory. If there is
    /// none, as on a GPU, only the shadow checks.
    pub fn new(inner: R, device: Option<Arc<SimDevice>>) -> Self {
        Self { inner, device, state: Mutex::default() }
    }

    /// Returns the resource under test.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// Returns the faults that the shadow has found so far, and removes them from it.
    pub fn take_faults(&self) -> Vec<Fault> {
        std::mem::take(&mut self.state.lock().faults)
    }

    /// Passes the shadow to `look` and returns its result.
    pub fn shadow<T>(&self, look: impl FnOnce(&ShadowAllocator) -> T) -> T {
        look(&self.state.lock().shadow)
    }
}

// SAFETY: every call goes to `inner` with the same arguments and returns its result, so `inner`'s contract
// holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for Checked<R>
where
    Self: Any,
{
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr = self.inner.allocate(layout, stream)?;
        let mut state = self.state.lock();
        if let Err(fault) = state.shadow.allocate(ptr, layout) {
            state.faults.push(fault);
        }
        if let Some(device) = self.device.as_ref().filter(|_| layout.bytes() > 0) {
            device.lend(ptr, layout.bytes(), stream);
        }
        Ok(ptr)
    }

    /// The checks see the free before the resource does, because another thread may get the block right
    /// after.
    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        {
            let mut state = self.state.lock();
            match (state.shadow.deallocate(ptr, layout), &self.device) {
                (Ok(()), Some(device)) if !ptr.is_null() => device.give_back(ptr, layout.bytes(), stream),
                (Ok(()), _) => {}
                (Err(fault), _) => state.faults.push(fault),
            }
        }
        // SAFETY: the caller's promises are about `inner`'s block.
        unsafe { self.inner.deallocate(ptr, layout, stream) }
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(&self.inner)
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        match downcast::<Self>(other) {
            Some(other) => self.inner.is_equal(&other.inner),
            None => self.inner.is_equal(other),
        }
    }

    forward_to_upstream!(self.inner, except allocate, deallocate, upstream, is_equal);
}

impl<R: fmt::Display> fmt::Display for Checked<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

debug_as_text!(Checked<R: fmt::Display>);
