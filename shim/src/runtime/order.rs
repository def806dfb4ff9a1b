//! Streams, events and captures.

use std::ffi::{c_int, c_uint};

use millpond_core::DriverError;
use millpond_core::driver::{CaptureMode, DriverResult, EventFlags, StreamFlags};

use super::{Handle, event, handle, stream};
use crate::current::driver;
use crate::error::{code, invalid_value, place};

fn not_ready(call: &'static str, is_done: bool) -> DriverResult<()> {
    if is_done { Ok(()) } else { Err(DriverError::new(DriverError::NOT_READY, call)) }
}

pub(crate) unsafe extern "C" fn cudaStreamCreate(stream: *mut Handle) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { cudaStreamCreateWithPriority(stream, 0, 0) }
}

pub(crate) unsafe extern "C" fn cudaStreamCreateWithFlags(stream: *mut Handle, flags: c_uint) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { cudaStreamCreateWithPriority(stream, flags, 0) }
}

pub(crate) unsafe extern "C" fn cudaStreamCreateWithPriority(
    stream: *mut Handle,
    flags: c_uint,
    priority: c_int,
) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let stream = unsafe { place(stream, "cudaStreamCreate") };
    code(stream.and_then(|stream| {
        if flags > 1 {
            return Err(invalid_value("cudaStreamCreate"));
        }
        let flags = StreamFlags::default().non_blocking(flags == 1).priority(priority);
        stream.write(handle(driver()?.stream_create(flags)?.handle()));
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaStreamDestroy(destroyed: Handle) -> c_int {
    code(driver().and_then(|driver| {
        let stream = stream(&*driver, destroyed)?;
        // SAFETY: the caller guarantees that the stream is alive and is not used again.
        unsafe { driver.stream_destroy(stream) }
    }))
}

pub(crate) unsafe extern "C" fn cudaStreamSynchronize(of: Handle) -> c_int {
    code(driver().and_then(|driver| driver.stream_synchronize(stream(&*driver, of)?)))
}

pub(crate) unsafe extern "C" fn cudaStreamQuery(of: Handle) -> c_int {
    let done = driver().and_then(|driver| driver.stream_query(stream(&*driver, of)?));
    code(done.and_then(|is_done| not_ready("cudaStreamQuery", is_done)))
}

pub(crate) unsafe extern "C" fn cudaStreamWaitEvent(waiting: Handle, on: Handle, _flags: c_uint) -> c_int {
    code(driver().and_then(|driver| driver.stream_wait_event(stream(&*driver, waiting)?, event(on))))
}

pub(crate) unsafe extern "C" fn cudaStreamGetId(of: Handle, id: *mut u64) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let id = unsafe { place(id, "cudaStreamGetId") };
    code(id.and_then(|id| {
        id.write(stream(&*driver()?, of)?.id().get());
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaStreamIsCapturing(of: Handle, status: *mut c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let status = unsafe { place(status, "cudaStreamIsCapturing") };
    code(status.and_then(|status| {
        let driver = driver()?;
        status.write(c_int::from(driver.stream_is_capturing(stream(&*driver, of)?)?));
        Ok(())
    }))
}

/// CUDA's numbers of the capture modes.
const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

pub(crate) unsafe extern "C" fn cudaThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_int {
    let call = "cudaThreadExchangeStreamCaptureMode";
    // SAFETY: the caller passes null or a valid mode, which nothing else uses during the call.
    let mode = unsafe { mode.as_mut() }.ok_or_else(|| invalid_value(call));
    code(mode.and_then(|mode| {
        let wanted = usize::try_from(*mode).ok().and_then(|number| MODES.get(number));
        let wanted = *wanted.ok_or_else(|| invalid_value(call))?;
        let before = driver()?.thread_exchange_stream_capture_mode(wanted)?;
        *mode = MODES.iter().zip(0..).find(|(known, _)| **known == before).map_or(0, |(_, number)| number);
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaEventCreate(event: *mut Handle) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { cudaEventCreateWithFlags(event, 0) }
}

pub(crate) unsafe extern "C" fn cudaEventCreateWithFlags(event: *mut Handle, flags: c_uint) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let event = unsafe { place(event, "cudaEventCreate") };
    code(event.and_then(|event| {
        if flags > 7 {
            return Err(invalid_value("cudaEventCreate"));
        }
        let flags = EventFlags::default().blocking_sync(flags & 1 != 0).timing(flags & 2 == 0);
        event.write(handle(driver()?.event_create(flags)?.0));
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaEventDestroy(destroyed: Handle) -> c_int {
    // SAFETY: the caller guarantees that the event is alive and is not used again.
    code(driver().and_then(|driver| unsafe { driver.event_destroy(event(destroyed)) }))
}

pub(crate) unsafe extern "C" fn cudaEventRecord(recorded: Handle, on: Handle) -> c_int {
    code(driver().and_then(|driver| driver.event_record(event(recorded), stream(&*driver, on)?)))
}

pub(crate) unsafe extern "C" fn cudaEventRecordWithFlags(
    recorded: Handle,
    on: Handle,
    _flags: c_uint,
) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { cudaEventRecord(recorded, on) }
}

pub(crate) unsafe extern "C" fn cudaEventQuery(of: Handle) -> c_int {
    let done = driver().and_then(|driver| driver.event_query(event(of)));
    code(done.and_then(|is_done| not_ready("cudaEventQuery", is_done)))
}

pub(crate) unsafe extern "C" fn cudaEventSynchronize(of: Handle) -> c_int {
    code(driver().and_then(|driver| driver.event_synchronize(event(of))))
}
