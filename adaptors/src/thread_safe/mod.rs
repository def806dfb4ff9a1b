//! Puts a lock around a resource, so that threads may share it.

mod gate;
pub(crate) mod layer;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_core::driver::{CaptureModeGuard, call};
use millpond_core::{
    Accessibility, DeviceMemoryResource, DevicePtr, DriverHandle, Error, ErrorKind, FailureTally, Layout,
    MemoryInfo, ResourceStatistics, Result, StreamRef, Traits, debug_as_text, downcast, is_same,
    is_shareable,
};

pub use layer::ThreadSafeLayer;

use crate::timeout::{self, Timeout};
use gate::{Gate, Turn};

/// How long a free waits for the call inside before it leaves the block to that call.
const FREE_PATIENCE: Duration = Duration::from_secs(1);

/// Lets one thread at a time use a resource. If `R` is `Send`, threads may share the adaptor.
///
/// The adaptor guards a resource as [`Mutex`](std::sync::Mutex) guards a value. Threads can share millpond's
/// own resources without this adaptor, and these resources are faster without it. Use this adaptor for your
/// own resources, and for resources that give up `Sync` to be faster.
///
/// Code that runs inside a resource below the adaptor may call the whole stack again on the same thread. For
/// example, a failure callback may free memory. The adaptor serves such a call at once. The upstream then
/// gets a call while another call of the same thread is in progress. This is allowed, because the methods of
/// a resource take `&self`.
///
/// Code that runs inside a resource below should not wait for another thread that uses the stack. That thread
/// would in turn wait for the call from which this code runs. A call waits at most the
/// [patience](ThreadSafeLayer::patience), a minute by default, for a call of another thread. After this time,
/// the waiting call fails with [`Busy`](ErrorKind::Busy). In the same case,
/// [`statistics`](DeviceMemoryResource::statistics) returns `None`.
///
/// A free never fails. If a call of another thread does not end within a second, the free waits for the work
/// of its stream. Then the free leaves the block to the other thread, which frees the block at the end of its
/// call. (If the stream captures a graph, the free waits for the other call instead.) Freeing the block may
/// panic on the other thread, for example in the default hook for misuse. The other thread's own call is not
/// the cause, so the adaptor catches the panic and reports it through `tracing`.
///
/// A layer below may wait until other threads free memory, like [`retry`](crate::RetryResourceAdaptor). Such
/// a layer does not wait itself. This adaptor waits instead, because it can release its lock first. Printing
/// the resource needs no lock.
///
/// If threads may not share the upstream, only the thread that holds the lock may use it. In that case,
/// [`upstream`](DeviceMemoryResource::upstream) returns `None`. [`find_trait`](millpond_core::find_trait) and
/// the memory report then do not look below this adaptor.
///
/// If threads may share the upstream ([`is_shareable`]), `upstream` returns it. Threads may share an
/// [`AnyResource`](millpond_core::AnyResource), and a stack of millpond's resources. Your own resource or
/// layer declares that threads may share it with [`Traits::share`] or [`Traits::share_over`].
///
/// ```
/// use millpond_adaptors::ThreadSafeResourceAdaptor;
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
/// let resource = ThreadSafeResourceAdaptor::new(cuda);
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| {
///             let block = resource.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
///             // SAFETY: the block is live, unused, and freed with its layout.
///             unsafe { resource.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
///         });
///     }
/// });
/// assert_eq!(resource.to_string(), "cuda+thread_safe");
/// ```
pub struct ThreadSafeResourceAdaptor<R> {
    /// Read once: a reference into the upstream could not outlive the lock.
    driver: DriverHandle,
    /// The upstream's text, read once: printing needs no lock.
    stack: String,
    accessibility: Accessibility,
    is_stream_ordered: bool,
    /// Whether threads may share the upstream even without the lock.
    is_shareable: bool,
    patience: Timeout,
    gate: Gate<R>,
    failures: FailureTally,
}

impl<R: DeviceMemoryResource> ThreadSafeResourceAdaptor<R> {
    /// Creates an adaptor that puts `upstream` behind a lock.
    pub fn new(upstream: R) -> Self {
        Self::with_patience(upstream, Timeout(timeout::DEFAULT_PATIENCE))
    }

    fn with_patience(upstream: R, patience: Timeout) -> Self {
        Self {
            driver: Arc::clone(upstream.driver()),
            stack: upstream.to_string(),
            accessibility: upstream.accessibility(),
            is_stream_ordered: upstream.is_stream_ordered(),
            is_shareable: is_shareable(&upstream),
            patience,
            gate: Gate::new(upstream),
            failures: FailureTally::default(),
        }
    }

    #[inline]
    fn enter(&self) -> Result<Turn<'_, R>> {
        self.gate.enter(self.patience.0).ok_or_else(|| self.busy())
    }

    #[cold]
    fn busy(&self) -> Error {
        let message = format!(
            "a call of another thread has not ended for {}; code below `thread_safe` must not wait for a \
             thread that uses the stack",
            self.patience
        );
        Error::new(ErrorKind::Busy, message)
    }

    /// Waits for the work of a stream, so that the block may be freed on any other stream. Returns whether
    /// the wait succeeded.
    fn has_passed(&self, stream: StreamRef) -> bool {
        let driver = &*self.driver;
        let _captures = CaptureModeGuard::relaxed(driver);
        let waited = call(driver, |driver| {
            if driver.stream_is_gone(stream) {
                // Its work may still run; the wait for the device covers destroyed streams.
                return driver.synchronize_beside_captures();
            }
            if driver.stream_is_capturing(stream)? {
                return Ok(false);
            }
            driver.stream_synchronize(stream).map(|()| true)
        });
        waited.unwrap_or(false) || driver.health().is_lost()
    }

    /// Returns the upstream, if threads may use it without the lock.
    fn shareable(&self) -> Option<&R> {
        // SAFETY: the pointer leads to the upstream, which lives as long as `self`. The lock gives out only
        // shared references, so this one conflicts with none. The upstream declares that several threads may
        // use it at the same time.
        self.is_shareable.then(|| unsafe { &*self.gate.upstream_ptr() })
    }
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for ThreadSafeResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let attempt = || self.enter()?.upstream().allocate(layout, stream);
        let first = || -> Result<_> {
            let turn = self.enter()?;
            let allocated = turn.upstream().allocate(layout, stream);
            Ok((allocated, turn.exclusive.wanted()))
        };
        let allocated = match first() {
            Ok((Err(error), Some(timeout))) if error.is_out_of_memory() => {
                self.gate.frees.wait_for(Instant::now(), timeout, Error::is_out_of_memory, attempt)
            }
            Ok((allocated, _)) => allocated,
            Err(busy) => Err(busy.for_request(layout, stream)),
        };
        allocated.map_err(|error| self.failures.noted(error).in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let patience = self.patience.0.min(FREE_PATIENCE);
        loop {
            if let Some(turn) = self.gate.enter(patience) {
                // SAFETY: the caller's promises hold for the upstream too: the block came from there.
                unsafe { turn.upstream().deallocate(ptr, layout, stream) };
                drop(turn);
                return self.gate.frees.note();
            }
            if self.has_passed(stream) {
                // SAFETY: as above. The work of the stream is done, so any stream will do; the legacy one is
                // never destroyed.
                return unsafe { self.gate.leave(ptr, layout, StreamRef::LEGACY) };
            }
        }
    }

    fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        self.shareable().map(|upstream| upstream as _)
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.enter().and_then(|turn| turn.upstream().memory_info()).map_err(|error| error.in_stack(self))
    }

    /// Two adaptors are equal if their upstreams are equal and threads may share both upstreams. Otherwise an
    /// adaptor is equal only to itself.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        // Never takes both locks: another thread may take them in the other order.
        let shared = downcast::<Self>(other).and_then(|other| self.shareable().zip(other.shareable()));
        is_same(self, other) || shared.is_some_and(|(mine, theirs)| mine.is_equal(theirs))
    }

    fn is_stream_ordered(&self) -> bool {
        self.is_stream_ordered
    }

    fn accessibility(&self) -> Accessibility {
        self.accessibility
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        self.enter().ok()?.upstream().statistics()
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.enter().and_then(|turn| turn.upstream().trim(keep_bytes)).map_err(|error| error.in_stack(self))
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, FailureTally>(|it| &it.failures);
        if self.is_shareable {
            // SAFETY: over an upstream that is `Send`, all parts are `Send` and `Sync`.
            unsafe { traits.share_over(&[]) };
        }
    }
}

impl<R> fmt::Display for ThreadSafeResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+thread_safe", self.stack)?;
        if self.patience.0 != timeout::DEFAULT_PATIENCE {
            write!(f, ":patience={}", self.patience)?;
        }
        Ok(())
    }
}

debug_as_text!(ThreadSafeResourceAdaptor<R>);
