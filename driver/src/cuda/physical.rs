//! Gives other devices and other processes access to physical memory.

use std::ffi::c_void;
#[cfg(unix)]
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use millpond_core::driver::{AccessFlags, DriverResult, PhysicalHandle};
use millpond_core::{DeviceId, DevicePtr};
use smallvec::SmallVec;

use super::CudaDriver;
use super::abi::{self, AccessDesc, Location};

impl CudaDriver {
    /// See [`Driver::mem_set_access`](millpond_core::Driver::mem_set_access).
    ///
    /// # Safety
    /// As for [`Driver::mem_set_access`](millpond_core::Driver::mem_set_access).
    pub(super) unsafe fn set_access(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        access: AccessFlags,
        devices: &[DeviceId],
    ) -> DriverResult<()> {
        let _context = self.enter()?;
        let flags = abi::access_flags(access);
        let describe = |device: &DeviceId| {
            let location = Location::device(self.device_number(*device, "cuMemSetAccess")?);
            Ok(AccessDesc { location, flags })
        };
        let access: SmallVec<[AccessDesc; 8]> = devices.iter().map(describe).collect::<DriverResult<_>>()?;
        let count = access.len() as u64;
        // SAFETY: the caller vouches for the range; `access` has that many descriptions and lives through the
        // call.
        unsafe { self.functions().mem_set_access(ptr.address(), bytes, access.as_ptr(), count) }
    }

    /// See [`Driver::mem_export_to_fd`](millpond_core::Driver::mem_export_to_fd).
    pub(super) fn export_to_fd(&self, handle: PhysicalHandle) -> DriverResult<i32> {
        let _context = self.enter()?;
        let (mut fd, kind) = (-1_i32, abi::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        // SAFETY: a file descriptor is an `int`, which `fd` takes. Only unsafe code could have ended the
        // handle.
        unsafe { self.functions().mem_export_to_shareable_handle((&raw mut fd).cast(), handle.0, kind, 0) }?;
        Ok(fd)
    }

    /// See [`Driver::mem_import_from_fd`](millpond_core::Driver::mem_import_from_fd).
    pub(super) fn import_from_fd(&self, fd: i32) -> DriverResult<PhysicalHandle> {
        let _context = self.enter()?;
        let kind = abi::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut handle = 0;
        // SAFETY: `handle` takes the result; the driver refuses a descriptor that it did not export.
        with_os_handle(fd, |os_handle| unsafe {
            self.functions().mem_import_from_shareable_handle(&raw mut handle, os_handle, kind)
        })?;
        Ok(PhysicalHandle(handle))
    }
}

/// Passes a file descriptor the way CUDA takes it: as a pointer. CUDA refuses a null pointer, so descriptor 0
/// is duplicated first.
pub(super) fn with_os_handle<T>(
    fd: i32,
    import: impl FnOnce(*mut c_void) -> DriverResult<T>,
) -> DriverResult<T> {
    #[cfg(unix)]
    if fd == 0 {
        // SAFETY: the descriptor is open; otherwise the copy fails.
        let copy = unsafe { BorrowedFd::borrow_raw(0) }.try_clone_to_owned();
        if let Ok(copy) = copy {
            return import(ptr::without_provenance_mut(copy.as_raw_fd() as usize));
        }
    }
    import(ptr::without_provenance_mut(fd as usize))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn no_descriptor_is_a_null_pointer() {
        for fd in [0, 1, 7] {
            let passed = with_os_handle(fd, |os_handle| Ok(os_handle.addr())).unwrap();
            assert!(passed > 0 && (fd == 0 || passed == fd as usize), "{fd} is passed as {passed}");
        }
    }
}
