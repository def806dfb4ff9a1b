//! An event that destroys itself when it is dropped.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_core::driver::{self, EventFlags};
use millpond_core::{DriverHandle, Error, Result, StreamRef};

use millpond_core::driver::call;

/// Marks a point in the work of a stream. Other streams and the host can wait until the device reaches this
/// point. Dropping this value destroys the event.
///
/// ```
/// use millpond_containers::{Event, Stream};
/// use millpond_core::driver::{EventFlags, StreamFlags};
/// use millpond_driver::sim::{SimConfig, SimDevice};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let producer = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
/// let consumer = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
/// let produced = Event::new(device, EventFlags::default())?;
/// produced.record(producer.as_ref())?;
/// consumer.wait(&produced)?; // the next work of `consumer` happens after the work of `producer`
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct Event {
    driver: DriverHandle,
    event: driver::Event,
    recorded: AtomicBool,
}

impl Event {
    /// Creates an event on the driver's device.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn new(driver: DriverHandle, flags: EventFlags) -> Result<Self> {
        let event = call(&*driver, |driver| driver.event_create(flags))?;
        Ok(Self { driver, event, recorded: AtomicBool::new(false) })
    }

    /// Records the event on `stream`. The event then stands for all work that was submitted to `stream` so
    /// far.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn record(&self, stream: impl Into<StreamRef>) -> Result<()> {
        let stream = stream.into();
        call(&*self.driver, |driver| driver.event_record(self.event, stream))?;
        self.recorded.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes later work on `stream` wait for the event. The host does not wait.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the event was never recorded,
    /// because a wait for such an event has no effect. Also the driver's errors.
    pub fn make_wait(&self, stream: impl Into<StreamRef>) -> Result<()> {
        let stream = stream.into();
        if !self.recorded.load(Ordering::Acquire) {
            return Err(Error::invalid_argument(
                "a stream cannot wait for an event that was never recorded; record it first",
            ));
        }
        call(&*self.driver, |driver| driver.stream_wait_event(stream, self.event))
    }

    /// Returns whether the device has done all work for which the event stands. Returns `true` for an event
    /// that was never recorded.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn query(&self) -> Result<bool> {
        call(&*self.driver, |driver| driver.event_query(self.event))
    }

    /// Waits on the host until the device has done all work for which the event stands.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn synchronize(&self) -> Result<()> {
        call(&*self.driver, |driver| driver.event_synchronize(self.event))
    }

    /// Returns the raw handle of the event, for calls of the driver.
    pub fn raw(&self) -> driver::Event {
        self.event
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event came from this driver, and has no other owner. Waits that were submitted for it
        // stay in effect.
        if let Err(error) = call(&*self.driver, |driver| unsafe { driver.event_destroy(self.event) }) {
            tracing::debug!(target: "millpond::containers", %error, "an event could not be destroyed");
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("device", &self.driver.device()).field("event", &self.event).finish()
    }
}

/// Orders the next work of `then` after all present work of `first`, by an event. Does nothing if both are
/// the same stream.
pub(crate) fn order(driver: &DriverHandle, first: StreamRef, then: StreamRef) -> Result<()> {
    if first == then {
        return Ok(());
    }
    let event = Event::new(driver.clone(), EventFlags::default())?;
    event.record(first)?;
    event.make_wait(then)
}
