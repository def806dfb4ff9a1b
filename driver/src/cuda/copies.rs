//! Copies between the host and a device's memory.
//!
//! CUDA counts the memory of a pool on the host as host memory. `cuMemcpyHtoDAsync` and `cuMemcpyDtoHAsync`
//! refuse it with [`INVALID_VALUE`](DriverError::INVALID_VALUE), unlike pinned memory (an H100 and an H200,
//! driver 580.159, 2026-11-27). `cuMemcpyAsync` finds out where an address lies, so it gets the copies that
//! these refuse.

use millpond_core::driver::DriverResult;
use millpond_core::{DevicePtr, DriverError, StreamRef};

use super::CudaDriver;

impl CudaDriver {
    /// Copies bytes from the host.
    ///
    /// # Safety
    /// As for `Driver::memcpy_htod_async`.
    pub(super) unsafe fn copy_from_host(
        &self,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let _context = self.enter()?;
        let (functions, stream) = (self.functions(), stream.handle());
        // SAFETY: the caller vouched for the arguments.
        let refused = match unsafe { functions.memcpy_htod_async(dst.address(), src.cast(), bytes, stream) } {
            Err(error) if error.code() == DriverError::INVALID_VALUE => error,
            done => return done,
        };
        // SAFETY: as above. The driver reads the host's memory at the same address.
        unsafe { functions.memcpy_async(dst.address(), src.expose_provenance() as u64, bytes, stream) }
            .map_err(|_| refused)
    }

    /// Copies bytes to the host.
    ///
    /// # Safety
    /// As for `Driver::memcpy_dtoh_async`.
    pub(super) unsafe fn copy_to_host(
        &self,
        dst: *mut u8,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let _context = self.enter()?;
        let (functions, stream) = (self.functions(), stream.handle());
        // SAFETY: the caller vouched for the arguments.
        let refused = match unsafe { functions.memcpy_dtoh_async(dst.cast(), src.address(), bytes, stream) } {
            Err(error) if error.code() == DriverError::INVALID_VALUE => error,
            done => return done,
        };
        // SAFETY: as above. The driver writes the host's memory at the same address.
        unsafe { functions.memcpy_async(dst.expose_provenance() as u64, src.address(), bytes, stream) }
            .map_err(|_| refused)
    }
}
