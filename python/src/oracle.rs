//! The checks of a simulated device, and the mistakes that they must find. Only the package's own tests use
//! this module.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::api::{Raw, api, take_text};
use crate::device::{Device, DeviceHandle, Stream};
use crate::error::{Failure, check};

/// A step of the stream order that a test leaves out on purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mistake {
    /// A use on another stream does not wait for the block's stream.
    Before = 1,
    /// The block's stream does not wait for a use on another stream.
    After = 2,
    /// The source of a copy counts as unused.
    Source = 4,
    /// The block's stream does not wait for the work of an export's consumer.
    Export = 8,
    /// The end of a block does not wait for work on unknown streams.
    Unknown = 16,
    /// The per-thread default streams of two threads count as one.
    Thread = 32,
    /// Every wait for the device fails, as during a graph capture.
    Wait = 64,
    /// The per-thread default streams of two threads count as one on a third thread.
    Third = 128,
    /// Memory of another library ends without a wait for its work.
    Foreign = 256,
}

static MADE: AtomicU32 = AtomicU32::new(0);

/// Returns whether a test makes this mistake. No program does.
#[inline]
pub(crate) fn makes(mistake: Mistake) -> bool {
    MADE.load(Ordering::Relaxed) & mistake as u32 != 0
}

/// Sets the mistakes to make from now on, as the sum of their numbers. 0 makes none.
#[pyfunction]
pub(crate) fn _oracle_mistakes(mistakes: u32) {
    MADE.store(mistakes, Ordering::Relaxed);
}

/// Opens a simulated device. On this device, a random adversary with this seed decides when work is done.
#[pyfunction]
pub(crate) fn _oracle_device(py: Python<'_>, nbytes: u64, seed: u64) -> PyResult<Device> {
    // SAFETY: the result may be written.
    let open = |made: *mut Raw| unsafe { (api().oracle_device)(nbytes, seed, made) };
    Ok(py.detach(|| DeviceHandle::from_call(open)).map(Device)?)
}

/// Begins or ends a capture on a stream of a simulated device.
#[pyfunction]
pub(crate) fn _oracle_capture(
    py: Python<'_>,
    device: &Device,
    stream: &Stream,
    begins: bool,
) -> PyResult<()> {
    // SAFETY: the device's handle and the stream are live.
    Ok(py.detach(|| check(unsafe { (api().oracle_capture)(device.0.0, stream.0.ptr(), begins) }))?)
}

/// Returns the mistakes that a simulated device's checks found since the last call, one on each line.
#[pyfunction]
pub(crate) fn _oracle_violations(py: Python<'_>, device: &Device) -> PyResult<String> {
    Ok(py.detach(|| {
        let mut text = null_mut();
        // SAFETY: the device's handle is live, and the result may be written.
        check(unsafe { (api().oracle_violations)(device.0.0, &raw mut text) })?;
        Ok::<_, Failure>(take_text(text))
    })?)
}
