//! Shared memory for a device that cannot use it where it is: a copy.

use millpond_core::driver::{CaptureModeGuard, call};
use millpond_core::{DeviceId, DriverHandle, Result, StreamRef};

use crate::{IpcHandle, MemoryManager, MemoryPointer};

impl IpcHandle {
    /// Whether `driver`'s device can use the memory where it is, which [`open`](Self::open) needs: `source`
    /// is the driver of the memory's own device in this process. If not,
    /// [`open_staged`](Self::open_staged) copies it.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn can_access_peer(source: &DriverHandle, driver: &DriverHandle) -> Result<bool> {
        let peer = driver.device();
        if source.device() == peer {
            return Ok(true);
        }
        call(&**source, |source| source.can_be_accessed_by(peer))
    }

    /// Copies the memory to another device: into memory of `manager`, which is `driver`'s, by way of
    /// `source`, the driver of the memory's own device in this process. The mapping ends before this returns;
    /// the copy is the caller's, and the sharing process keeps its memory.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and of [`MemoryManager::memalloc`], and those of the driver.
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

/// Copies memory of another device, and waits for it.
fn copy_to(
    driver: &DriverHandle,
    manager: &dyn MemoryManager,
    from: DeviceId,
    memory: &MemoryPointer,
) -> Result<MemoryPointer> {
    let copy = manager.memalloc(memory.bytes())?;
    if copy.bytes() == 0 {
        return Ok(copy);
    }
    let _captures = CaptureModeGuard::relaxed(&**driver);
    let (to, source, bytes, stream) =
        (copy.device_pointer(), memory.device_pointer(), memory.bytes(), StreamRef::LEGACY);
    call(&**driver, |driver| {
        // SAFETY: both blocks have that many bytes and live until the copy is done, just below; the contents
        // are complete, as the other process vouches. The copy's memory is for the legacy default stream.
        unsafe {
            if from == driver.device() {
                driver.memcpy_dtod_async(to, source, bytes, stream)?;
            } else {
                driver.memcpy_peer_async(to, source, from, bytes, stream)?;
            }
        }
        driver.stream_synchronize(stream)
    })?;
    Ok(copy)
}
