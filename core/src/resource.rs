//! The trait that every memory resource implements; its documentation is the contract.

use std::any::{Any, TypeId};
use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use crate::driver::{DriverHandle, MemoryInfo};
use crate::{Accessibility, DevicePtr, Layout, ResourceStatistics, Result, StreamRef};

/// An owned, type-erased handle to a resource that threads share. A call through it costs about 1 ns.
pub type AnyResource = Arc<dyn DeviceMemoryResource + Send + Sync>;

/// A stream-ordered source of device memory.
///
/// This page is the contract. "The resource" implements the trait, and "the caller" calls it. An adaptor is
/// both.
///
/// # What a stream argument promises
/// [`allocate`](Self::allocate) returns memory for work that is submitted to `stream` after the call. That
/// work runs after all work that earlier owners of the memory submitted before they freed it. The call
/// promises nothing to other streams. To use the block on another stream, the caller must order that stream
/// after this call's point in `stream`.
///
/// [`deallocate`](Self::deallocate) frees the block in the order of its `stream`. The caller guarantees that
/// all work that uses the block, on any stream, happens before work submitted to `stream` after the call.
///
/// Neither call waits for the device, unless there is no other way to get memory.
///
/// # Duties of the resource
/// - **Duty 1.** Live blocks never overlap, and lie in memory of the resource's device. A block holds at
///   least `layout.bytes()` bytes, and starts at a multiple of `layout.alignment()` (at least 256).
/// - **Duty 2.** A request for zero bytes returns [`DevicePtr::NULL`] and takes no memory. `deallocate` of
///   `NULL` does nothing.
/// - **Duty 3.** The resource returns [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) only if it
///   finds no block even after it has synchronised. The error has a
///   [report](crate::Error::out_of_memory_report). A failed call changes nothing that a caller can see.
/// - **Duty 4.** If a request cannot be served, whatever its size, the error is out of memory. Two kinds of
///   request are [impossible](crate::Error::is_impossible): a size that overflows when it is rounded up, and
///   a size for which the resource never has blocks. No layer waits or frees memory for an impossible
///   request.
/// - **Duty 5.** The resource may return memory to its source in two cases. In the first, all work ordered
///   before the `deallocate` is done. In the second, that work is ordered before any later use by the source.
/// - **Duty 6.** `deallocate` never panics and never fails. As far as the resource can tell, it refuses a
///   pointer that is foreign, already free, or of another size. It counts the refused call, reports it
///   through [`misuse`](crate::misuse), and never passes the pointer on. (In debug builds, the hook of
///   `misuse` panics, not the resource.)
/// - **Duty 7.** After a [sticky](crate::Error::is_sticky) driver error, every call fails with
///   [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned). Dropping the resource then makes no driver call.
/// - **Duty 8.** A resource that is dropped returns everything that it holds to its source, including live
///   blocks.
/// - **Duty 9.** A call leaves the caller's current CUDA context as it was.
/// - **Duty 10.** An error names the stack ([`Error::in_stack`](crate::Error::in_stack)).
/// - **Duty 11.** `Display` prints the stack as text that [`StackSpec`](crate::stack::StackSpec) reads. The
///   base comes first: an adaptor prints its upstream, `+`, and itself.
///
/// # Duties of the caller
/// - **Duty 12.** The caller frees each block once, with the pointer and layout of its `allocate`. It calls
///   `deallocate` on the same resource, or on one that [is equal](Self::is_equal), and keeps the order that
///   [the stream argument promises](#what-a-stream-argument-promises).
/// - **Duty 13.** A stream argument is alive, belongs to the device, and is the stream that its [`StreamRef`]
///   describes. After the caller has freed blocks on a stream, it may destroy the stream at any time.
/// - **Duty 14.** Safe code cannot call a resource whose drop has begun. If blocks are still live at that
///   time, the caller must not use them any more.
///
/// # Captured graphs
/// No call, on any thread, invalidates a graph that is being captured. The caller is responsible for the
/// order between streams. A request on a capturing stream gets memory that is free for that stream or for any
/// stream, or new memory. It never waits for another stream. If only such a wait could serve the request, it
/// fails with out of memory.
///
/// A block that is freed on a capturing stream is free again as soon as the *capture* has passed that point.
/// The resource acts as if the captured work ran then. The resource may give the block to other callers, and
/// may return its memory to the driver. But each launch of the graph uses the same addresses again. So keep
/// the blocks that a graph uses until its last launch has finished. A layer may keep them for its callers:
/// millpond's `capture_scopes` does.
///
/// A captured order holds only inside the graph. If work outside the capture also uses the block, the graph
/// does not order that work. Before the caller frees the block on the capturing stream, it must order that
/// work before this stream outside the capture, too.
///
/// # Layers that submit work
/// A layer may submit its own work on a block to the device, for example to clear or move the block. The
/// contract covers this work like any other:
/// - `allocate` submits the work to the stream of the call before it returns, or orders that stream after the
///   work. `deallocate` submits it to the stream of the call before it passes the block on.
/// - Only the stream of the call is ordered after the work. So a layer that may submit work returns `true`
///   from [`is_stream_ordered`](Self::is_stream_ordered), whatever its upstream returns. The layer returns
///   the same value for its whole life, even if it later finds that it has nothing to submit.
/// - A layer submits no such work on a stream that captures a graph. Each launch would repeat the work, at a
///   time when another caller may own the bytes.
///
/// # Threads
/// The trait requires neither `Send` nor `Sync`. A single-threaded resource is `!Sync`; the thread-safe
/// adaptor makes it `Sync`. [`AnyResource`] requires both.
///
/// # Wrappers
/// A wrapper implements *every* method, including the methods with a default. Otherwise the wrapper uses the
/// default instead of the wrapped resource's better implementation, and no error shows it.
/// [`forward_to_upstream!`](crate::forward_to_upstream) generates the methods that only pass the call on.
/// `#[deny(clippy::missing_trait_methods)]` on the impl finds a missing one. [`provide`](Self::provide) is
/// the exception: it describes the wrapper alone.
///
/// # Safety
/// The implementor guarantees duties 1, 2 and 5, because safe code uses the memory without checks. If an
/// implementation breaks one of these duties, safe code can corrupt memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a memory resource; pass the resource itself",
    label = "this is not a memory resource",
    note = "for several owners, write `let shared = resource.into_any();` and give each owner a \
            `shared.clone()`",
    note = "a `Result` needs `?` first; with `use millpond::prelude::*`, a `Result` also has the method \
        `layer`"
)]
pub unsafe trait DeviceMemoryResource: Any + Debug + Display {
    /// Allocates a block for use on `stream`.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the resource has no block for the request;
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) or
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for an alignment that the resource does not support; or
    /// the driver's error.
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr>;

    /// Frees a block in the order of `stream`.
    ///
    /// # Safety
    /// [Duties 12 and 13](DeviceMemoryResource#duties-of-the-caller): `ptr` and `layout` come from one
    /// `allocate` of this resource, the block is still live, and all its uses happen before `stream`'s next
    /// work. `stream` is alive.
    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef);

    /// Returns the driver of the device that holds this memory.
    fn driver(&self) -> &DriverHandle;

    /// Returns the resource from which this one allocates its memory, if there is one. A resource with
    /// several upstreams returns the default one, which serves all requests that no other upstream serves.
    fn upstream(&self) -> Option<&dyn DeviceMemoryResource>;

    /// Returns free and total memory. `free` counts two kinds of memory: the device's free memory, and the
    /// memory that this resource and the resources below hold and can allocate again.
    ///
    /// # Errors
    /// The driver's errors.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Returns whether either resource can free the other's blocks.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool;

    /// Returns whether a block is ready only for the stream of its [`allocate`](Self::allocate). `false`
    /// promises more: any stream may use the block at once, and `deallocate` waits for all work that uses the
    /// block. Plain CUDA memory returns `false`, because its allocations and frees synchronise with the
    /// device.
    ///
    /// A resource always returns the same value. The default is `true`, which is safe for every resource. A
    /// wrapper returns its upstream's value, unless the wrapper
    /// [submits work](DeviceMemoryResource#layers-that-submit-work). Then it returns `true`.
    fn is_stream_ordered(&self) -> bool {
        true
    }

    /// Returns whether the device, the host, or both can access the memory at its address.
    fn accessibility(&self) -> Accessibility {
        self.upstream().map_or(Accessibility::DEVICE, DeviceMemoryResource::accessibility)
    }

    /// Returns the resource's statistics. If the resource keeps none, returns the statistics of the nearest
    /// resource below that does.
    fn statistics(&self) -> Option<ResourceStatistics> {
        self.upstream().and_then(DeviceMemoryResource::statistics)
    }

    /// Releases free memory to the device until the resource holds at most `keep_bytes`. The resource can
    /// release only regions that are wholly free. The call may synchronise with the device. Returns the
    /// number of bytes released.
    ///
    /// # Errors
    /// The driver's errors. Memory that was released before the error stays released.
    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.upstream().map_or(Ok(0), |upstream| upstream.trim(keep_bytes))
    }

    /// Lists the traits that [`find_trait`](crate::find_trait) can find in this resource, as in
    /// `traits.add::<Self, dyn Nameable>(|it| it)`. It does not list the traits of the resources below.
    fn provide(&self, _traits: &mut Traits) {}
}

/// A search for one trait. A resource answers it in [`provide`](DeviceMemoryResource::provide), with a call
/// of [`add`](Self::add) for each trait that it implements. Any crate may define such a trait.
pub struct Traits {
    pub(crate) wanted: TypeId,
    /// A cast to the wanted trait.
    pub(crate) cast: Option<Box<dyn Any>>,
}

impl fmt::Debug for Traits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traits").field("is_found", &self.cast.is_some()).finish_non_exhaustive()
    }
}
