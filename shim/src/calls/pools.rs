//! Stream-ordered memory and its pools.

use std::ffi::{c_int, c_void};

use millpond_core::driver::{
    AccessFlags, AccessLocation, DriverResult, GraphMemAttribute, HandleTypes, MemAllocationType,
    MemLocation, MemPool, MemPoolAttribute, MemPoolProps,
};
use millpond_core::{Driver, DriverError};

use super::{Api, Driving, Handle, allocate, device_ptr, for_each_access, handle, only, stream};
use crate::abi::{AccessDesc, Location, PoolProps};
use crate::error::refusal;

fn invalid_value() -> DriverError {
    refusal(DriverError::INVALID_VALUE)
}

pub(super) fn pool(of: Handle) -> MemPool {
    MemPool(of.addr() as u64)
}

pub(crate) unsafe extern "C" fn alloc<A: Api>(ptr: *mut *mut c_void, bytes: usize, on: Handle) -> c_int {
    let alloc = |driver: &dyn Driver, bytes| driver.mem_alloc_async(bytes, stream::<A>(driver, on)?);
    // SAFETY: CUDA's contract for the arguments.
    unsafe { allocate::<A>(ptr, bytes, true, alloc) }
}

pub(crate) unsafe extern "C" fn alloc_from<A: Api>(
    ptr: *mut *mut c_void,
    bytes: usize,
    from: Handle,
    on: Handle,
) -> c_int {
    let alloc = |driver: &dyn Driver, bytes| {
        driver.mem_alloc_from_pool_async(bytes, pool(from), stream::<A>(driver, on)?)
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { allocate::<A>(ptr, bytes, true, alloc) }
}

pub(crate) unsafe extern "C" fn free<A: Api>(ptr: *mut c_void, on: Handle) -> c_int {
    A::run(|driver| {
        let stream = stream::<A>(driver, on)?;
        if ptr.is_null() {
            return Ok(());
        }
        // SAFETY: the caller of CUDA gives up the block in the order of the stream.
        unsafe { driver.mem_free_async(device_ptr(ptr), stream) }
    })
}

fn kind(number: c_int) -> DriverResult<MemAllocationType> {
    match number {
        1 => Ok(MemAllocationType::Pinned),
        2 => Ok(MemAllocationType::Managed),
        _ => Err(invalid_value()),
    }
}

fn location(wanted: Location) -> DriverResult<MemLocation> {
    let found = MemLocation::from_cuda(wanted.kind as u64, wanted.id as u64).ok_or_else(invalid_value)?;
    if found == MemLocation::Device {
        only(wanted.id, DriverError::INVALID_DEVICE)?;
    }
    Ok(found)
}

/// `CU_MEM_CREATE_USAGE_HW_DECOMPRESS` of a pool.
const HW_DECOMPRESS: u16 = 2;

impl PoolProps {
    fn wanted(&self) -> DriverResult<MemPoolProps> {
        let handles = HandleTypes::from_bits(self.handles as u32);
        let props = MemPoolProps::default().kind(kind(self.kind)?).location(location(self.location)?);
        let props = props.handles(handles).max_bytes(self.max_bytes as u64);
        Ok(props.hw_decompress(self.usage & HW_DECOMPRESS != 0))
    }
}

pub(crate) unsafe extern "C" fn create<A: Api>(created: *mut Handle, props: *const PoolProps) -> c_int {
    let create = |driver: &dyn Driver| {
        // SAFETY: the caller passes null or `CUmemPoolProps`, which begins with these fields.
        let props = unsafe { props.as_ref() }.ok_or_else(invalid_value)?;
        Ok(handle(driver.mem_pool_create(props.wanted()?)?.0))
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer_of(0, created, create) }
}

pub(crate) unsafe extern "C" fn destroy<A: Api>(destroyed: Handle) -> c_int {
    // SAFETY: the caller of CUDA does not use the pool again.
    A::run_of(0, |driver| unsafe { driver.mem_pool_destroy(pool(destroyed)) })
}

pub(crate) unsafe extern "C" fn trim_to<A: Api>(of: Handle, keep_bytes: usize) -> c_int {
    A::run_of(0, |driver| driver.mem_pool_trim_to(pool(of), keep_bytes as u64))
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
        9 => (MemPoolAttribute::AllocationType, true),
        10 => (MemPoolAttribute::ExportHandleTypes, true),
        11 => (MemPoolAttribute::LocationId, true),
        12 => (MemPoolAttribute::LocationType, true),
        13 => (MemPoolAttribute::MaxPoolSize, false),
        14 => (MemPoolAttribute::HwDecompressEnabled, true),
        _ => return None,
    })
}

pub(crate) unsafe extern "C" fn set_attribute<A: Api>(
    of: Handle,
    number: c_int,
    value: *mut c_void,
) -> c_int {
    A::run_of(0, |driver| {
        let (attribute, is_int) = attribute(number).filter(|_| !value.is_null()).ok_or_else(invalid_value)?;
        // SAFETY: the value is not null, and the caller passes the attribute's type.
        let value =
            unsafe { if is_int { value.cast::<c_int>().read() as u64 } else { value.cast::<u64>().read() } };
        driver.mem_pool_set_attribute(pool(of), attribute, value)
    })
}

pub(crate) unsafe extern "C" fn get_attribute<A: Api>(
    of: Handle,
    number: c_int,
    value: *mut c_void,
) -> c_int {
    A::run_of(0, |driver| {
        let (attribute, is_int) = attribute(number).filter(|_| !value.is_null()).ok_or_else(invalid_value)?;
        let found = driver.mem_pool_get_attribute(pool(of), attribute)?;
        // SAFETY: the place is not null, and the caller passes the attribute's type.
        unsafe {
            if is_int {
                value.cast::<c_int>().write(found as c_int)
            } else {
                value.cast::<u64>().write(found)
            }
        }
        Ok(())
    })
}

/// The count with CUDA's number.
fn graph_count(number: c_int) -> Option<GraphMemAttribute> {
    Some(match number {
        0 => GraphMemAttribute::UsedMemCurrent,
        1 => GraphMemAttribute::UsedMemHigh,
        2 => GraphMemAttribute::ReservedMemCurrent,
        3 => GraphMemAttribute::ReservedMemHigh,
        _ => return None,
    })
}

pub(crate) unsafe extern "C" fn get_graph_memory<A: Api>(
    device: c_int,
    number: c_int,
    value: *mut c_void,
) -> c_int {
    A::run_of(device, |driver| {
        let count = graph_count(number).filter(|_| !value.is_null()).ok_or_else(invalid_value)?;
        let found = driver.device_get_graph_mem_attribute(count)?;
        // SAFETY: the place is not null, and the value has 64 bits.
        unsafe { value.cast::<u64>().write(found) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn set_graph_memory<A: Api>(
    device: c_int,
    number: c_int,
    value: *mut c_void,
) -> c_int {
    A::run_of(device, |driver| {
        let count = graph_count(number).filter(|_| !value.is_null()).ok_or_else(invalid_value)?;
        // SAFETY: the value is not null, and has 64 bits.
        match unsafe { value.cast::<u64>().read() } {
            0 => driver.device_reset_graph_mem_attribute(count),
            _ => Err(invalid_value()),
        }
    })
}

pub(crate) unsafe extern "C" fn trim_graph_memory<A: Api>(device: c_int) -> c_int {
    A::run_of(device, |driver| driver.device_graph_mem_trim())
}

/// Finds a pool of a device. `code` is CUDA's for a wrong device, as a GPU returned it.
///
/// # Safety
/// As for [`Api::answer`].
unsafe fn find<A: Api>(
    found: *mut Handle,
    (device, code): (c_int, i32),
    call: impl FnOnce(&dyn Driver) -> DriverResult<MemPool>,
) -> c_int {
    let find = |driver: &dyn Driver| {
        only(device, code)?;
        Ok(handle(call(driver)?.0))
    };
    // SAFETY: the caller's promise.
    unsafe { A::answer_of(0, found, find) }
}

pub(crate) unsafe extern "C" fn get_default<A: Api>(found: *mut Handle, device: c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe {
        find::<A>(found, (device, DriverError::INVALID_DEVICE), |driver| driver.device_get_default_mem_pool())
    }
}

pub(crate) unsafe extern "C" fn get_of_device<A: Api>(found: *mut Handle, device: c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe { find::<A>(found, (device, DriverError::INVALID_VALUE), |driver| driver.device_get_mem_pool()) }
}

pub(crate) unsafe extern "C" fn set_of_device<A: Api>(device: c_int, current: Handle) -> c_int {
    A::run_of(0, |driver| {
        only(device, DriverError::INVALID_VALUE)?;
        driver.device_set_mem_pool(pool(current))
    })
}

/// The location and the kind of memory that the caller names.
///
/// # Safety
/// `wanted` is null or points to a location.
unsafe fn named(wanted: *const Location, number: c_int) -> DriverResult<(MemLocation, MemAllocationType)> {
    // SAFETY: the caller's promise.
    let wanted = unsafe { wanted.as_ref() }.ok_or_else(invalid_value)?;
    Ok((location(*wanted)?, kind(number)?))
}

pub(crate) unsafe extern "C" fn get_default_at(
    found: *mut Handle,
    wanted: *const Location,
    number: c_int,
) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe {
        Driving::answer_of(0, found, |driver| {
            let (location, kind) = named(wanted, number)?;
            Ok(handle(driver.mem_get_default_mem_pool(location, kind)?.0))
        })
    }
}

pub(crate) unsafe extern "C" fn get_at(found: *mut Handle, wanted: *const Location, number: c_int) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    unsafe {
        Driving::answer_of(0, found, |driver| {
            let (location, kind) = named(wanted, number)?;
            Ok(handle(driver.mem_get_mem_pool(location, kind)?.0))
        })
    }
}

pub(crate) unsafe extern "C" fn set_at(wanted: *const Location, number: c_int, current: Handle) -> c_int {
    Driving::run_of(0, |driver| {
        // SAFETY: CUDA's contract for the arguments.
        let (location, kind) = unsafe { named(wanted, number) }?;
        driver.mem_set_mem_pool(location, kind, pool(current))
    })
}

/// The place that accesses a pool.
fn access_from(driver: &dyn Driver, wanted: Location) -> DriverResult<AccessLocation> {
    Ok(match location(wanted)? {
        MemLocation::Device => driver.device().into(),
        MemLocation::Host => AccessLocation::Host,
        MemLocation::HostNuma(node) => AccessLocation::HostNuma(node),
        MemLocation::HostNumaCurrent => AccessLocation::HostNumaCurrent,
    })
}

pub(crate) unsafe extern "C" fn set_access<A: Api>(
    of: Handle,
    access: *const AccessDesc,
    count: usize,
) -> c_int {
    // SAFETY: CUDA's contract for the arguments.
    A::run_of(0, |driver| unsafe {
        for_each_access((access, count), |flags, at| {
            driver.mem_pool_set_access(pool(of), flags, &[access_from(driver, at)?])
        })
    })
}

pub(crate) unsafe extern "C" fn get_access<A: Api>(
    flags: *mut c_int,
    of: Handle,
    wanted: *const Location,
) -> c_int {
    let find = |driver: &dyn Driver| {
        // SAFETY: CUDA's contract for the arguments.
        let wanted = unsafe { wanted.as_ref() }.ok_or_else(invalid_value)?;
        Ok(match driver.mem_pool_get_access(pool(of), access_from(driver, *wanted)?)? {
            AccessFlags::None => 0,
            AccessFlags::Read => 1,
            AccessFlags::ReadWrite => 3,
        })
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer_of(0, flags, find) }
}
