//! Serves allocations from a stack of millpond, one for each device.
//!
//! A stream-ordered request goes to the stack with its stream. A plain request has no stream, and its memory
//! may be used on all streams at once. So it goes to the stack with a stream of this library, and the thread
//! waits for that stream before the program gets the memory. A plain free waits for the device, as in the
//! driver. Programs rely on this wait.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use millpond_core::driver::{CaptureModeGuard, StreamFlags};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DevicePtr, DriverHandle, Error, Layout, Result, StreamRef, watch};
use millpond_driver::cuda::CudaDriver;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::code::{Code, OUT_OF_MEMORY, UNKNOWN};
use crate::device::is_capturing;
use crate::process::{Serving, say};

/// `cuMemAlloc` returns addresses that are multiples of this number.
const ALIGNMENT: u64 = 512;

/// The stack of one device.
#[derive(Debug)]
pub(crate) struct Stack {
    resource: AnyResource,
    /// The stream of plain requests.
    stream: StreamRef,
}

/// A block of a stack.
#[derive(Clone, Debug)]
pub(crate) struct Lent {
    stack: Arc<Stack>,
    layout: Layout,
    /// The stream of the request.
    stream: StreamRef,
}

/// The stack's text.
static SPEC: OnceLock<StackSpec> = OnceLock::new();

/// The stacks by device; `None` for a device whose stack cannot be built.
static STACKS: Mutex<Option<FxHashMap<c_int, Option<Arc<Stack>>>>> = Mutex::new(None);

/// Serves allocations from the stack with this text from now on.
pub(crate) fn start(text: &str) {
    match text.parse::<StackSpec>() {
        Ok(spec) => _ = SPEC.set(spec),
        Err(error) => say(&format!("{error}; the driver serves all allocations")),
    }
}

/// Returns the stack of a device, if allocations are served and its stack can be built.
fn stack(device: c_int) -> Option<Arc<Stack>> {
    let spec = SPEC.get()?;
    if let Some(known) = STACKS.lock().as_ref().and_then(|stacks| stacks.get(&device)) {
        return known.clone();
    }
    let built = build(spec, device);
    if let Err(error) = &built {
        say(&format!("device {device}: {error}; the driver serves all allocations"));
    }
    let built = built.ok().map(Arc::new);
    // Another thread may have been faster.
    STACKS.lock().get_or_insert_default().entry(device).or_insert(built).clone()
}

fn build(spec: &StackSpec, device: c_int) -> Result<Stack> {
    let ordinal = u32::try_from(device).map_err(|_| Error::invalid_argument("no device has this number"))?;
    let driver: DriverHandle = CudaDriver::open(ordinal)?;
    let layers = millpond_resources::LAYERS.iter().chain(millpond_plan::LAYERS).copied();
    let table = LayerTable::new(layers).with(millpond_adaptors::LAYERS.iter().copied());
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING)?;
    let resource = spec.build(&table, &driver)?;
    watch::add(&resource); // for `millpond-replay top`, if MILLPOND_WATCH is set
    Ok(Stack { resource, stream })
}

/// Forgets the stack of a device whose contexts are gone. Its blocks went with them.
pub(crate) fn forget(device: c_int) {
    let stack = STACKS.lock().as_mut().and_then(|stacks| stacks.remove(&device));
    if let Some(stack) = stack.flatten() {
        PARKED.lock().retain(|(_, lent)| !Arc::ptr_eq(&lent.stack, &stack));
        // The resources would return memory that no longer exists.
        std::mem::forget(stack);
    }
}

/// Allocates from the stack of a device. Returns `None` if the driver must serve the request.
///
/// A request without a stream is a plain one.
pub(crate) fn allocate(
    device: c_int,
    bytes: u64,
    stream: Option<*mut c_void>,
) -> Option<std::result::Result<(DevicePtr, Lent), Code>> {
    if bytes == 0 {
        return None; // the driver refuses it, or has its own answer
    }
    let _serving = Serving::enter();
    let stack = stack(device)?;
    let layout = Layout::with_alignment(bytes, ALIGNMENT).ok()?;
    let on = stream.map_or(Ok(stack.stream), |stream| stream_of(&stack, stream));
    let served = on.and_then(|on| {
        let ptr = stack.resource.allocate(layout, on)?;
        if stream.is_none() {
            stack.resource.driver().stream_synchronize(on)?;
        }
        Ok((ptr, Lent { stack: Arc::clone(&stack), layout, stream: on }))
    });
    match served {
        Ok(block) => Some(Ok(block)),
        Err(error) if error.is_out_of_memory() => Some(Err(OUT_OF_MEMORY)),
        Err(_) => None,
    }
}

fn stream_of(stack: &Stack, stream: *mut c_void) -> Result<StreamRef> {
    // SAFETY: the program passes a living stream, and the driver refuses others.
    Ok(unsafe { stack.resource.driver().stream_ref(stream.addr() as u64) }?)
}

/// Gives a block back in the order of a stream; without a stream, after all work on the device.
pub(crate) fn free(ptr: u64, lent: &Lent, stream: Option<*mut c_void>) -> Code {
    let _serving = Serving::enter();
    let done = match stream {
        // The graph frees the block when it runs, and may run again at any time. So the block is kept.
        Some(stream) if is_capturing(stream) => Ok(()),
        Some(stream) => stream_of(&lent.stack, stream).map(|on| {
            // SAFETY: the block came from this stack with this layout, and the program gives it up in the
            // order of this stream.
            unsafe { lent.stack.resource.deallocate(DevicePtr::new(ptr), lent.layout, on) };
        }),
        None => free_for_good(ptr, lent),
    };
    done.map_or_else(|error| error.driver_error().map_or(UNKNOWN, |error| error.code()), |()| 0)
}

/// The captures that are under way.
pub(crate) static CAPTURES: AtomicU64 = AtomicU64::new(0);

/// Blocks that the program freed when the device could not be waited for, because of a capture.
static PARKED: Mutex<Vec<(u64, Lent)>> = Mutex::new(Vec::new());

/// Waits for the device, as the driver does, and gives a block back. If a capture prevents the wait, the
/// block is kept until a later free.
fn free_for_good(ptr: u64, lent: &Lent) -> Result<()> {
    let mut blocks = std::mem::take(&mut *PARKED.lock());
    blocks.push((ptr, lent.clone()));
    let driver = lent.stack.resource.driver();
    let has_waited = match CAPTURES.load(Ordering::SeqCst) {
        0 => driver.synchronize().map(|()| true),
        _ => {
            let _relaxed = CaptureModeGuard::relaxed(&**driver);
            driver.synchronize_beside_captures()
        }
    };
    if has_waited.as_ref().is_ok_and(|has_waited| *has_waited) {
        let of_device = |block: &mut (u64, Lent)| Arc::ptr_eq(&block.1.stack, &lent.stack);
        for (ptr, lent) in blocks.extract_if(.., of_device) {
            // SAFETY: the block came from this stack with this layout. The program has given it up, and the
            // device has no work left.
            unsafe { lent.stack.resource.deallocate(DevicePtr::new(ptr), lent.layout, lent.stream) };
        }
    } else if has_waited.is_err() {
        blocks.pop(); // the program still has the block
    }
    PARKED.lock().append(&mut blocks);
    has_waited.map(drop).map_err(Error::from)
}

/// Returns the bytes that a device's stack has reserved and not lent.
pub(crate) fn reserved_free(device: c_int) -> u64 {
    let _serving = Serving::enter();
    let stack = STACKS.lock().as_ref().and_then(|stacks| stacks.get(&device).cloned()).flatten();
    let Some(stack) = stack else { return 0 };
    let (info, device) = (stack.resource.memory_info(), stack.resource.driver().mem_get_info());
    match (info, device) {
        (Ok(info), Ok(device)) => info.free.saturating_sub(device.free),
        _ => 0,
    }
}
