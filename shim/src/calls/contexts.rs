//! Initialisation and contexts, which only the driver has.

use std::ffi::{c_int, c_uint, c_void};

use millpond_core::DriverError;
use millpond_core::driver::DriverResult;

use super::{Api, Driving, Handle, handle, only, write, write_if_wanted};
use crate::contexts::{self, ContextHandle, ENTERED};
use crate::current;
use crate::error::refusal;

/// The version of the contexts' interface, as CUDA numbers it.
const VERSION: c_uint = 3020;

/// Makes a call for which CUDA must be initialised.
fn run(call: impl FnOnce() -> DriverResult<()>) -> c_int {
    Driving::code(current::device().and_then(|_| call()))
}

fn invalid_context() -> DriverError {
    refusal(DriverError::INVALID_CONTEXT)
}

/// The handle of a context that may be current.
fn known(context: Handle) -> DriverResult<ContextHandle> {
    let context = context.addr() as u64;
    if context == ENTERED && current::has_entered() {
        return Ok(context);
    }
    let is_known = contexts::initialised()?.may_be_current(context);
    if is_known { Ok(context) } else { Err(invalid_context()) }
}

fn top() -> DriverResult<ContextHandle> {
    current::top().ok_or_else(invalid_context)
}

/// A driver that the thread entered hides all contexts, so that they stay as they are.
fn change(make: impl FnOnce() -> DriverResult<()>) -> DriverResult<()> {
    if current::has_entered() { Ok(()) } else { make() }
}

pub(crate) unsafe extern "C" fn init(flags: c_uint) -> c_int {
    Driving::code(match (flags, current::has_entered()) {
        (0, true) => Ok(()),
        (0, false) => contexts::initialise().map(drop),
        _ => Err(refusal(DriverError::INVALID_VALUE)),
    })
}

pub(crate) unsafe extern "C" fn get_current(context: *mut Handle) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    run(|| unsafe { write(context, || Ok(handle(current::top().unwrap_or(0)))) })
}

pub(crate) unsafe extern "C" fn set_current(context: Handle) -> c_int {
    run(|| {
        change(|| {
            let context = if context.is_null() { None } else { Some(known(context)?) };
            current::pop();
            context.into_iter().for_each(current::push);
            Ok(())
        })
    })
}

pub(crate) unsafe extern "C" fn push_current(context: Handle) -> c_int {
    run(|| {
        change(|| {
            current::push(known(context)?);
            Ok(())
        })
    })
}

pub(crate) unsafe extern "C" fn pop_current(popped: *mut Handle) -> c_int {
    run(|| {
        let context = top()?;
        change(|| {
            current::pop();
            Ok(())
        })?;
        // SAFETY: CUDA's contract for the arguments.
        unsafe { write_if_wanted(popped, handle(context)) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn get_device(device: *mut c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    run(|| unsafe { write(device, || top().map(|_| 0)) })
}

pub(crate) unsafe extern "C" fn get_id(context: Handle, id: *mut u64) -> c_int {
    let find = || match if context.is_null() { top()? } else { known(context)? } {
        // The contexts of the process have small numbers.
        ENTERED => Ok(u64::MAX),
        context => {
            contexts::initialised()?.id(context).ok_or_else(|| refusal(DriverError::CONTEXT_IS_DESTROYED))
        }
    };
    // SAFETY: CUDA's contract for the arguments.
    run(|| unsafe { write(id, find) })
}

pub(crate) unsafe extern "C" fn get_api_version(context: Handle, version: *mut c_uint) -> c_int {
    let find = || if context.is_null() { top() } else { known(context) };
    // SAFETY: CUDA's contract for the arguments.
    run(|| unsafe { write(version, || find().map(|_| VERSION)) })
}

pub(crate) unsafe extern "C" fn get_flags(flags: *mut c_uint) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Driving::answer(flags, |_| Ok(0)) }
}

/// The simulated device has one priority.
pub(crate) unsafe extern "C" fn get_stream_priority_range<A: Api>(
    least: *mut c_int,
    most: *mut c_int,
) -> c_int {
    A::run(|_| {
        // SAFETY: CUDA's contract for the arguments.
        [least, most].into_iter().for_each(|place| unsafe { write_if_wanted(place, 0) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn create(context: *mut Handle, _flags: c_uint, device: c_int) -> c_int {
    let make = || {
        only(device, DriverError::INVALID_DEVICE)?;
        if current::has_entered() {
            return Ok(handle(ENTERED));
        }
        let context = contexts::initialised()?.create();
        current::push(context);
        Ok(handle(context))
    };
    // SAFETY: CUDA's contract for the arguments.
    run(|| unsafe { write(context, make) })
}

pub(crate) unsafe extern "C" fn create_with_params(
    context: *mut Handle,
    _params: *mut c_void,
    flags: c_uint,
    device: c_int,
) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { create(context, flags, device) }
}

pub(crate) unsafe extern "C" fn create_with_affinity(
    context: *mut Handle,
    _affinities: *mut c_void,
    _count: c_int,
    flags: c_uint,
    device: c_int,
) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { create(context, flags, device) }
}

pub(crate) unsafe extern "C" fn destroy(context: Handle) -> c_int {
    run(|| {
        change(|| {
            let context = known(context)?;
            contexts::initialised()?.destroy(context)?;
            if current::top() == Some(context) {
                current::pop();
            }
            Ok(())
        })
    })
}

/// Makes a call about the device's primary context. In its place, a driver that the thread entered has one
/// context, which never ends.
fn with_primary<T>(
    device: c_int,
    entered: T,
    call: impl FnOnce(&contexts::Contexts) -> DriverResult<T>,
) -> DriverResult<T> {
    only(device, DriverError::INVALID_DEVICE)?;
    if current::has_entered() { Ok(entered) } else { call(contexts::initialised()?) }
}

pub(crate) unsafe extern "C" fn retain_primary(context: *mut Handle, device: c_int) -> c_int {
    let retain = || {
        with_primary(device, handle(ENTERED), |contexts| {
            contexts.retain_primary();
            Ok(handle(contexts::PRIMARY))
        })
    };
    // SAFETY: CUDA's contract for the arguments.
    run(|| unsafe { write(context, retain) })
}

pub(crate) unsafe extern "C" fn release_primary(device: c_int) -> c_int {
    run(|| with_primary(device, (), contexts::Contexts::release_primary))
}

pub(crate) unsafe extern "C" fn reset_primary(device: c_int) -> c_int {
    run(|| {
        with_primary(device, (), |contexts| {
            contexts.reset_primary();
            Ok(())
        })
    })
}

pub(crate) unsafe extern "C" fn set_primary_flags(device: c_int, flags: c_uint) -> c_int {
    run(|| {
        with_primary(device, (), |contexts| {
            contexts.set_primary_flags(flags);
            Ok(())
        })
    })
}

pub(crate) unsafe extern "C" fn get_primary_state(
    device: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> c_int {
    run(|| {
        let state = with_primary(device, (0, true), |contexts| Ok(contexts.primary_state()))?;
        if flags.is_null() || active.is_null() {
            return Err(refusal(DriverError::INVALID_VALUE));
        }
        // SAFETY: CUDA's contract for the arguments.
        unsafe {
            write_if_wanted(flags, state.0);
            write_if_wanted(active, c_int::from(state.1));
        }
        Ok(())
    })
}
