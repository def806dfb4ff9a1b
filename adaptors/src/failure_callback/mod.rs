//! Calls a function of the program when memory is out. If the function returns true, retries the request.

pub(crate) mod layer;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;

use millpond_core::{
    DeviceMemoryResource, DevicePtr, Error, FailureTally, Layout, Result, StreamRef, Traits, debug_as_text,
    downcast, forward_to_upstream,
};

pub use layer::FailureCallbackLayer;

/// Describes a failed request to the function that the adaptor calls.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FailedRequest<'a> {
    /// The error of the upstream, which is [out of memory](Error::is_out_of_memory).
    pub error: &'a Error,
    /// The layout of the request.
    pub layout: Layout,
    /// The stream of the request.
    pub stream: StreamRef,
    /// The number of times that the request has failed; 1 at the first failure.
    pub attempt: u32,
}

/// Calls a function of the program when the upstream is out of memory. If the function returns true, the
/// adaptor retries the request.
///
/// The function frees memory that the program can spare. For example, it drops a cache, or moves data to the
/// host. It runs on the thread of the request, after each
/// [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) of the upstream, for requests of any size. For
/// other errors, the adaptor does not call the function. First check
/// [`error.is_impossible()`](Error::is_impossible) in the function: freeing memory does not help an
/// impossible request.
///
/// By default, the adaptor retries a request at most [10 times](FailureCallbackLayer::DEFAULT_MAX_RETRIES).
/// If the last retry fails, the adaptor returns the error without another call of the function.
///
/// The adaptor holds no lock while it calls the function. So the function may allocate and free blocks of the
/// whole stack. Several threads may run the function at the same time. If a request of the function itself
/// runs out of memory, the request fails without another call of the function.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use millpond_adaptors::{FailedRequest, FailureCallbackLayer, LimitingLayer};
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
/// let limited = Arc::new(cuda.layer(LimitingLayer::new(1 << 20))?);
/// let cache = Arc::new(Mutex::new(vec![limited.allocate_bytes(1 << 20, StreamRef::LEGACY)?]));
///
/// let (memory, kept) = (Arc::clone(&limited), Arc::clone(&cache));
/// let drop_one = move |_: &FailedRequest<'_>| match kept.lock().unwrap().pop() {
///     Some(block) => {
///         // SAFETY: the block belongs to the cache, unused, and freed with its size.
///         unsafe { memory.deallocate_bytes(block, 1 << 20, StreamRef::LEGACY) };
///         true
///     }
///     None => false,
/// };
/// let stack = limited.layer(FailureCallbackLayer::new(drop_one))?;
/// let block = stack.allocate_bytes(1000, StreamRef::LEGACY)?; // the cache makes room
/// assert!(cache.lock().unwrap().is_empty());
/// # // SAFETY: the block is live, unused, and freed with its size.
/// # unsafe { stack.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct FailureCallbackResourceAdaptor<R, F> {
    upstream: R,
    callback: F,
    max_retries: u32,
    failures: FailureTally,
}

thread_local! {
    /// The adaptors whose functions this thread is running.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Marks that an adaptor's function runs on this thread.
struct Inside(usize);

impl Inside {
    /// Begins a call of the function; `None` if this thread is already in it.
    fn enter(id: usize) -> Option<Self> {
        let entered = INSIDE.try_with(|inside| {
            let mut inside = inside.borrow_mut();
            let is_new = !inside.contains(&id);
            if is_new {
                inside.push(id);
            }
            is_new
        });
        // An ending thread no longer has locals.
        entered.unwrap_or(false).then_some(Self(id))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().retain(|id| *id != self.0));
    }
}

impl<R, F> FailureCallbackResourceAdaptor<R, F> {
    /// Returns the largest number of retries of one request.
    pub fn max_retries(&self) -> u32 {
        self.max_retries
    }
}

impl<R: DeviceMemoryResource, F: Fn(&FailedRequest<'_>) -> bool> FailureCallbackResourceAdaptor<R, F> {
    #[cold]
    fn retry(&self, mut error: Error, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        for attempt in 1..=self.max_retries {
            // The address of a field: another adaptor may start at the address of this one.
            let Some(inside) = Inside::enter(std::ptr::from_ref(&self.max_retries).addr()) else {
                return Err(error
                    .context("the failure callback itself made this request, so it was not called again"));
            };
            let is_retried = (self.callback)(&FailedRequest { error: &error, layout, stream, attempt });
            drop(inside);
            if !is_retried {
                return Err(error);
            }
            match self.upstream.allocate(layout, stream) {
                Err(again) if again.is_out_of_memory() => error = again,
                other => return other,
            }
        }
        let retries = match self.max_retries {
            1 => "1 retry".to_owned(),
            retries => format!("{retries} retries"),
        };
        Err(error.context(format!("the request still failed after {retries} with the failure callback")))
    }
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R, F> DeviceMemoryResource for FailureCallbackResourceAdaptor<R, F>
where
    R: DeviceMemoryResource,
    F: Fn(&FailedRequest<'_>) -> bool + 'static,
{
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let allocated = match self.upstream.allocate(layout, stream) {
            Err(error) if error.is_out_of_memory() => self.retry(error, layout, stream),
            other => other,
        };
        allocated.map_err(|error| self.failures.noted(error).in_stack(self))
    }

    /// Two adaptors are equal if their functions have the same type and their upstreams are equal.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        downcast::<Self>(other).is_some_and(|other| self.upstream.is_equal(&other.upstream))
    }

    /// Declares no sharing, because several threads may not be allowed to call the program's function.
    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, FailureTally>(|it| &it.failures);
    }

    forward_to_upstream!(except allocate, is_equal, provide);
}

impl<R: fmt::Display, F> fmt::Display for FailureCallbackResourceAdaptor<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+failure_callback", self.upstream)
    }
}

debug_as_text!(FailureCallbackResourceAdaptor<R: fmt::Display, F>);
