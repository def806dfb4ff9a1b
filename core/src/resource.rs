//! The trait that every memory resource implements; its documentation is the contract.

use std::any::{Any, TypeId};
use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use crate::driver::{DriverHandle, MemoryInfo};
use crate::{Accessibility, DevicePtr, Layout, ResourceStatistics, Result, StreamRef};

/// The owned, erased handle to a resource that threads share. One call through it costs about 1 ns.
pub type AnyResource = Arc<dyn DeviceMemoryResource + Send + Sync>;

/// A source of device memory, in stream order.
///
/// This documentation is the contract. "The resource" is the implementation of the trait, "the caller" is the
/// code that calls it; an adaptor is both.
///
/// # What a stream argument promises
/// [`allocate`](Self::allocate) returns memory that may be used by work submitted to `stream` after the call:
/// everything that earlier owners of the memory submitted before they gave it back happens before that work.
/// Nothing is promised to other streams; a caller that uses the block on another stream orders that stream
/// itself, after `stream` at the time of the call. [`deallocate`](Self::deallocate) gives the block back in
/// the order of its `stream`: the caller vouches that all work that uses the block, on any stream, happens
/// before work submitted to `stream` after the call. Neither call waits for the device, unless there is no
/// other way to get memory.
///
/// # Duties of the resource
/// - **Duty 1.** Blocks that are handed out and not given back never overlap, lie in memory of the resource's
///   device, hold at least `layout.bytes()` bytes, and start at a multiple of `layout.alignment()`
///   (at least 256).
/// - **Duty 2.** A request for zero bytes returns [`DevicePtr::NULL`] and takes nothing; `deallocate` of
///   `NULL` does nothing.
/// - **Duty 3.** [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) is returned only if there is no
///   block, even after synchronising; then the error has a
///   [report](crate::Error::out_of_memory_report). A failed call changes nothing that a caller can see.
/// - **Duty 4.** A request of any size that cannot be served is out of memory, whatever its size: also if
///   rounding it up overflows, and if the resource never has blocks of that size. The last two are
///   [impossible](crate::Error::is_impossible), so that no layer waits or gives memory back for them.
/// - **Duty 5.** Memory goes back to its source only after all work ordered before its `deallocate` is done,
///   or ordered before any use that upstream makes of it.
/// - **Duty 6.** `deallocate` never panics and never fails. A pointer that is foreign, free already, or of
///   another size is refused, counted, and reported through [`misuse`](crate::misuse), as far as the resource
///   can tell; it is never passed on. (The reporting hook, not the resource, panics in debug builds.)
/// - **Duty 7.** After a [sticky](crate::Error::is_sticky) driver error every call fails with
///   [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned), and dropping the resource makes no driver call.
/// - **Duty 8.** Dropping a resource gives everything back that it holds, blocks handed out included.
/// - **Duty 9.** The caller's current CUDA context is the same after a call as before.
/// - **Duty 10.** An error names the stack ([`Error::in_stack`](crate::Error::in_stack)).
/// - **Duty 11.** `Display` prints the stack, base first, in the text that
///   [`StackSpec`](crate::stack::StackSpec) reads: an adaptor prints its upstream, `+`, and itself.
///
/// # Duties of the caller
/// - **Duty 12.** `deallocate` gets the pointer and layout of one `allocate` of the same resource (or of one
///   that [is equal](Self::is_equal)), once, and in an order that
///   [the stream argument promises](#what-a-stream-argument-promises).
/// - **Duty 13.** A stream that is passed in is alive, belongs to the device, and is what its
///   [`StreamRef`] says. A stream on which blocks were given back may be destroyed at any time.
/// - **Duty 14.** Calls on a resource whose drop has begun are impossible in safe code; blocks still handed
///   out by then must not be used any more.
///
/// # Captured graphs
/// A call on any thread leaves graphs that are being captured valid, except that the caller orders the
/// streams. For a stream that is capturing a graph, a request gets what is free for that stream or for any,
/// or new memory; it waits for no other stream, and is out of memory where that would be needed.
///
/// A block that is given back on a capturing stream is free again when the *capture* has passed that point,
/// as if its work ran then: the resource may hand it to other callers, and return its memory to the driver.
/// Each launch of the graph uses the same addresses again. So keep blocks that a graph uses until the graph
/// has run for the last time. A layer may do that for its callers, as millpond's `capture_scopes` does.
///
/// An order that is captured holds for the graph alone. So a caller that gives a block back on a capturing
/// stream has ordered the block's uses outside of the capture before that stream outside of it, too.
///
/// # Layers that submit work
/// A layer may submit work of its own to the device that uses a block: to clear it, say, or to move it. That
/// work counts in the order of the block:
/// - `allocate` submits it to the stream of the call before it returns, or orders that stream after it.
///   `deallocate` submits it to the stream of the call before it passes the block on.
/// - Only that stream is ordered after the work. So [`is_stream_ordered`](Self::is_stream_ordered) is `true`
///   for a layer that may submit work, whatever its upstream answers, and for the layer's whole life: a layer
///   that finds out later that it has nothing to submit still answers `true`.
/// - A layer submits no such work on a stream that captures a graph. The graph would repeat the work at each
///   launch, when another caller may have the bytes.
///
/// # Threads
/// `Send` and `Sync` are not part of the trait. A resource for one thread is not `Sync`, and the
/// thread-safe adaptor makes it so. [`AnyResource`] asks for both.
///
/// # Wrappers
/// A wrapper implements *every* method, also those with a default, or it silently loses what the
/// wrapped resource does better. [`forward_to_upstream!`](crate::forward_to_upstream) writes those that
/// pass the call on; `#[deny(clippy::missing_trait_methods)]` on the impl finds one that is missing. Only
/// [`provide`](Self::provide) is about the wrapper alone.
///
/// # Safety
/// Callers use the memory. An implementation that breaks duty 1, duty 2 or duty 5 makes safe code above it
/// corrupt memory.
pub unsafe trait DeviceMemoryResource: Any + Debug + Display {
    /// Hands out a block for use on `stream`.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is no such block,
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) or
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for an alignment that the resource does not have, or
    /// the driver's error.
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr>;

    /// Takes a block back, in the order of `stream`.
    ///
    /// # Safety
    /// [Duties 12 and 13](DeviceMemoryResource#duties-of-the-caller): `ptr` and `layout` come from one
    /// `allocate` of this resource, the block has not been given back, and all its uses happen before
    /// `stream`'s next work; `stream` is alive.
    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef);

    /// The driver of the device whose memory this is.
    fn driver(&self) -> &DriverHandle;

    /// The resource that this one takes its memory from, if there is one. A resource with several upstreams
    /// returns the one that serves all requests that no other upstream serves.
    fn upstream(&self) -> Option<&dyn DeviceMemoryResource>;

    /// How much memory there is: `free` counts what the device has free and what this resource and those
    /// below could hand out again.
    ///
    /// # Errors
    /// Those of the driver.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Whether a block of one may be given back to the other.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool;

    /// Whether a block is ready for the stream of its [`allocate`](Self::allocate) alone. `false` promises
    /// more: any stream may use the block at once, and `deallocate` waits for all work that uses it, because
    /// both calls synchronise with the device (plain CUDA).
    ///
    /// The answer never changes. The default is `true`, which is safe for every resource. A wrapper passes
    /// its upstream's answer on, unless it
    /// [submits work](DeviceMemoryResource#layers-that-submit-work): then it answers `true`.
    fn is_stream_ordered(&self) -> bool {
        true
    }

    /// What reaches the memory at its address: the device, the host, or both.
    fn accessibility(&self) -> Accessibility {
        self.upstream().map_or(Accessibility::DEVICE, DeviceMemoryResource::accessibility)
    }

    /// The statistics of the nearest resource of the stack that keeps any.
    fn statistics(&self) -> Option<ResourceStatistics> {
        self.upstream().and_then(DeviceMemoryResource::statistics)
    }

    /// Gives free memory back to the device until at most `keep_bytes` are held, as far as whole regions
    /// are free; returns the number of bytes given back. May synchronise with the device.
    ///
    /// # Errors
    /// Those of the driver. Memory that was given back before the error stays given back.
    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.upstream().map_or(Ok(0), |upstream| upstream.trim(keep_bytes))
    }

    /// Says what else this resource is: each trait that [`find_trait`](crate::find_trait) is to find here, as
    /// in `traits.add::<Self, dyn Nameable>(|it| it)`. What is below answers for itself.
    fn provide(&self, _traits: &mut Traits) {}
}

/// Collects the trait that a caller asked for, among those that a resource names in
/// [`provide`](DeviceMemoryResource::provide). Any crate may define such a trait.
pub struct Traits {
    pub(crate) wanted: TypeId,
    /// A cast to what is wanted.
    pub(crate) cast: Option<Box<dyn Any>>,
}

impl fmt::Debug for Traits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traits").field("is_found", &self.cast.is_some()).finish_non_exhaustive()
    }
}
