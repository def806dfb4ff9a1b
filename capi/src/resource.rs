//! Stacks of resources: build them, allocate and free blocks, and query them.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::ptr::{self, NonNull};

use millpond_adaptors::statistics::Counters;
use millpond_adaptors::{AllocationCounters, AllocationLog, AllocationTracker};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Error, Layout, Result, StreamRef, find_trait,
    watch,
};
use millpond_driver::DeviceSpec;
use millpond_resources::Pool;

use crate::device::{Device, device_ptr};
use crate::history;
use crate::refused::check_taken;
use crate::status::{
    Status, borrowed, end, guarded_here, guarded_or, put, put_handle, put_text, stream_on, text_of,
};

/// A resource with all layers below it. It lives as long as one of its handles, or a resource on top of it.
#[derive(Debug)]
pub struct Resource(pub(crate) AnyResource, OutermostPool);

/// The outermost layer of the resource in the same handle, if that layer is a pool.
struct OutermostPool(Option<NonNull<dyn Pool>>);

// SAFETY: the pool is a part of an `AnyResource`, which may be used on any thread.
unsafe impl Send for OutermostPool {}
// SAFETY: as above.
unsafe impl Sync for OutermostPool {}

impl fmt::Debug for OutermostPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OutermostPool").field(&self.0.is_some()).finish()
    }
}

impl Resource {
    pub(crate) fn new(resource: AnyResource) -> Self {
        let below = resource.upstream().and_then(find_trait::<dyn Pool>);
        let is_below = |pool: &&dyn Pool| below.is_some_and(|below| ptr::addr_eq(below, *pool));
        let outermost = find_trait::<dyn Pool>(&resource).filter(|pool| !is_below(pool));
        let pool = OutermostPool(outermost.map(NonNull::from));
        Self(resource, pool)
    }

    /// Makes a handle of a resource that was just built, but not from text. `millpond-replay top` shows this
    /// resource.
    pub(crate) fn built(resource: AnyResource) -> Self {
        watch::add(&resource);
        Self::new(resource)
    }

    /// Returns the outermost layer, if it is a pool.
    pub(crate) fn pool(&self) -> Option<&dyn Pool> {
        // SAFETY: the pool is a part of the resource that this value holds, and does not move when the value
        // moves.
        self.1.0.map(|pool| unsafe { pool.as_ref() })
    }
}

/// The counters of a resource. All sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "the C interface fixes it")]
pub struct Statistics {
    /// Bytes in live blocks, after rounding.
    pub bytes_in_use: u64,
    /// Bytes in live blocks, as requested.
    pub bytes_requested: u64,
    /// The highest `bytes_in_use` so far.
    pub peak_bytes_in_use: u64,
    /// Bytes allocated from the upstream, in use and free.
    pub bytes_reserved: u64,
    /// The highest `bytes_in_use` so far.
    pub peak_bytes_reserved: u64,
    /// The size of the largest free block.
    pub largest_free_block: u64,
    /// The number of live blocks.
    pub blocks_in_use: u64,
    /// The number of free blocks.
    pub blocks_free: u64,
    /// Successful allocations so far.
    pub allocations: u64,
    /// Accepted deallocations so far.
    pub deallocations: u64,
    /// Refused deallocations so far.
    pub misuses: u64,
}

/// The counters of one level of the adaptor `statistics`. They are signed, because a level may count the free
/// of a block that is older than the level.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "the C interface fixes it")]
pub struct LevelCounters {
    /// Bytes in use.
    pub current_bytes: i64,
    /// The highest `current_bytes` in the level.
    pub peak_bytes: i64,
    /// The sum of all allocations in bytes.
    pub total_bytes: i64,
    /// The number of blocks in use.
    pub current_count: i64,
    /// The highest `current_count` in the level.
    pub peak_count: i64,
    /// The number of all allocations.
    pub total_count: i64,
}

/// Every layer that a stack's text can name.
pub(crate) fn layers() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().chain(millpond_plan::LAYERS).copied())
        .with(millpond_adaptors::LAYERS.iter().copied())
}

/// Builds a stack from text, such as `cuda+pool:initial=1GiB+statistics`, on a device. If `device` is null,
/// builds on the default device, as in `millpond_device_open`.
///
/// # Safety
/// `device` is null or a handle from this library; `stack` is a string; `resource` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_new(
    device: *const Device,
    stack: *const c_char,
    resource: *mut *mut Resource,
) -> Status {
    guarded_here(|| {
        // SAFETY: the caller's promise.
        let (device, stack) = unsafe { (device.as_ref(), text_of(stack, "the text of the stack")?) };
        let spec: StackSpec = stack.parse()?;
        let driver = match device {
            Some(device) => device.0.clone(),
            None => DeviceSpec::default_device().find()?,
        };
        // A program that builds a stack uses the device. Opening the device creates its context, so that
        // pools of other devices can give it access.
        if driver.device().is_cuda() {
            millpond_driver::open(driver.device())?;
        }
        // SAFETY: the caller's promise.
        unsafe { put_handle(resource, Resource::new(spec.build(&layers(), &driver)?)) }
    })
}

/// Builds layers from text, such as `pool:initial=1GiB+statistics`, on a resource, which the caller still
/// owns.
///
/// # Safety
/// `upstream` is a handle from this library; `layer` is a string; `resource` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_layer(
    upstream: *const Resource,
    layer: *const c_char,
    resource: *mut *mut Resource,
) -> Status {
    with_resource(upstream, |upstream| {
        // SAFETY: the caller's promise.
        let spec: StackSpec = unsafe { text_of(layer, "the text of the layer") }?.parse()?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(resource, Resource::new(spec.build_on(upstream.clone(), &layers())?)) }
    })
}

/// Makes another handle of the same resource.
///
/// # Safety
/// `resource` is a handle from this library; `clone` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_clone(
    resource: *const Resource,
    clone: *mut *mut Resource,
) -> Status {
    // SAFETY: the caller's promise.
    with_resource(resource, |resource| unsafe { put_handle(clone, Resource::new(resource.clone())) })
}

/// Frees a handle. The resource lives as long as it has another owner (see `millpond_resource_owners`). Does
/// nothing for null.
///
/// # Safety
/// `resource` is null, or a handle from this library, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_free(resource: *mut Resource) {
    // SAFETY: the caller's promise.
    unsafe { end(resource) }
}

/// Allocates a block for use on `stream`. The address is a multiple of `alignment` (at least 256; 0 means
/// 256). For 0 bytes, the result is a null pointer.
///
/// # Safety
/// `resource` is a handle from this library; the stream is alive and belongs to the device; `ptr` is valid
/// for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_allocate(
    resource: *const Resource,
    bytes: u64,
    alignment: u64,
    stream: *mut c_void,
    ptr: *mut *mut c_void,
) -> Status {
    with_resource(resource, |resource| {
        let layout = layout_of(bytes, alignment)?;
        if ptr.is_null() {
            return Err(Error::invalid_argument("the pointer for the block's address is a null pointer"));
        }
        let stream = stream_on(&**resource, stream)?;
        let outcome = resource.allocate(layout, stream);
        history::asked(&**resource, &outcome, bytes, stream);
        let block = outcome?;
        // SAFETY: the caller's promise.
        unsafe { put(ptr, std::ptr::without_provenance_mut(block.address() as usize)) }
    })
}

/// Frees a block in the order of `stream`. Does nothing for a null pointer. The resource refuses a block if
/// it is foreign, already free, or has another size. Then the call returns
/// `MILLPOND_STATUS_INVALID_ARGUMENT`, reports `millpond::misuse`, and counts the misuse.
///
/// # Safety
/// `resource` is a handle from this library. `millpond_allocate` returned the block for this resource, with
/// these bytes and this alignment. The block is freed once, and all work that uses it is ordered before the
/// stream's next work. The stream is alive and belongs to the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_deallocate(
    resource: *const Resource,
    ptr: *mut c_void,
    bytes: u64,
    alignment: u64,
    stream: *mut c_void,
) -> Status {
    with_resource(resource, |resource| {
        let layout = layout_of(bytes, alignment)?;
        let stream = match stream_on(&**resource, stream) {
            // The layers must learn that the block is freed. There is no work left to order.
            Err(_) if resource.driver().health().is_lost() => StreamRef::LEGACY,
            named => named?,
        };
        history::given_back(resource, device_ptr(ptr), bytes, stream);
        // SAFETY: the caller's promise.
        check_taken(device_ptr(ptr), || unsafe { resource.deallocate(device_ptr(ptr), layout, stream) })
    })
}

/// Allocates a block that any stream may use at once. Waits for the device if necessary.
///
/// # Safety
/// `resource` is a handle from this library; `ptr` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_allocate_sync(
    resource: *const Resource,
    bytes: u64,
    alignment: u64,
    ptr: *mut *mut c_void,
) -> Status {
    with_resource(resource, |resource| {
        if ptr.is_null() {
            return Err(Error::invalid_argument("the pointer for the block's address is a null pointer"));
        }
        let outcome = resource.allocate_sync(layout_of(bytes, alignment)?);
        history::asked(&**resource, &outcome, bytes, StreamRef::LEGACY);
        let block = outcome?;
        // SAFETY: the caller's promise.
        unsafe { put(ptr, std::ptr::without_provenance_mut(block.address() as usize)) }
    })
}

/// Frees a block that no work uses any more, whichever streams used it.
///
/// # Safety
/// The rules of `millpond_deallocate` hold, and all work that uses the block is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_deallocate_sync(
    resource: *const Resource,
    ptr: *mut c_void,
    bytes: u64,
    alignment: u64,
) -> Status {
    with_resource(resource, |resource| {
        let layout = layout_of(bytes, alignment)?;
        history::given_back(resource, device_ptr(ptr), bytes, StreamRef::LEGACY);
        // SAFETY: the caller's promise.
        check_taken(device_ptr(ptr), || unsafe { resource.deallocate_sync(device_ptr(ptr), layout) })
    })
}

pub(crate) fn layout_of(bytes: u64, alignment: u64) -> Result<Layout> {
    if alignment == 0 { Ok(Layout::new(bytes)) } else { Layout::with_alignment(bytes, alignment) }
}

/// Writes the text of the stack, with its base first. Free the text with `millpond_string_free`.
///
/// # Safety
/// `resource` is a handle from this library; `text` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_text(resource: *const Resource, text: *mut *mut c_char) -> Status {
    // SAFETY: the caller's promise.
    with_resource(resource, |resource| unsafe { put_text(text, &resource.to_string()) })
}

/// Writes the device of a resource, as a handle that the caller owns.
///
/// # Safety
/// `resource` is a handle from this library; `device` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_device(
    resource: *const Resource,
    device: *mut *mut Device,
) -> Status {
    // SAFETY: the caller's promise.
    with_resource(resource, |resource| unsafe { put_handle(device, Device(resource.driver().clone())) })
}

/// Returns whether either resource can free the other resource's blocks. Returns `false` if one of them is
/// null.
///
/// # Safety
/// `one` and `other` are null or handles from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_is_equal(one: *const Resource, other: *const Resource) -> bool {
    // SAFETY: the caller's promise.
    let (one, other) = unsafe { (one.as_ref(), other.as_ref()) };
    guarded_or(false, || one.zip(other).is_some_and(|(one, other)| one.0.is_equal(&*other.0)))
}

/// Writes two results about the resource's memory: whether the device can access it at its address, and
/// whether the host can.
///
/// # Safety
/// `resource` is a handle from this library. Both results are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_accessibility(
    resource: *const Resource,
    by_device: *mut bool,
    by_host: *mut bool,
) -> Status {
    // SAFETY: the caller's promise.
    with_resource(resource, |resource| unsafe {
        let accessibility = resource.accessibility();
        put(by_device, accessibility.device)?;
        put(by_host, accessibility.host)
    })
}

/// Writes the free bytes, including the memory that the resource could reuse, and the total bytes.
///
/// # Safety
/// `resource` is a handle from this library; both numbers are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_memory_info(
    resource: *const Resource,
    free_bytes: *mut u64,
    total_bytes: *mut u64,
) -> Status {
    // SAFETY: the caller's promise.
    with_resource(resource, |resource| unsafe {
        let info = resource.memory_info()?;
        put(free_bytes, info.free)?;
        put(total_bytes, info.total)
    })
}

/// Releases free memory to the device until the resource holds at most `keep_bytes`. Writes the number of
/// released bytes to `freed_bytes`, unless `freed_bytes` is null.
///
/// # Safety
/// `resource` is a handle from this library; `freed_bytes` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_trim(
    resource: *const Resource,
    keep_bytes: u64,
    freed_bytes: *mut u64,
) -> Status {
    with_resource(resource, |resource| {
        let freed = resource.trim(keep_bytes)?;
        // SAFETY: the caller's promise.
        if freed_bytes.is_null() { Ok(()) } else { unsafe { put(freed_bytes, freed) } }
    })
}

/// Writes the counters of the outermost layer that counts. Returns `MILLPOND_STATUS_UNSUPPORTED` if no layer
/// counts.
///
/// # Safety
/// `resource` is a handle from this library; `statistics` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_statistics(
    resource: *const Resource,
    statistics: *mut Statistics,
) -> Status {
    with_resource(resource, |resource| {
        let counted = resource.statistics().ok_or_else(|| lacks(resource, "counts", "statistics"))?;
        let counted = Statistics {
            bytes_in_use: counted.bytes_in_use,
            bytes_requested: counted.bytes_requested,
            peak_bytes_in_use: counted.peak_bytes_in_use,
            bytes_reserved: counted.bytes_reserved,
            peak_bytes_reserved: counted.peak_bytes_reserved,
            largest_free_block: counted.largest_free_block,
            blocks_in_use: counted.blocks_in_use,
            blocks_free: counted.blocks_free,
            allocations: counted.allocations,
            deallocations: counted.deallocations,
            misuses: counted.misuses,
        };
        // SAFETY: the caller's promise.
        unsafe { put(statistics, counted) }
    })
}

/// Writes a report of the stack's memory now, as text for people or as JSON. Free the report with
/// `millpond_string_free`.
///
/// # Safety
/// `resource` is a handle from this library; `report` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_memory_report(
    resource: *const Resource,
    as_json: bool,
    report: *mut *mut c_char,
) -> Status {
    with_resource(resource, |resource| {
        let memory = resource.memory_report();
        let text = if as_json { json(&memory)? } else { memory.to_string() };
        // SAFETY: the caller's promise.
        unsafe { put_text(report, &text) }
    })
}

/// Writes everything that the layers know about the live block that starts at `ptr`, as JSON. Writes null if
/// no layer knows the block. Free the text with `millpond_string_free`.
///
/// # Safety
/// `resource` is a handle from this library; `block` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_block_at(
    resource: *const Resource,
    ptr: *mut c_void,
    block: *mut *mut c_char,
) -> Status {
    with_resource(resource, |resource| match resource.block_at(device_ptr(ptr)) {
        // SAFETY: the caller's promise.
        Some(known) => unsafe { put_text(block, &json(&known)?) },
        // SAFETY: the caller's promise.
        None => unsafe { put(block, std::ptr::null_mut()) },
    })
}

/// Restarts the peaks and totals of all layers.
///
/// # Safety
/// `resource` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_clear_counters(resource: *const Resource) -> Status {
    with_resource(resource, |resource| {
        resource.clear_counters();
        Ok(())
    })
}

// --- The adaptor `statistics` ---

/// Writes the counters of the newest level of the adaptor `statistics`.
///
/// # Safety
/// `resource` is a handle from this library; `counters` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_statistics_counters(
    resource: *const Resource,
    counters: *mut LevelCounters,
) -> Status {
    with_counters(resource, counters, |adaptor| Ok(adaptor.counters()))
}

/// Starts a level with all counters at zero. Writes the counters of the level that was the newest until this
/// call.
///
/// # Safety
/// `resource` is a handle from this library; `counters` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_statistics_push(
    resource: *const Resource,
    counters: *mut LevelCounters,
) -> Status {
    with_counters(resource, counters, |adaptor| Ok(adaptor.push_counters()))
}

/// Ends the newest level. Writes the counters of this level, and adds them to the level below.
///
/// # Safety
/// `resource` is a handle from this library; `counters` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_statistics_pop(
    resource: *const Resource,
    counters: *mut LevelCounters,
) -> Status {
    with_counters(resource, counters, |adaptor| adaptor.pop_counters())
}

fn with_counters(
    resource: *const Resource,
    out: *mut LevelCounters,
    ask: impl FnOnce(&dyn AllocationCounters) -> Result<Counters>,
) -> Status {
    with_resource(resource, |resource| {
        let adaptor = find_trait::<dyn AllocationCounters>(resource);
        let counted = ask(adaptor.ok_or_else(|| lacks(resource, "counts by level", "statistics"))?)?;
        let (bytes, count) = (counted.bytes, counted.allocations);
        let counted = LevelCounters {
            current_bytes: bytes.current,
            peak_bytes: bytes.peak,
            total_bytes: bytes.total,
            current_count: count.current,
            peak_count: count.peak,
            total_count: count.total,
        };
        // SAFETY: the caller's promise.
        unsafe { put(out, counted) }
    })
}

// --- The adaptors `tracking` and `logging` ---

/// Writes the live allocations of the adaptor `tracking` as text. Writes the sum of their sizes to `bytes`.
/// Free the text with `millpond_string_free`.
///
/// # Safety
/// `resource` is a handle from this library; both results are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_tracking_outstanding(
    resource: *const Resource,
    bytes: *mut u64,
    text: *mut *mut c_char,
) -> Status {
    with_resource(resource, |resource| {
        let adaptor = find_trait::<dyn AllocationTracker>(resource);
        let adaptor = adaptor.ok_or_else(|| lacks(resource, "tracks allocations", "tracking"))?;
        // SAFETY: the caller's promise.
        unsafe {
            put(bytes, adaptor.allocated_bytes())?;
            put_text(text, &adaptor.report())
        }
    })
}

/// Flushes the adaptor `logging`: writes all buffered rows to the file.
///
/// # Safety
/// `resource` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_logging_flush(resource: *const Resource) -> Status {
    with_resource(resource, |resource| {
        let adaptor = find_trait::<dyn AllocationLog>(resource);
        adaptor.ok_or_else(|| lacks(resource, "logs", "logging"))?.flush()
    })
}

fn lacks(resource: &AnyResource, what: &str, layer: &str) -> Error {
    Error::new(
        millpond_core::ErrorKind::Unsupported,
        format!("no layer of `{resource}` {what}; add `+{layer}` to the stack"),
    )
}

pub(crate) fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::invalid_argument(error.to_string()))
}

pub(crate) fn with_resource(
    resource: *const Resource,
    body: impl FnOnce(&AnyResource) -> Result<()>,
) -> Status {
    // SAFETY: every function passes the caller's handle, as its own rules require.
    guarded_here(|| body(&unsafe { borrowed(resource, "the resource") }?.0))
}
