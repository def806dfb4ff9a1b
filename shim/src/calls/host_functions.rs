//! Functions of the host in the order of a stream (`cuLaunchHostFunc`).
//!
//! Each function runs on a thread of its own, after the work that its stream had before. Until it has
//! returned, calls that submit work to its stream or wait for it wait for the function. So do such calls on
//! the streams that the legacy rule orders after it, and calls that wait for the whole device. A GPU's driver
//! differs in one point: a call that only submits work to the stream returns at once. Questions about a
//! stream never wait. No lock is held while a function runs or while a call waits for one.
//!
//! Only a simulated device runs functions. Their threads make no driver calls, so planned faults and counts
//! of calls do not depend on these threads.

use std::ffi::c_void;
use std::thread;

use millpond_core::driver::DriverResult;
use millpond_core::{DeviceId, Driver, DriverError, StreamId, StreamRef};
use millpond_driver::sim::SimDevice;
use parking_lot::{Condvar, Mutex};

use crate::abi::HostFunction;
use crate::current::simulated;
use crate::error::refusal;

/// A stream's place in the order of its device.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    device: DeviceId,
    stream: StreamId,
    is_blocking: bool,
}

impl Place {
    fn new(device: &SimDevice, stream: StreamRef) -> Self {
        Self { device: device.device(), stream: stream.id(), is_blocking: device.is_blocking(stream) }
    }

    /// Whether the work of the two streams is ordered by its submission.
    fn is_ordered_with(self, other: Self) -> bool {
        let is_legacy = |place: Self| place.stream == StreamId::LEGACY;
        self.device == other.device
            && (self.stream == other.stream
                || (is_legacy(self) && other.is_blocking)
                || (is_legacy(other) && self.is_blocking))
    }
}

/// A function that has not returned: its place, and its number.
type Pending = (Place, u64);

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

/// The place of a call's stream, if its device has functions that have not returned.
fn place_among_functions(driver: &dyn Driver, stream: StreamRef) -> Option<Place> {
    let device = driver.device();
    let has_functions = FUNCTIONS.lock().pending.iter().any(|(place, _)| place.device == device);
    let device = has_functions.then(|| SimDevice::find(device))??;
    Some(Place::new(&device, stream))
}

/// Waits for the functions that are ordered before the stream's next work.
pub(super) fn wait_for_stream(driver: &dyn Driver, stream: StreamRef) {
    if let Some(own) = place_among_functions(driver, stream) {
        wait_while(|(place, _)| place.is_ordered_with(own));
    }
}

/// Waits for all functions of the device.
pub(super) fn wait_for_device(driver: &dyn Driver) {
    let device = driver.device();
    wait_while(|(place, _)| place.device == device);
}

/// Whether no function is ordered before the stream's next work.
pub(super) fn has_none(driver: &dyn Driver, stream: StreamRef) -> bool {
    place_among_functions(driver, stream)
        .is_none_or(|own| !FUNCTIONS.lock().pending.iter().any(|(place, _)| place.is_ordered_with(own)))
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
        wait_while(|one| one.1 < own.1 && one.0.is_ordered_with(own.0));
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
    driver: &dyn Driver,
    stream: StreamRef,
    function: HostFunction,
    data: *mut c_void,
) -> DriverResult<()> {
    let function = function.ok_or_else(|| refusal(DriverError::INVALID_VALUE))?;
    if driver.stream_is_capturing(stream)? {
        return Err(refusal(DriverError::NOT_SUPPORTED));
    }
    let device = simulated(driver)?;
    let (place, wait) = (Place::new(&device, stream), device.wait_of(stream)?);
    drop(device);
    let own = {
        let mut functions = FUNCTIONS.lock();
        functions.launched += 1;
        let own = (place, functions.launched);
        functions.pending.push(own);
        own
    };
    let (task, ends) = (Task { function, data, own }, Ends(own));
    let body = move || {
        let _ends = ends;
        // Also on a lost device the function must run, because it may end a wait.
        wait();
        task.run();
    };
    let started = thread::Builder::new().name("millpond-host-function".to_owned()).spawn(body);
    started.map(drop).map_err(|_| refusal(DriverError::OUT_OF_MEMORY))
}
