//! Copies shared memory to a device that cannot access the memory itself.

use millpond_core::driver::{CaptureModeGuard, Event, EventFlags, StreamFlags, call};
use millpond_core::{DeviceId, DriverHandle, Error, Result, StreamRef};

use crate::{IpcHandle, MemoryManager, MemoryPointer, current_stream, with_stream};

impl IpcHandle {
    /// Returns whether the device of `driver` can access the memory directly, as [`open`](Self::open)
    /// requires. `source` is the driver of the memory's own device in this process. If the device cannot
    /// access the memory, [`open_staged`](Self::open_staged) copies it.
    ///
    /// # Errors
    /// Returns an error of the driver.
    pub fn can_access_peer(source: &DriverHandle, driver: &DriverHandle) -> Result<bool> {
        let peer = driver.device();
        if source.device() == peer {
            return Ok(true);
        }
        call(&**source, |source| source.can_be_accessed_by(peer))
    }

    /// Copies the memory to the device of `driver`. The copy is in memory of `manager`, which belongs to this
    /// device. `source` is the driver of the memory's own device in this process. The mapping ends before
    /// this call returns. The caller owns the copy; the sharing process keeps its memory.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open) and of [`MemoryManager::memalloc`], or an error of the
    /// driver.
    pub fn open_staged(
        &mut self,
        source: &DriverHandle,
        manager: &dyn MemoryManager,
        driver: &DriverHandle,
    ) -> Result<MemoryPointer> {
        let mapped = self.open(source)?;
        let copied = copy_to(driver, manager, source.device(), &mapped);
        drop(mapped);
        let closed = self.close();
        let copy = copied.map_err(|error| error.context("copying shared memory from another device"))?;
        closed.map(|()| copy)
    }
}

/// Copies memory of another device, and waits for the copy.
fn copy_to(
    driver: &DriverHandle,
    manager: &dyn MemoryManager,
    from: DeviceId,
    memory: &MemoryPointer,
) -> Result<MemoryPointer> {
    if memory.bytes() == 0 {
        return manager.memalloc(0);
    }
    let _captures = CaptureModeGuard::relaxed(&**driver);
    let mut copying = Copying::new(driver)?;
    let owner = current_stream();
    // On a capturing stream, recording an event would end the capture or become a part of it.
    let is_captured = match call(&**driver, |driver| Ok(driver.stream_is_capturing(owner)))? {
        Ok(is_captured) => is_captured,
        Err(error) if error.is_unsupported() => false,
        Err(error) if error.is_capture_refusal() => true,
        Err(error) => return call(&**driver, |_| Err(error)),
    };
    let copy = if is_captured {
        // The block is freed after all work of the device, because this stream ends.
        with_stream(copying.stream, || manager.memalloc(memory.bytes()))
    } else {
        manager.memalloc(memory.bytes())
    }?;
    if copy.device() != driver.device() {
        let why = format!(
            "the manager belongs to {}, but the driver belongs to {}",
            copy.device(),
            driver.device()
        );
        return Err(Error::invalid_argument(why));
    }
    let outcome = if is_captured { Ok(()) } else { copying.after(owner) };
    let outcome = outcome.and_then(|()| copying.run(from, memory, &copy));
    drop(copying); // waits for the copy: both blocks live until it is done
    outcome.map(|()| copy)
}

/// A copy between devices on its own stream. The legacy default stream would end captures of blocking
/// streams, and the block may be for another stream. Dropping this value waits for the copy.
struct Copying<'a> {
    driver: &'a DriverHandle,
    stream: StreamRef,
    event: Option<Event>,
    is_running: bool,
}

impl<'a> Copying<'a> {
    fn new(driver: &'a DriverHandle) -> Result<Self> {
        let stream = call(&**driver, |driver| driver.stream_create(StreamFlags::NON_BLOCKING))?;
        Ok(Self { driver, stream, event: None, is_running: false })
    }

    /// Orders the copy after the work of the stream that the block is for, because that stream may have used
    /// the block.
    fn after(&mut self, owner: StreamRef) -> Result<()> {
        let event = call(&**self.driver, |driver| driver.event_create(EventFlags::default()))?;
        self.event = Some(event);
        call(&**self.driver, |driver| {
            driver.event_record(event, owner)?;
            driver.stream_wait_event(self.stream, event)
        })
    }

    fn run(&mut self, from: DeviceId, memory: &MemoryPointer, copy: &MemoryPointer) -> Result<()> {
        let (to, source, bytes) = (copy.device_pointer(), memory.device_pointer(), memory.bytes());
        self.is_running = true;
        call(&**self.driver, |driver| {
            // SAFETY: both blocks have that many bytes and live until this value is dropped, which waits. The
            // contents are complete, as the other process guarantees. The block is for this stream, or this
            // stream comes after the work of the block's stream.
            unsafe {
                if from == driver.device() {
                    driver.memcpy_dtod_async(to, source, bytes, self.stream)?;
                } else {
                    driver.memcpy_peer_async(to, source, from, bytes, self.stream)?;
                }
            }
            driver.stream_synchronize(self.stream)
        })?;
        self.is_running = false;
        Ok(())
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        let driver = &**self.driver;
        if self.is_running
            && let Err(error) = call(driver, |driver| driver.stream_synchronize(self.stream))
        {
            tracing::warn!(target: "millpond::plugin", %error, "could not wait for a copy of shared memory");
        }
        if let Some(event) = self.event {
            // SAFETY: the event is this value's own.
            let _ = call(driver, |driver| unsafe { driver.event_destroy(event) });
        }
        // SAFETY: the stream is this value's own.
        let _ = call(driver, |driver| unsafe { driver.stream_destroy(self.stream) });
    }
}
