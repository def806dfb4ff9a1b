//! Copies between the host and a device's memory, and within the memory of devices.
//!
//! CUDA counts the memory of a pool on the host as host memory. The calls that name the kinds of memory, such
//! as `cuMemcpyHtoDAsync` and `cuMemcpyDtoDAsync`, refuse it with
//! [`INVALID_VALUE`](DriverError::INVALID_VALUE), unlike pinned memory (an H100 and an H200, driver 580.159,
//! 2026-11-27). `cuMemcpyAsync` finds out where an address lies, so it gets the copies that these refuse.

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
        let (functions, dst, stream) = (self.functions(), dst.address(), stream.handle());
        // SAFETY: the caller vouched for the arguments. The driver reads the host's memory at its address.
        unsafe {
            functions
                .memcpy_htod_async(dst, src.cast(), bytes, stream)
                .or_else(|error| self.copy_anyway(error, dst, src.expose_provenance() as u64, bytes, stream))
        }
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
        let (functions, src, stream) = (self.functions(), src.address(), stream.handle());
        // SAFETY: the caller vouched for the arguments. The driver writes the host's memory at its address.
        unsafe {
            functions
                .memcpy_dtoh_async(dst.cast(), src, bytes, stream)
                .or_else(|error| self.copy_anyway(error, dst.expose_provenance() as u64, src, bytes, stream))
        }
    }

    /// Copies bytes within the memory of devices.
    ///
    /// # Safety
    /// As for `Driver::memcpy_dtod_async`.
    pub(super) unsafe fn copy_on_device(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        let _context = self.enter()?;
        let (dst, src, stream) = (dst.address(), src.address(), stream.handle());
        // SAFETY: the caller vouched for the arguments.
        unsafe {
            self.functions()
                .memcpy_dtod_async(dst, src, bytes, stream)
                .or_else(|error| self.copy_anyway(error, dst, src, bytes, stream))
        }
    }

    /// Copies what another call refused with `error` as invalid. Returns this error if the driver refuses the
    /// copy again, or refused it for another reason.
    ///
    /// # Safety
    /// As for a copy of these bytes on the stream.
    pub(super) unsafe fn copy_anyway(
        &self,
        error: DriverError,
        dst: u64,
        src: u64,
        bytes: u64,
        stream: u64,
    ) -> DriverResult<()> {
        if error.code() != DriverError::INVALID_VALUE {
            return Err(error);
        }
        // SAFETY: the caller vouched for the arguments.
        unsafe { self.functions().memcpy_async(dst, src, bytes, stream) }.map_err(|_| error)
    }
}
