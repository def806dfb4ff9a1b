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
/// [`allocate`](Self::allocate) returns memory for work that is submitted to `stream` after the call. All
/// work that earlier owners submitted before they freed the memory happens before that work. The call
/// promises nothing to other streams. To use the block on another stream, the caller must order that stream
/// after the point that `stream` has reached at the time of the call.
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
///   finds no block even after synchronising. That error has a [report](crate::Error::out_of_memory_report).
///   A failed call changes nothing that a caller can see.
/// - **Duty 4.** A request of any size that cannot be served is out of memory. This includes a size that
///   overflows when it is rounded up, and a size for which the resource never has blocks. These two are
///   [impossible](crate::Error::is_impossible), so that no layer waits or frees memory for them.
/// - **Duty 5.** Memory goes back to its source only after all work ordered before its `deallocate` is done,
///   or if that work is ordered before any use that the source makes of it.
/// - **Duty 6.** `deallocate` never panics and never fails. As far as the resource can tell, it refuses a
///   pointer that is foreign, already free, or of another size. It counts the refusal, reports it through
///   [`misuse`](crate::misuse), and never passes the pointer on. (In debug builds the reporting hook panics,
///   not the resource.)
/// - **Duty 7.** After a [sticky](crate::Error::is_sticky) driver error, every call fails with
///   [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned). Dropping the resource then makes no driver call.
/// - **Duty 8.** Dropping a resource gives back everything that it holds, live blocks included.
/// - **Duty 9.** A call leaves the caller's current CUDA context as it was.
/// - **Duty 10.** An error names the stack ([`Error::in_stack`](crate::Error::in_stack)).
/// - **Duty 11.** `Display` prints the stack, base first, in the text that
///   [`StackSpec`](crate::stack::StackSpec) reads. An adaptor prints its upstream, `+`, and itself.
///
/// # Duties of the caller
/// - **Duty 12.** The caller frees each block once, with the pointer and layout of its `allocate`. It calls
///   `deallocate` on the same resource, or on one that [is equal](Self::is_equal), and keeps the order that
///   [the stream argument promises](#what-a-stream-argument-promises).
/// - **Duty 13.** A stream argument is alive, belongs to the device, and is the stream that its [`StreamRef`]
///   describes. The caller may destroy a stream at any time after it has freed blocks on it.
/// - **Duty 14.** Safe code cannot call a resource whose drop has begun. The caller must not use blocks that
///   are still live at that time.
///
/// # Captured graphs
/// No call, on any thread, invalidates a graph that is being captured. Ordering the streams is the caller's
/// task. A request on a capturing stream gets memory that is free for that stream or for any stream, or new
/// memory. It never waits for another stream: if only such a wait could serve it, it is out of memory.
///
/// A block that is freed on a capturing stream is free again as soon as the *capture* has passed that point,
/// as if its work ran then. The resource may give it to other callers, and may return its memory to the
/// driver. But each launch of the graph uses the same addresses again. So keep the blocks that a graph uses
/// until its last launch has finished. A layer may do that for its callers, as millpond's `capture_scopes`
/// does.
///
/// A captured order holds only inside the graph. If work outside the capture uses a block too, the caller
/// must order that work before the stream outside the capture as well, before it frees the block on the
/// capturing stream.
///
/// # Layers that submit work
/// A layer may submit its own work on a block to the device, for example to clear or move the block. That
/// work counts in the order of the block:
/// - `allocate` submits the work to the stream of the call before it returns, or orders that stream after the
///   work. `deallocate` submits it to the stream of the call before it passes the block on.
/// - Only that stream is ordered after the work. So a layer that may submit work returns `true` from
///   [`is_stream_ordered`](Self::is_stream_ordered), whatever its upstream returns. The answer holds for the
///   layer's whole life, even if the layer later finds that it has nothing to submit.
/// - A layer submits no such work on a stream that captures a graph. Each launch would repeat the work, at a
///   time when another caller may own the bytes.
///
/// # Threads
/// The trait requires neither `Send` nor `Sync`. A single-threaded resource is `!Sync`; the thread-safe
/// adaptor makes it `Sync`. [`AnyResource`] requires both.
///
/// # Wrappers
/// A wrapper implements *every* method, including methods with a default. Otherwise it silently loses the
/// better implementation of the wrapped resource. [`forward_to_upstream!`](crate::forward_to_upstream) writes
/// the methods that only pass the call on. `#[deny(clippy::missing_trait_methods)]` on the impl finds a
/// missing one. Only [`provide`](Self::provide) describes the wrapper alone.
///
/// # Safety
/// Callers use the memory. If an implementation breaks duty 1, 2 or 5, safe code above it can corrupt memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a memory resource; pass the resource itself",
    label = "this is not a memory resource",
    note = "for several owners, write `let shared = resource.into_any();` and give each owner a \
            `shared.clone()`",
    note = "a `Result` needs `?` first; with `use millpond::prelude::*` it also takes further layers"
)]
pub unsafe trait DeviceMemoryResource: Any + Debug + Display {
    /// Allocates a block for use on `stream`.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is no such block;
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

    /// Returns the resource from which this one takes its memory, if there is one. A resource with several
    /// upstreams returns the default: it serves all requests that no other upstream serves.
    fn upstream(&self) -> Option<&dyn DeviceMemoryResource>;

    /// Returns free and total memory. `free` counts the device's free memory, and the free memory that this
    /// resource and the resources below can allocate again.
    ///
    /// # Errors
    /// The driver's errors.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Returns whether either resource can free the other's blocks.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool;

    /// Returns whether a block is ready only for the stream of its [`allocate`](Self::allocate). `false`
    /// promises more: any stream may use the block at once, and `deallocate` waits for all work that uses it.
    /// This holds for plain CUDA, where both calls synchronise with the device.
    ///
    /// The answer never changes. The default is `true`, which is safe for every resource. A wrapper returns
    /// its upstream's answer, unless it [submits work](DeviceMemoryResource#layers-that-submit-work): then it
    /// returns `true`.
    fn is_stream_ordered(&self) -> bool {
        true
    }

    /// Returns who can access the memory at its address: the device, the host, or both.
    fn accessibility(&self) -> Accessibility {
        self.upstream().map_or(Accessibility::DEVICE, DeviceMemoryResource::accessibility)
    }

    /// Returns the statistics of the nearest resource in the stack that keeps any.
    fn statistics(&self) -> Option<ResourceStatistics> {
        self.upstream().and_then(DeviceMemoryResource::statistics)
    }

    /// Gives free memory back to the device until at most `keep_bytes` are held, as far as whole regions are
    /// free. Returns the number of bytes given back. May synchronise with the device.
    ///
    /// # Errors
    /// The driver's errors. Memory that was given back before the error stays given back.
    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.upstream().map_or(Ok(0), |upstream| upstream.trim(keep_bytes))
    }

    /// Names the traits that [`find_trait`](crate::find_trait) finds in this resource, as in
    /// `traits.add::<Self, dyn Nameable>(|it| it)`. The resources below answer for themselves.
    fn provide(&self, _traits: &mut Traits) {}
}

/// A search for one trait among those that a resource names in [`provide`](DeviceMemoryResource::provide).
/// Any crate may define such a trait.
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
