//! Resources and failure handlers made from functions of the program.

use std::ffi::c_void;
use std::sync::Arc;

use millpond_adaptors::{AllocationBudget, FailureCallbackLayer};
use millpond_core::interrupt::{Ask, set_interrupt};
use millpond_core::{DeviceMemoryResourceExt, DevicePtr, Error, ErrorKind, find_trait};
use millpond_resources::CallbackMemoryResource;

use crate::device::Device;
use crate::layers::lacks;
use crate::resource::{Resource, with_resource};
use crate::status::{Status, borrowed, guarded, guarded_or, missing, put_handle};

/// Returns a block, or null if there is no memory.
pub type AllocateFunction = Option<
    extern "C" fn(context: *mut c_void, bytes: u64, alignment: u64, stream: *mut c_void) -> *mut c_void,
>;

/// Frees a block.
pub type DeallocateFunction = Option<
    extern "C" fn(context: *mut c_void, ptr: *mut c_void, bytes: u64, alignment: u64, stream: *mut c_void),
>;

/// Frees memory that the program can spare for a request of `bytes`. Returns whether the library tries the
/// request again.
pub type FailureFunction = Option<extern "C" fn(context: *mut c_void, bytes: u64) -> bool>;

/// Frees memory of a budget, because another budget's request of `bytes` needs its guarantee.
pub type CallBackFunction = Option<extern "C" fn(context: *mut c_void, bytes: u64)>;

/// Returns whether the calling thread must end its wait.
pub type InterruptFunction = Option<extern "C" fn() -> bool>;

/// Frees a context. The pointer may be null.
pub type EndFunction = Option<extern "C" fn(context: *mut c_void)>;

/// The value that the program's functions get. It is freed when its last user ends.
struct Context {
    value: *mut c_void,
    end: EndFunction,
}

// SAFETY: the caller of the ABI promises that its functions may be called on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn value(&self) -> *mut c_void {
        self.value
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(end) = self.end {
            end(self.value);
        }
    }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

/// Makes a resource from two functions. The library calls `end` with `context` after the resource is
/// destroyed, or if this call fails.
///
/// # Safety
/// `device` is a handle from this library; `resource` is valid for writes. The functions can be called on any
/// thread, do not unwind, and keep the contract of a resource. Their blocks do not overlap, belong to the
/// device, have the requested bytes, start at a multiple of the alignment, and are ordered for the stream. A
/// function may submit work that uses a block to that stream, unless the stream captures a graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_callback(
    device: *const Device,
    allocate: AllocateFunction,
    deallocate: DeallocateFunction,
    context: *mut c_void,
    end: EndFunction,
    resource: *mut *mut Resource,
) -> Status {
    let context = Arc::new(Context { value: context, end });
    guarded(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { borrowed(device, "the device") }?;
        let allocate = allocate.ok_or_else(|| missing("the function that allocates"))?;
        let deallocate = deallocate.ok_or_else(|| missing("the function that deallocates"))?;
        let of_free = context.clone();
        // SAFETY: the caller's promise.
        let made = unsafe {
            CallbackMemoryResource::new(
                device.0.clone(),
                move |layout, stream| {
                    let (bytes, alignment) = (layout.bytes(), layout.alignment());
                    let block = allocate(context.value(), bytes, alignment, pointer(stream.handle()));
                    match block.addr() {
                        0 => Err(Error::new(ErrorKind::OutOfMemory, "the callback returned a null pointer")),
                        address => Ok(DevicePtr::new(address as u64)),
                    }
                },
                move |ptr, layout, stream| {
                    let (bytes, alignment) = (layout.bytes(), layout.alignment());
                    let ptr = pointer(ptr.address());
                    deallocate(of_free.value(), ptr, bytes, alignment, pointer(stream.handle()));
                },
            )
        };
        // SAFETY: the caller's promise.
        unsafe { put_handle(resource, Resource::built(made.into_any())) }
    })
}

/// Adds a failure handler to a resource. When there is no memory for a request, the library calls `handle`.
/// `handle` frees memory that the program can spare, and returns whether the library tries the request again.
/// The library calls `end` with `context` after the resource is destroyed, or if this call fails.
///
/// # Safety
/// `upstream` is a handle from this library; `resource` is valid for writes. The functions can be called on
/// any thread, and do not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_failure_callback(
    upstream: *const Resource,
    handle: FailureFunction,
    context: *mut c_void,
    end: EndFunction,
    resource: *mut *mut Resource,
) -> Status {
    let context = Context { value: context, end };
    with_resource(upstream, |upstream| {
        let handle = handle.ok_or_else(|| missing("the function that handles failures"))?;
        let layer = FailureCallbackLayer::new(move |failed: &millpond_adaptors::FailedRequest<'_>| {
            handle(context.value(), failed.layout.bytes())
        });
        let made = upstream.clone().layer(layer)?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(resource, Resource::built(made.into_any())) }
    })
}

/// Sets the function that frees memory of the outermost budget of a stack, when another budget calls back its
/// guarantee. A request calls the function once at most, on its own thread. The function may use the stack,
/// and should return soon. It replaces an earlier function of the same budget; null removes the earlier one.
/// The library calls `end` with `context` when the budget needs the function no more, or if this call fails.
///
/// # Safety
/// `resource` is a handle from this library. The functions can be called on any thread, several times at
/// once, and do not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_budget_on_call_back(
    resource: *const Resource,
    call_back: CallBackFunction,
    context: *mut c_void,
    end: EndFunction,
) -> Status {
    let context = Context { value: context, end };
    with_resource(resource, |resource| {
        let adaptor = find_trait::<dyn AllocationBudget>(resource);
        let budget = adaptor.ok_or_else(|| lacks(resource, "charges a budget"))?.budget();
        match call_back {
            Some(call_back) => budget.on_call_back(move |bytes| call_back(context.value(), bytes)),
            None => budget.forget_call_back(),
        }
        Ok(())
    })
}

/// Sets the function that the library calls from time to time while a thread waits for memory. The library
/// calls it on the waiting thread. Null removes the function. If the function returns `true`, the wait ends
/// and the request fails. The function must be callable on any thread, and must not unwind.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_set_interrupt(ask: InterruptFunction) {
    guarded_or((), || {
        let ask = ask.map(|ask| -> Ask { Arc::new(move || ask()) });
        drop(set_interrupt(ask));
    });
}

/// Returns the number of owners of a resource: its handles, the resources on top of it, and the registry of
/// defaults. Returns 0 for null.
///
/// # Safety
/// `resource` is null or a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_owners(resource: *const Resource) -> usize {
    // SAFETY: the caller's promise.
    unsafe { resource.as_ref() }.map_or(0, |resource| Arc::strong_count(&resource.0))
}
