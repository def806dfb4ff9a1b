//! Stream-ordered memory and its pools.

use std::ffi::{c_int, c_void};

use millpond_core::driver::{
    DriverResult, HandleTypes, MemAllocationType, MemLocation, MemPool, MemPoolAttribute, MemPoolProps,
};

use super::{Handle, allocated, device_ptr, handle, stream};
use crate::current::driver;
use crate::error::{code, invalid_value, place};

/// Refuses a device other than the thread's only one, with the code that CUDA has for pools.
fn only(device: c_int, call: &'static str) -> DriverResult<()> {
    if device == 0 { Ok(()) } else { Err(invalid_value(call)) }
}

fn pool(of: Handle) -> MemPool {
    MemPool(of.addr() as u64)
}

pub(crate) unsafe extern "C" fn cudaMallocAsync(ptr: *mut *mut c_void, bytes: usize, on: Handle) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let ptr = unsafe { place(ptr, "cudaMallocAsync") };
    code(ptr.and_then(|ptr| {
        let driver = driver()?;
        let stream = stream(&*driver, on)?;
        allocated(ptr, bytes, |bytes| driver.mem_alloc_async(bytes, stream))
    }))
}

pub(crate) unsafe extern "C" fn cudaMallocFromPoolAsync(
    ptr: *mut *mut c_void,
    bytes: usize,
    from: Handle,
    on: Handle,
) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let ptr = unsafe { place(ptr, "cudaMallocFromPoolAsync") };
    code(ptr.and_then(|ptr| {
        let driver = driver()?;
        let stream = stream(&*driver, on)?;
        allocated(ptr, bytes, |bytes| driver.mem_alloc_from_pool_async(bytes, pool(from), stream))
    }))
}

pub(crate) unsafe extern "C" fn cudaFreeAsync(ptr: *mut c_void, on: Handle) -> c_int {
    code(driver().and_then(|driver| {
        let stream = stream(&*driver, on)?;
        if ptr.is_null() {
            return Ok(());
        }
        // SAFETY: the caller of CUDA gives up the block in the order of the stream.
        unsafe { driver.mem_free_async(device_ptr(ptr), stream) }
    }))
}

/// The first fields of `cudaMemPoolProps`.
#[repr(C)]
struct Props {
    kind: c_int,
    handles: c_int,
    location: [c_int; 2],
    security: *mut c_void,
    max_bytes: usize,
}

impl Props {
    fn wanted(&self) -> DriverResult<MemPoolProps> {
        let [place, id] = self.location;
        let kind = match self.kind {
            1 => MemAllocationType::Pinned,
            2 => MemAllocationType::Managed,
            _ => return Err(invalid_value("cudaMemPoolCreate")),
        };
        let location = MemLocation::from_cuda(place as u64, id as u64);
        let location = location.ok_or_else(|| invalid_value("cudaMemPoolCreate"))?;
        let handles = HandleTypes::from_bits(self.handles as u32);
        let props = MemPoolProps::default().kind(kind).location(location).handles(handles);
        Ok(props.max_bytes(self.max_bytes as u64))
    }
}

pub(crate) unsafe extern "C" fn cudaMemPoolCreate(created: *mut Handle, props: *const c_void) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let created = unsafe { place(created, "cudaMemPoolCreate") };
    code(created.and_then(|created| {
        // SAFETY: the caller passes null or `cudaMemPoolProps`, which begins with these fields.
        let props = unsafe { props.cast::<Props>().as_ref() };
        let wanted = props.ok_or_else(|| invalid_value("cudaMemPoolCreate"))?.wanted()?;
        created.write(handle(driver()?.mem_pool_create(wanted)?.0));
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaMemPoolDestroy(destroyed: Handle) -> c_int {
    // SAFETY: the caller of CUDA does not use the pool again.
    code(driver().and_then(|driver| unsafe { driver.mem_pool_destroy(pool(destroyed)) }))
}

pub(crate) unsafe extern "C" fn cudaMemPoolTrimTo(of: Handle, keep_bytes: usize) -> c_int {
    code(driver().and_then(|driver| driver.mem_pool_trim_to(pool(of), keep_bytes as u64)))
}

/// The attribute with CUDA's number, and whether its value is an `int`; the others are 64 bits.
fn attribute(number: c_int) -> Option<(MemPoolAttribute, bool)> {
    Some(match number {
        1 => (MemPoolAttribute::ReuseFollowEventDependencies, true),
        2 => (MemPoolAttribute::ReuseAllowOpportunistic, true),
        3 => (MemPoolAttribute::ReuseAllowInternalDependencies, true),
        4 => (MemPoolAttribute::ReleaseThreshold, false),
        5 => (MemPoolAttribute::ReservedMemCurrent, false),
        6 => (MemPoolAttribute::ReservedMemHigh, false),
        7 => (MemPoolAttribute::UsedMemCurrent, false),
        8 => (MemPoolAttribute::UsedMemHigh, false),
        _ => return None,
    })
}

pub(crate) unsafe extern "C" fn cudaMemPoolSetAttribute(
    of: Handle,
    number: c_int,
    value: *mut c_void,
) -> c_int {
    let call = "cudaMemPoolSetAttribute";
    let known = attribute(number).filter(|_| !value.is_null()).ok_or_else(|| invalid_value(call));
    code(known.and_then(|(attribute, is_int)| {
        // SAFETY: the value is not null, and the caller passes the attribute's type.
        let value =
            unsafe { if is_int { value.cast::<c_int>().read() as u64 } else { value.cast::<u64>().read() } };
        driver()?.mem_pool_set_attribute(pool(of), attribute, value)
    }))
}

pub(crate) unsafe extern "C" fn cudaMemPoolGetAttribute(
    of: Handle,
    number: c_int,
    value: *mut c_void,
) -> c_int {
    let call = "cudaMemPoolGetAttribute";
    let known = attribute(number).filter(|_| !value.is_null()).ok_or_else(|| invalid_value(call));
    code(known.and_then(|(attribute, is_int)| {
        let found = driver()?.mem_pool_get_attribute(pool(of), attribute)?;
        // SAFETY: the place is not null, and the caller passes the attribute's type.
        unsafe {
            if is_int {
                value.cast::<c_int>().write(found as c_int)
            } else {
                value.cast::<u64>().write(found)
            }
        }
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaDeviceGetDefaultMemPool(found: *mut Handle, device: c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let found = unsafe { place(found, "cudaDeviceGetDefaultMemPool") };
    code(found.and_then(|found| {
        only(device, "cudaDeviceGetDefaultMemPool")?;
        found.write(handle(driver()?.device_get_default_mem_pool()?.0));
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaDeviceGetMemPool(found: *mut Handle, device: c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    let found = unsafe { place(found, "cudaDeviceGetMemPool") };
    code(found.and_then(|found| {
        only(device, "cudaDeviceGetMemPool")?;
        found.write(handle(driver()?.device_get_mem_pool()?.0));
        Ok(())
    }))
}

pub(crate) unsafe extern "C" fn cudaDeviceSetMemPool(device: c_int, current: Handle) -> c_int {
    let set = only(device, "cudaDeviceSetMemPool").and_then(|()| driver());
    code(set.and_then(|driver| driver.device_set_mem_pool(pool(current))))
}
