//! The history of events, which memory snapshots show.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_adaptors::recording::{
    Frame, RecordOptions, RecordStacks, Recorder, StackSource, set_stack_source,
};
use millpond_core::driver::call;
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Error, Result, StreamRef,
};
use parking_lot::RwLock;

use crate::status::{Status, guarded, guarded_here};

/// Captures the calling thread's call stack, and returns the call stack's number. Equal call stacks have the
/// same number. The number 0 means that there is no call stack. The library calls this function in each
/// recorded call, on any thread, without a lock.
pub type CaptureFunction = Option<extern "C" fn() -> u64>;

/// Receives one frame of a call stack: the function, the file and the line.
pub type AddFrameFunction =
    Option<extern "C" fn(list: *mut c_void, name: *const c_char, file: *const c_char, line: u64)>;

/// Calls `add` with `list` and each frame of a captured call stack, the innermost frame first.
pub type FramesFunction = Option<extern "C" fn(stack: u64, list: *mut c_void, add: AddFrameFunction)>;

/// The recorder of this process, while it records.
static RECORDER: RwLock<Option<Arc<Recorder>>> = RwLock::new(None);
/// Whether there is a recorder.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Returns the recorder, while it records.
#[inline]
pub(crate) fn recorder() -> Option<Arc<Recorder>> {
    if IS_ON.load(Ordering::Relaxed) { RECORDER.read().clone() } else { None }
}

/// Records an allocation that succeeded, or one that failed because there was no memory.
#[inline]
pub(crate) fn asked(
    resource: &dyn DeviceMemoryResource,
    outcome: &Result<DevicePtr>,
    bytes: u64,
    stream: StreamRef,
) {
    if let Some(recorder) = recorder() {
        note_answer(&recorder, resource, outcome, bytes, stream);
    }
}

#[cold]
fn note_answer(
    recorder: &Recorder,
    resource: &dyn DeviceMemoryResource,
    outcome: &Result<DevicePtr>,
    bytes: u64,
    stream: StreamRef,
) {
    let driver = resource.driver();
    match outcome {
        Ok(ptr) if ptr.is_null() => {}
        Ok(ptr) => recorder.allocated(driver.device(), *ptr, bytes, stream),
        Err(error) if error.is_out_of_memory() => {
            let free = call(&**driver, |driver| driver.mem_get_info()).map_or(0, |info| info.free);
            recorder.out_of_memory(driver.device(), bytes, stream, free);
        }
        Err(_) => {}
    }
}

/// Records that a block of a resource is freed now, if the resource will accept it.
#[inline]
pub(crate) fn given_back(resource: &AnyResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    if let Some(recorder) = recorder().filter(|_| !ptr.is_null()) {
        note_free(&recorder, resource, ptr, bytes, stream);
    }
}

#[cold]
fn note_free(recorder: &Recorder, resource: &AnyResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    let device = resource.device();
    // A block that is older than the recorder is known to its pool.
    let is_live = recorder.live_bytes(device, ptr).or_else(|| Some(resource.block_at(ptr)?.bytes));
    if is_live == Some(bytes) {
        recorder.free(device, ptr, bytes, stream);
    }
}

/// Sets the functions that capture the call stacks of the history and return their frames. Without them, the
/// history has native call stacks. The library may call the functions on any thread until the process ends.
/// If `frames` waits for a lock that a forking thread holds, the fork may take up to a second longer.
///
/// # Safety
/// Both functions can be called until the process ends, and do not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_set_stack_source(capture: CaptureFunction, frames: FramesFunction) {
    struct Source {
        capture: extern "C" fn() -> u64,
        frames: extern "C" fn(u64, *mut c_void, AddFrameFunction),
    }

    impl StackSource for Source {
        fn capture(&self) -> u64 {
            (self.capture)()
        }

        fn frames(&self, stack: u64) -> Vec<Frame> {
            let mut list: Vec<Frame> = Vec::new();
            (self.frames)(stack, (&raw mut list).cast(), Some(add_frame));
            list
        }
    }

    let both = capture.zip(frames);
    set_stack_source(both.map(|(capture, frames)| Arc::new(Source { capture, frames }) as _));
}

extern "C" fn add_frame(list: *mut c_void, name: *const c_char, file: *const c_char, line: u64) {
    let text = |text: *const c_char| {
        // SAFETY: the caller passes null, or a string that lives during the call.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    // SAFETY: `list` is the list that `frames` passed, which lives during the call.
    let list = unsafe { &mut *list.cast::<Vec<Frame>>() };
    list.push(Frame::new(text(name).unwrap_or_default(), text(file).unwrap_or_default(), line));
}

/// Starts to record the last `events` allocations, frees, segments and failed requests of this process, for
/// `millpond_memory_snapshot`. `stacks` selects the events whose call stack is captured: 0 for none, 1 for
/// allocations of live blocks, 2 for all allocations, 3 for frees, too. Each bit of `skipped` leaves out one
/// action. The lowest bit stands for `alloc`. The next bits stand for `free_requested`, `free_completed`,
/// `segment_alloc`, `segment_free`, `segment_map`, `segment_unmap` and `oom`. If the history already has
/// these options, the call changes nothing. But if `is_new` is set, the history begins anew.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_record_history(events: usize, stacks: i32, skipped: u32, is_new: bool) -> Status {
    guarded_here(|| {
        let stacks = match stacks {
            0 => RecordStacks::Off,
            1 => RecordStacks::Live,
            2 => RecordStacks::Allocations,
            3 => RecordStacks::All,
            _ => return Err(Error::invalid_argument("`stacks` must be a number from 0 to 3")),
        };
        let options = RecordOptions::default().events(events).stacks(stacks).skipped(skipped);
        let mut now = RECORDER.write();
        let is_same = now.as_ref().is_some_and(|recorder| recorder.options() == options);
        if !is_same || is_new {
            *now = Some(Recorder::new(options));
        }
        IS_ON.store(true, Ordering::Relaxed);
        Ok(())
    })
}

/// Stops recording, and discards the history.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_stop_history() -> Status {
    guarded(|| {
        IS_ON.store(false, Ordering::Relaxed);
        let ended = RECORDER.write().take();
        drop(ended);
        Ok(())
    })
}
