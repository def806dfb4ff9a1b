//! Finds the other devices that can use this one's memory.

use millpond_core::driver::{DriverError, DriverResult};
use millpond_core::{DeviceId, DevicePtr, StreamRef};

use super::{CudaDriver, library};

impl CudaDriver {
    /// CUDA's number of a device.
    pub(super) fn device_number(&self, device: DeviceId, call: &'static str) -> DriverResult<i32> {
        if device == DeviceId::cuda(self.ordinal) {
            return Ok(self.device);
        }
        let ordinal = i32::try_from(device.ordinal()).ok().filter(|_| device.is_cuda());
        let invalid = || {
            let detail = format!("{device} is not a CUDA device of this machine");
            DriverError::new(DriverError::INVALID_DEVICE, call).with_detail(detail)
        };
        let mut number = 0;
        // SAFETY: `number` takes the result; the driver checks the ordinal.
        unsafe { self.functions().device_get(&raw mut number, ordinal.ok_or_else(invalid)?) }?;
        Ok(number)
    }

    /// The other devices that can use this device's memory, with the driver's numbers, in order. They are
    /// queried once, because the machine does not change.
    pub(super) fn reachable_by(&self) -> DriverResult<&[(DeviceId, i32)]> {
        if let Some(known) = self.reachable_by.get() {
            return Ok(known);
        }
        let count = library::cuda().map_or(0, |cuda| cuda.device_count);
        let mut found = Vec::new();
        for ordinal in (0..count).filter(|ordinal| *ordinal != self.ordinal) {
            let id = DeviceId::cuda(ordinal);
            let (peer, mut can) = (self.device_number(id, "cuDeviceCanAccessPeer")?, 0);
            // SAFETY: `can` takes the result, and the driver gave both devices.
            unsafe { self.functions().device_can_access_peer(&raw mut can, peer, self.device) }?;
            if can != 0 {
                found.push((id, peer));
            }
        }
        Ok(self.reachable_by.get_or_init(|| found))
    }

    /// [`Driver::memcpy_peer_async`](millpond_core::Driver::memcpy_peer_async).
    ///
    /// # Safety
    /// As for the method.
    pub(super) unsafe fn copy_from_peer(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        src_device: DeviceId,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        const CALL: &str = "cuMemcpyPeerAsync";
        self.device_number(src_device, CALL)?;
        let source = Self::open(src_device.ordinal()).map_err(|error| match error.driver_error() {
            Some(error) => error.clone(),
            None => DriverError::new(DriverError::INVALID_DEVICE, CALL).with_detail(error.to_string()),
        })?;
        let (to, from) = (self.context.get()?.handle(), source.context.get()?.handle());
        let _context = self.enter()?;
        let (dst, src, stream) = (dst.address(), src.address(), stream.handle());
        // SAFETY: the caller vouches for both ranges and the stream; the contexts are retained for the life
        // of the process.
        unsafe {
            self.functions()
                .memcpy_peer_async(dst, to, src, from, bytes, stream)
                .or_else(|error| self.copy_anyway(error, dst, src, bytes, stream))
        }
    }

    /// Whether a device's primary context is active.
    pub(super) fn is_active(&self, device: i32) -> bool {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both take results, and the driver gave `device`.
        let state =
            unsafe { self.functions().device_primary_ctx_get_state(device, &raw mut flags, &raw mut active) };
        state.is_ok() && active != 0
    }
}
