//! The trait that every memory resource implements; its documentation is the contract.

use std::any::{Any, TypeId};
use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use crate::driver::{DriverHandle, MemoryInfo};
use crate::{Accessibility, DevicePtr, Layout, ResourceStatistics, Result, StreamRef};

/// An owned, type-erased handle to a resource that threads share. A call through the handle costs about 1 ns
/// more.
pub type AnyResource = Arc<dyn DeviceMemoryResource + Send + Sync>;

/// A stream-ordered source of device memory.
///
/// This page is the contract of the trait. "The resource" is the type that implements the trait. "The caller"
/// is the code that calls its methods. An adaptor is both: a resource for the layers above, and a caller of
/// its upstream.
///
/// # What a stream argument promises
/// [`allocate`](Self::allocate) returns memory for work that is submitted to `stream` after the call. If
/// earlier owners of the memory submitted work before they freed the memory, the new work runs after that
/// work. The call promises nothing to other streams. To use the block on another stream, the caller records
/// an event on `stream` after the call. Then the caller makes the other stream wait for the event.
///
/// [`deallocate`](Self::deallocate) frees the block in the order of `stream`. Work that is submitted to
/// `stream` after the call must run after all work that uses the block, on any stream. The caller guarantees
/// this order.
///
/// A stream-ordered resource does not wait for the device in these calls, unless it has no other way to get
/// memory.
///
/// # Duties of the resource
/// - **Duty 1.** Live blocks never overlap, and lie in memory of the resource's device. A block holds at
///   least `layout.bytes()` bytes. It starts at a multiple of `layout.alignment()`, which is at least 256.
/// - **Duty 2.** A request for zero bytes returns [`DevicePtr::NULL`] and uses no memory. `deallocate` of
///   `NULL` does nothing.
/// - **Duty 3.** The resource returns [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) only if it
///   finds no block even after it has synchronised with the device. The error has a
///   [report](crate::Error::out_of_memory_report). A failed call changes nothing that a caller can see.
/// - **Duty 4.** If the resource cannot serve a request, the error is out of memory, even for an absurdly
///   large size. Two kinds of request are [impossible](crate::Error::is_impossible): a size that overflows
///   when it is rounded up, and a size for which the resource never has blocks. No layer waits or frees
///   memory for an impossible request.
/// - **Duty 5.** The resource returns memory to its upstream, or to the driver, only in two cases. Either all
///   work ordered before the `deallocate` of the memory is done. Or that work is ordered before any later use
///   of the memory.
/// - **Duty 6.** `deallocate` never panics and never fails. If the resource can tell that a pointer is
///   foreign, already free, or of another size, it refuses the call. It counts the refused call, reports it
///   through [`misuse`](crate::misuse), and never passes the pointer to the upstream. (In debug builds, the
///   hook of `misuse` panics, not the resource.)
/// - **Duty 7.** After a [sticky](crate::Error::is_sticky) driver error, every call fails with
///   [`ErrorKind::Poisoned`](crate::ErrorKind::Poisoned). Dropping the resource then makes no driver call. In
///   a forked child, the rule of [`process`](crate::process) holds.
/// - **Duty 8.** When the resource is dropped, it returns all its memory to the upstream or to the driver,
///   including live blocks.
/// - **Duty 9.** A call leaves the caller's current CUDA context unchanged.
/// - **Duty 10.** An error contains the text of the stack ([`Error::in_stack`](crate::Error::in_stack)).
/// - **Duty 11.** `Display` prints the stack as text that [`StackSpec`](crate::stack::StackSpec) can read.
///   The base comes first: an adaptor prints its upstream, then `+`, then itself.
///
/// # Duties of the caller
/// - **Duty 12.** The caller frees each block once, with the pointer and the layout of the `allocate` call
///   that returned it. It calls `deallocate` on the same resource, or on a resource that
///   [is equal](Self::is_equal). It keeps the order that
///   [the stream argument promises](#what-a-stream-argument-promises).
/// - **Duty 13.** A stream argument is alive, belongs to the resource's device, and is the stream that its
///   [`StreamRef`] describes. After the caller has freed its blocks on a stream, the caller may destroy the
///   stream at any time.
/// - **Duty 14.** The caller does not use live blocks after the resource is dropped. Safe Rust already
///   prevents calls to a resource whose drop has begun.
///
/// # Captured graphs
/// No call to a resource, on any thread, invalidates a graph that is being captured. The caller is
/// responsible for the order between streams. On a capturing stream, a request gets memory that is free for
/// that stream, memory that is free for any stream, or new memory. Such a request never waits for another
/// stream. If only such a wait could serve the request, the request fails with out of memory.
///
/// A block that is freed on a capturing stream is free again as soon as the *capture* has passed the call.
/// The resource acts as if the captured work ran during the capture. It may give the block to other callers,
/// and may return the block's memory to the driver. But each launch of the graph uses the same addresses
/// again. So keep the blocks that a graph uses until the last launch of the graph has finished. The layer
/// `capture_scopes` keeps such blocks for its callers.
///
/// The order of captured operations holds only inside the graph. Work outside the capture may also use the
/// block, and the graph does not order that work. Before the caller frees the block on the capturing stream,
/// the caller must order the outside work in another way, for example by a wait on the host.
///
/// # Layers that submit work
/// A layer may submit its own work on a block to the device, for example to clear or move the block. The
/// contract also covers this work:
/// - `allocate` submits the work to the stream of the call, and then returns the block. If the layer submits
///   the work to another stream, `allocate` orders the stream of the call after the work.
/// - `deallocate` submits the work to the stream of the call, and then passes the block to the upstream.
/// - Only the stream of the call is ordered after the work. So a layer that may submit work returns `true`
///   from [`is_stream_ordered`](Self::is_stream_ordered), even if its upstream returns `false`. The layer
///   returns `true` for its whole life, even if it later has no work to submit.
/// - A layer submits no such work on a stream that captures a graph. Otherwise each launch of the graph would
///   repeat the work, even when another caller owns the bytes.
///
/// # Threads
/// The trait requires neither `Send` nor `Sync`. A single-threaded resource is `!Sync`; the thread-safe
/// adaptor makes it `Sync`. [`AnyResource`] requires both `Send` and `Sync`.
///
/// # Wrappers
/// A wrapper implements *every* method, including the methods with a default. Otherwise the wrapper uses the
/// default instead of the wrapped resource's better implementation, and no error shows the mistake.
/// [`forward_to_upstream!`](crate::forward_to_upstream) generates the methods that only pass the call on.
/// `#[deny(clippy::missing_trait_methods)]` on the impl finds a missing method. [`provide`](Self::provide) is
/// the exception: it describes the wrapper alone, so a wrapper need not pass this call on.
///
/// # Safety
/// The implementor guarantees duties 1, 2 and 5, because safe code uses the memory without checks. If an
/// implementation breaks one of these duties, safe code can corrupt memory.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a memory resource; pass the resource itself",
    label = "this is not a memory resource",
    note = "for several owners, write `let shared = resource.into_any();` and give each owner a \
            `shared.clone()`; an `AnyResource` already is shared: pass its `clone()`",
    note = "a `Result` needs `?` first; with `use millpond::prelude::*`, a `Result` also has the method \
        `layer`"
)]
pub unsafe trait DeviceMemoryResource: Any + Debug + Display {
    /// Allocates a block for work on `stream`.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the resource has no block for the request;
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) or
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the resource does not support the alignment; or the
    /// driver's error.
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr>;

    /// Frees a block in the order of `stream`.
    ///
    /// # Safety
    /// [Duties 12 and 13](DeviceMemoryResource#duties-of-the-caller): `ptr` and `layout` come from one
    /// `allocate` of this resource, and the block is still live. All uses of the block run before the next
    /// work on `stream`. `stream` is alive.
    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef);

    /// Returns the driver of the device that holds this memory.
    fn driver(&self) -> &DriverHandle;

    /// Returns the resource from which this one allocates its memory; `None` for the base of a stack. A
    /// resource with several upstreams returns the default upstream, which serves all requests that no other
    /// upstream serves.
    fn upstream(&self) -> Option<&dyn DeviceMemoryResource>;

    /// Returns the free and total memory in bytes. `free` counts two kinds of memory. One is the device's
    /// free memory. The other is memory that this resource and the resources below hold and can allocate
    /// again.
    ///
    /// # Errors
    /// The driver's errors.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// Returns whether each of the two resources can free the other's blocks.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool;

    /// Returns whether a new block is ready only for the stream of its [`allocate`](Self::allocate). `false`
    /// promises more: any stream may use a new block at once, and `deallocate` waits for all work that uses
    /// the block. For example, plain CUDA memory returns `false`, because its allocations and frees
    /// synchronise with the device.
    ///
    /// A resource always returns the same value. The default is `true`, which is safe for every resource. A
    /// wrapper that [submits work](DeviceMemoryResource#layers-that-submit-work) returns `true`. Any other
    /// wrapper returns the value of its upstream.
    fn is_stream_ordered(&self) -> bool {
        true
    }

    /// Returns whether the device, the host, or both can access the resource's memory directly.
    fn accessibility(&self) -> Accessibility {
        self.upstream().map_or(Accessibility::DEVICE, DeviceMemoryResource::accessibility)
    }

    /// Returns the resource's statistics. If the resource keeps no statistics, returns the statistics of the
    /// nearest resource below that keeps them.
    fn statistics(&self) -> Option<ResourceStatistics> {
        self.upstream().and_then(DeviceMemoryResource::statistics)
    }

    /// Releases free memory to the device until the resource holds at most `keep_bytes`. The resource can
    /// release only regions without a live block, so it may keep more. The call may synchronise with the
    /// device. Returns the number of bytes released.
    ///
    /// # Errors
    /// The driver's errors. Memory that was released before the error stays released.
    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.upstream().map_or(Ok(0), |upstream| upstream.trim(keep_bytes))
    }

    /// Lists the traits that [`find_trait`](crate::find_trait) can find in this resource. For each trait,
    /// call `traits.add::<Self, dyn Nameable>(|it| it)` with the name of the trait. Do not list the traits of
    /// the resources below.
    fn provide(&self, _traits: &mut Traits) {}
}

/// A search for one trait in a resource. In [`provide`](DeviceMemoryResource::provide), a resource calls
/// [`add`](Self::add) once for each trait that it implements. Any crate may define such a trait.
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
