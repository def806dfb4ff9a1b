//! Streams and events.

use std::ffi::{c_int, c_uint, c_void};

use millpond_core::driver::{DriverResult, EventFlags, StreamFlags};
use millpond_core::{Driver, DriverError};

use super::{Api, Handle, event, handle, host_functions, stream, stream_now};
use crate::abi::HostFunction;
use crate::current;
use crate::error::refusal;

fn not_ready(is_done: bool) -> DriverResult<()> {
    if is_done { Ok(()) } else { Err(refusal(DriverError::NOT_READY)) }
}

pub(crate) unsafe extern "C" fn stream_create_default<A: Api>(stream: *mut Handle) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { stream_create_with_priority::<A>(stream, 0, 0) }
}

pub(crate) unsafe extern "C" fn stream_create<A: Api>(stream: *mut Handle, flags: c_uint) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { stream_create_with_priority::<A>(stream, flags, 0) }
}

pub(crate) unsafe extern "C" fn stream_create_with_priority<A: Api>(
    stream: *mut Handle,
    flags: c_uint,
    priority: c_int,
) -> c_int {
    let create = |driver: &dyn Driver| match flags {
        0 | 1 => {
            let flags = StreamFlags::default().non_blocking(flags == 1).priority(priority);
            Ok(handle(driver.stream_create(flags)?.handle()))
        }
        _ => Err(refusal(DriverError::INVALID_VALUE)),
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer(stream, create) }
}

pub(crate) unsafe extern "C" fn stream_destroy<A: Api>(destroyed: Handle) -> c_int {
    A::run(|driver| {
        let stream = stream::<A>(driver, destroyed)?;
        // SAFETY: the caller guarantees that the stream is alive and is not used again.
        unsafe { driver.stream_destroy(stream) }
    })
}

pub(crate) unsafe extern "C" fn stream_synchronize<A: Api>(of: Handle) -> c_int {
    A::run(|driver| driver.stream_synchronize(stream::<A>(driver, of)?))
}

pub(crate) unsafe extern "C" fn stream_query<A: Api>(of: Handle) -> c_int {
    A::run(|driver| {
        let stream = stream_now::<A>(driver, of)?;
        not_ready(host_functions::has_none(driver, stream) && driver.stream_query(stream)?)
    })
}

pub(crate) unsafe extern "C" fn stream_wait_event<A: Api>(
    waiting: Handle,
    on: Handle,
    _flags: c_uint,
) -> c_int {
    A::run(|driver| driver.stream_wait_event(stream::<A>(driver, waiting)?, event(on)))
}

pub(crate) unsafe extern "C" fn stream_get_id<A: Api>(of: Handle, id: *mut u64) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer(id, |driver| Ok(stream_now::<A>(driver, of)?.id().get())) }
}

/// A stream belongs to the context that is current, because all contexts share the device.
pub(crate) unsafe extern "C" fn stream_get_context<A: Api>(of: Handle, context: *mut Handle) -> c_int {
    let find = |driver: &dyn Driver| {
        stream_now::<A>(driver, of)?;
        Ok(handle(current::top().unwrap_or(0)))
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer(context, find) }
}

pub(crate) unsafe extern "C" fn event_create_default<A: Api>(event: *mut Handle) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { event_create::<A>(event, 0) }
}

pub(crate) unsafe extern "C" fn event_create<A: Api>(event: *mut Handle, flags: c_uint) -> c_int {
    let create = |driver: &dyn Driver| match flags {
        0..=7 => {
            let flags = EventFlags::default().blocking_sync(flags & 1 != 0).timing(flags & 2 == 0);
            Ok(handle(driver.event_create(flags)?.0))
        }
        _ => Err(refusal(DriverError::INVALID_VALUE)),
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer(event, create) }
}

pub(crate) unsafe extern "C" fn event_destroy<A: Api>(destroyed: Handle) -> c_int {
    // SAFETY: the caller guarantees that the event is alive and is not used again.
    A::run(|driver| unsafe { driver.event_destroy(event(destroyed)) })
}

pub(crate) unsafe extern "C" fn event_record<A: Api>(recorded: Handle, on: Handle) -> c_int {
    A::run(|driver| driver.event_record(event(recorded), stream::<A>(driver, on)?))
}

pub(crate) unsafe extern "C" fn event_record_with_flags<A: Api>(
    recorded: Handle,
    on: Handle,
    _flags: c_uint,
) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { event_record::<A>(recorded, on) }
}

pub(crate) unsafe extern "C" fn event_query<A: Api>(of: Handle) -> c_int {
    A::run(|driver| not_ready(driver.event_query(event(of))?))
}

pub(crate) unsafe extern "C" fn event_synchronize<A: Api>(of: Handle) -> c_int {
    A::run(|driver| driver.event_synchronize(event(of)))
}

pub(crate) unsafe extern "C" fn launch_host_function<A: Api>(
    on: Handle,
    function: HostFunction,
    data: *mut c_void,
) -> c_int {
    A::run(|driver| host_functions::launch(driver, stream_now::<A>(driver, on)?, function, data))
}
