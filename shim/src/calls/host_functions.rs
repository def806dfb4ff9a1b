//! Functions of the host in the order of a stream (`cuLaunchHostFunc`).
//!
//! Each function runs on a thread of its own, after the work that its stream had before. Until it has
//! returned, calls that name its stream wait for it, and so do calls that wait for the whole device. A GPU's
//! driver differs in one point: a call that only submits work to the stream returns at once. No lock is held
//! while a function runs or while a call waits for one.

use std::ffi::c_void;
use std::thread;

use millpond_core::driver::{CaptureModeGuard, DriverResult, EventFlags};
use millpond_core::{DeviceId, Driver, DriverError, DriverHandle, StreamRef};
use parking_lot::{Condvar, Mutex};

use crate::abi::HostFunction;
use crate::error::refusal;

/// A function that has not returned: its device, its stream's handle, and its number.
type Pending = (DeviceId, u64, u64);

struct Functions {
    launched: u64,
    pending: Vec<Pending>,
}

static FUNCTIONS: Mutex<Functions> = Mutex::new(Functions { launched: 0, pending: Vec::new() });
static RETURNED: Condvar = Condvar::new();

/// Waits until no function like this is left.
fn wait_while(is_meant: impl Fn(Pending) -> bool) {
    let mut functions = FUNCTIONS.lock();
    RETURNED.wait_while(&mut functions, |functions| functions.pending.iter().any(|one| is_meant(*one)));
}

/// Whether a stream has a function that has not returned. The legacy default stream stands for all streams.
fn is_before(one: Pending, device: DeviceId, stream: u64) -> bool {
    one.0 == device && (one.1 == stream || stream == StreamRef::LEGACY.handle())
}

/// Waits for the stream's functions.
pub(super) fn wait_for_stream(driver: &dyn Driver, stream: StreamRef) {
    let (device, stream) = (driver.device(), stream.handle());
    wait_while(|one| is_before(one, device, stream));
}

/// Waits for all functions of the device.
pub(super) fn wait_for_device(driver: &dyn Driver) {
    wait_for_stream(driver, StreamRef::LEGACY);
}

/// Whether the stream has no function left.
pub(super) fn has_none(driver: &dyn Driver, stream: StreamRef) -> bool {
    let (device, stream) = (driver.device(), stream.handle());
    !FUNCTIONS.lock().pending.iter().any(|one| is_before(*one, device, stream))
}

/// What a function's thread needs. The program promises that its data may be used on another thread.
struct Task {
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
    own: Pending,
}

// SAFETY: CUDA calls the function on a thread of its own, so the program has made the data ready for that.
unsafe impl Send for Task {}

impl Task {
    fn run(self) {
        let Self { function, data, own } = self;
        wait_while(|one| one.2 < own.2 && is_before(one, own.0, own.1));
        // SAFETY: the program passed the function with its argument, and CUDA calls it once.
        unsafe { function(data) }
    }
}

/// Removes a function when its thread ends.
struct Ends(Pending);

impl Drop for Ends {
    fn drop(&mut self) {
        FUNCTIONS.lock().pending.retain(|one| *one != self.0);
        RETURNED.notify_all();
    }
}

/// Lets the function run after the stream's work. In a capture it is refused, because no graph runs.
pub(super) fn launch(
    driver: &DriverHandle,
    stream: StreamRef,
    function: HostFunction,
    data: *mut c_void,
) -> DriverResult<()> {
    let function = function.ok_or_else(|| refusal(DriverError::INVALID_VALUE))?;
    if driver.stream_is_capturing(stream)? {
        return Err(refusal(DriverError::NOT_SUPPORTED));
    }
    let event = driver.event_create(EventFlags::default())?;
    if let Err(error) = driver.event_record(event, stream) {
        // SAFETY: nothing else knows the event.
        unsafe { driver.event_destroy(event) }?;
        return Err(error);
    }
    let own = {
        let mut functions = FUNCTIONS.lock();
        functions.launched += 1;
        let own = (driver.device(), stream.handle(), functions.launched);
        functions.pending.push(own);
        own
    };
    let (task, ends, driver) = (Task { function, data, own }, Ends(own), driver.clone());
    let body = move || {
        let _ends = ends;
        {
            let _captures = CaptureModeGuard::relaxed(&*driver);
            // A lost device runs no work. The function must still run, because it may end a wait.
            let _done = driver.event_synchronize(event);
            // SAFETY: nothing else knows the event.
            let _destroyed = unsafe { driver.event_destroy(event) };
        }
        drop(driver);
        task.run();
    };
    let started = thread::Builder::new().name("millpond-host-function".to_owned()).spawn(body);
    started.map(drop).map_err(|_| refusal(DriverError::OUT_OF_MEMORY))
}
