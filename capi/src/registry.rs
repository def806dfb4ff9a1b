//! The default resource of each device.

use std::ptr::null_mut;

use millpond_resources::registry;

use crate::device::Device;
use crate::framework::forget_served;
use crate::resource::Resource;
use crate::status::{Status, borrowed, guarded_here, put, put_handle};

/// Writes the default resource of a device. If no default was set, this is the stack whose text is in the
/// environment variable `MILLPOND_STACK`, or else plain CUDA memory.
///
/// # Safety
/// `device` is a handle from this library; `resource` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_get_per_device_resource(
    device: *const Device,
    resource: *mut *mut Resource,
) -> Status {
    guarded_here(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { borrowed(device, "the device") }?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(resource, Resource::new(registry::get_per_device_resource(device.0.device())?)) }
    })
}

/// Writes the default resource of the calling thread's current device (see `millpond_device_current`).
///
/// # Safety
/// `resource` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_get_current_device_resource(resource: *mut *mut Resource) -> Status {
    // SAFETY: the caller's promise.
    guarded_here(|| unsafe { put_handle(resource, Resource::new(registry::get_current_device_resource()?)) })
}

/// Makes a resource the default of its device. Writes the previous default to `previous`, unless `previous`
/// is null. If the device had no default yet, writes null. Blocks from the previous default still return to
/// it.
///
/// # Safety
/// `resource` is a handle from this library, and the caller still owns it; `previous` is null or valid for
/// writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_set_per_device_resource(
    resource: *const Resource,
    previous: *mut *mut Resource,
) -> Status {
    guarded_here(|| {
        // SAFETY: the caller's promise.
        let resource = unsafe { borrowed(resource, "the resource") }?;
        let device = resource.0.driver().device();
        let before = registry::replace_per_device_resource(device, resource.0.clone())?;
        forget_served(device);
        match before {
            _ if previous.is_null() => Ok(()),
            // SAFETY: the caller's promise.
            Some(before) => unsafe { put_handle(previous, Resource::new(before)) },
            // SAFETY: the caller's promise.
            None => unsafe { put(previous, null_mut()) },
        }
    })
}

/// Restores the initial default resource of a device.
///
/// # Safety
/// `device` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_reset_per_device_resource(device: *const Device) -> Status {
    guarded_here(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { borrowed(device, "the device") }?;
        let before = registry::reset_per_device_resource(device.0.device())?;
        forget_served(device.0.device());
        drop(before);
        Ok(())
    })
}
