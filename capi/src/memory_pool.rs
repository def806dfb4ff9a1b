//! The driver's pools (`CUmemoryPool`): make them, read and set their attributes, and allocate from them.

use std::ffi::c_void;
use std::ptr::without_provenance_mut;

use millpond_core::driver::{
    AccessFlags, AccessLocation, HandleTypes, MemAllocationType, MemLocation, MemPool, MemPoolProps,
};
use millpond_core::{DeviceMemoryResourceExt, Error, Result, find_trait};
use millpond_resources::CudaAsyncViewMemoryResource;
use millpond_resources::memory_pool::{self, DriverPool, GraphMemory, MemoryPoolOptions, PoolReuse};

use crate::device::{Device, with_device};
use crate::layers::lacks;
use crate::resource::{Resource, with_resource};
use crate::status::{Status, borrowed, end, guarded_here, guarded_or, put, put_handle};

/// A pool of the driver. If this library made the pool, it destroys the pool when the last handle, resource
/// and imported block over the pool are freed, and the pool is not current. Blocks that are live then stay
/// valid until they are freed. Other pools belong to the driver, or to the library that made them.
#[derive(Debug)]
pub struct MemoryPool(pub(crate) memory_pool::MemoryPool);

/// The properties of a pool, with CUDA's numbers (`CUmemPoolProps`). A structure of zeros describes a pool of
/// device memory without a limit, which other processes cannot import.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "the C interface fixes it")]
pub struct MemoryPoolProperties {
    /// The location of the memory (`CUmemLocationType`): 0 or 1 is the device; 2 is the host, and 3 is one
    /// NUMA node of the host.
    pub location_type: u32,
    /// The NUMA node. The other locations ignore it.
    pub location_id: i32,
    /// The types of handles with which other processes can import the pool (`CUmemAllocationHandleType`): 0
    /// for none, 1 for file descriptors, 8 for fabric handles, 9 for both.
    pub handle_types: u32,
    /// Whether the memory is managed, so that host and device share it.
    pub is_managed: bool,
    /// Whether the device's decompression engine can use the memory.
    pub hw_decompress: bool,
    /// The most bytes that the pool may hold. With 0, the system decides, as in CUDA: the pool may hold all
    /// memory of its location.
    pub max_bytes: u64,
}

/// An attribute of a pool, with CUDA's number (`CUmemPool_attribute`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_enums, reason = "the C interface fixes it")]
pub enum MemoryPoolAttribute {
    /// Whether the driver may reuse memory that another stream freed, if an event orders the free before the
    /// request (0 or 1).
    ReuseFollowEventDependencies = 1,
    /// Whether the driver may reuse memory that another stream freed, if the free is already done (0 or 1).
    ReuseAllowOpportunistic = 2,
    /// Whether the driver may make a stream wait for another one, to reuse its memory (0 or 1).
    ReuseAllowInternalDependencies = 3,
    /// How many bytes the pool may keep at a synchronisation.
    ReleaseThreshold = 4,
    /// The bytes that the pool holds; read-only.
    ReservedCurrent = 5,
    /// The highest number of bytes that the pool has held. Set it to 0 to restart it.
    ReservedHigh = 6,
    /// The bytes of the live blocks; read-only.
    UsedCurrent = 7,
    /// The highest number of bytes that were live. Set it to 0 to restart it.
    UsedHigh = 8,
}

use MemoryPoolAttribute as Attribute;

impl Attribute {
    /// Returns the attribute with CUDA's number. A C program may pass any number.
    fn of(number: u32) -> Result<Self> {
        use Attribute::{
            ReleaseThreshold, ReservedCurrent, ReservedHigh, ReuseAllowInternalDependencies,
            ReuseAllowOpportunistic, ReuseFollowEventDependencies, UsedCurrent, UsedHigh,
        };
        let all = [
            ReuseFollowEventDependencies,
            ReuseAllowOpportunistic,
            ReuseAllowInternalDependencies,
            ReleaseThreshold,
            ReservedCurrent,
            ReservedHigh,
            UsedCurrent,
            UsedHigh,
        ];
        let found = all.into_iter().find(|known| *known as u32 == number);
        found.ok_or_else(|| Error::invalid_argument(format!("a pool has no attribute {number}; pass 1 to 8")))
    }

    /// Returns the switch of a pool's ways of reuse that this attribute is.
    fn switch(self, reuse: &mut PoolReuse) -> Option<&mut bool> {
        match self {
            Self::ReuseFollowEventDependencies => Some(&mut reuse.follow_event_dependencies),
            Self::ReuseAllowOpportunistic => Some(&mut reuse.opportunistic),
            Self::ReuseAllowInternalDependencies => Some(&mut reuse.internal_dependencies),
            _ => None,
        }
    }
}

impl MemoryPoolProperties {
    fn options(self) -> Result<MemoryPoolOptions> {
        let options = MemoryPoolOptions::new()
            .location(location_of(self.location_type, self.location_id)?)
            .handles(HandleTypes::from_bits(self.handle_types))
            .max_bytes(self.max_bytes)
            .hw_decompress(self.hw_decompress);
        Ok(if self.is_managed { options.managed() } else { options })
    }

    fn of(props: MemPoolProps) -> Self {
        Self {
            location_type: props.location.cuda_type(),
            location_id: if let MemLocation::HostNuma(node) = props.location { node } else { 0 },
            handle_types: props.handles.bits(),
            is_managed: props.kind == MemAllocationType::Managed,
            hw_decompress: props.hw_decompress,
            max_bytes: props.max_bytes,
        }
    }
}

/// Returns the location with CUDA's numbers. Zeros are the device.
fn location_of(kind: u32, id: i32) -> Result<MemLocation> {
    let found = MemLocation::from_cuda(kind.max(1).into(), id.cast_unsigned().into());
    found.ok_or_else(|| {
        Error::invalid_argument(format!("there is no location of type {kind}; pass 1, 2, 3 or 4"))
    })
}

/// Returns the place of the host with CUDA's numbers, from which a pool is accessed.
fn host_of(kind: u32, id: i32) -> Result<AccessLocation> {
    Ok(match location_of(kind, id)? {
        MemLocation::Host => AccessLocation::Host,
        MemLocation::HostNuma(node) => AccessLocation::HostNuma(node),
        MemLocation::HostNumaCurrent => AccessLocation::HostNumaCurrent,
        MemLocation::Device => {
            let text = "the location is a device; pass a type of 2, 3 or 4, or call \
                        millpond_memory_pool_get_access or millpond_memory_pool_set_access";
            return Err(Error::invalid_argument(text));
        }
    })
}

pub(crate) fn with_pool(
    pool: *const MemoryPool,
    body: impl FnOnce(&memory_pool::MemoryPool) -> Result<()>,
) -> Status {
    // SAFETY: every caller passes its own caller's handle, as its rules require.
    guarded_here(|| body(&unsafe { borrowed(pool, "the pool") }?.0))
}

/// Makes a pool of a device.
///
/// # Safety
/// `device` is a handle from this library; `properties` can be read; `pool` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_new(
    device: *const Device,
    properties: *const MemoryPoolProperties,
    pool: *mut *mut MemoryPool,
) -> Status {
    with_device(device, |driver| {
        // SAFETY: the caller's promise.
        let options = unsafe { borrowed(properties, "the properties") }?.options()?;
        let made = memory_pool::MemoryPool::new(driver.clone(), options)?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(pool, MemoryPool(made)) }
    })
}

/// Returns the device's current pool (`cuDeviceGetMemPool`), as a handle that the caller owns.
///
/// # Safety
/// `device` is a handle from this library; `pool` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_current(
    device: *const Device,
    pool: *mut *mut MemoryPool,
) -> Status {
    with_device(device, |driver| {
        let found = memory_pool::MemoryPool::current_of(driver.clone())?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(pool, MemoryPool(found)) }
    })
}

/// Returns the device's default pool (`cuDeviceGetDefaultMemPool`), as a handle that the caller owns.
///
/// # Safety
/// `device` is a handle from this library; `pool` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_default(
    device: *const Device,
    pool: *mut *mut MemoryPool,
) -> Status {
    with_device(device, |driver| {
        let found = memory_pool::MemoryPool::default_of(driver.clone())?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(pool, MemoryPool(found)) }
    })
}

/// Returns the default pool of a location and a kind of memory (`cuMemGetDefaultMemPool`), as a handle that
/// the caller owns. A pool other than the device's default pool needs CUDA 13.0. `location_type` and
/// `location_id` have the same meaning as in `millpond_memory_pool_properties`.
///
/// # Safety
/// `device` is a handle from this library; `pool` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_default_for(
    device: *const Device,
    location_type: u32,
    location_id: i32,
    is_managed: bool,
    pool: *mut *mut MemoryPool,
) -> Status {
    with_device(device, |driver| {
        let location = location_of(location_type, location_id)?;
        let kind = if is_managed { MemAllocationType::Managed } else { MemAllocationType::Pinned };
        let found = memory_pool::MemoryPool::default_for(driver.clone(), location, kind)?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(pool, MemoryPool(found)) }
    })
}

/// Returns a handle of a pool that other code made and must destroy.
///
/// # Safety
/// `device` is a handle from this library. The pool `raw` (`CUmemoryPool`) belongs to this device's context,
/// and outlives the handle and the resources over it. `pool` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_from_raw(
    device: *const Device,
    raw: *mut c_void,
    pool: *mut *mut MemoryPool,
) -> Status {
    with_device(device, |driver| {
        let raw = MemPool(raw.addr() as u64);
        // SAFETY: the caller's promise.
        unsafe {
            let found = memory_pool::MemoryPool::from_raw(driver.clone(), raw);
            put_handle(pool, MemoryPool(found))
        }
    })
}

/// Returns the pool at the base of a stack, as a handle that the caller owns. Returns
/// `MILLPOND_STATUS_UNSUPPORTED` if the stack has no such base.
///
/// # Safety
/// `resource` is a handle from this library; `pool` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_of_resource(
    resource: *const Resource,
    pool: *mut *mut MemoryPool,
) -> Status {
    with_resource(resource, |resource| {
        let found = find_trait::<dyn DriverPool>(resource);
        let found = found.ok_or_else(|| lacks(resource, "has a driver pool"))?.memory_pool().clone();
        // SAFETY: the caller's promise.
        unsafe { put_handle(pool, MemoryPool(found)) }
    })
}

/// Frees a handle. Does nothing for null.
///
/// # Safety
/// `pool` is null, or a handle from this library, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_free(pool: *mut MemoryPool) {
    // SAFETY: the caller's promise.
    unsafe { end(pool) }
}

/// Makes a resource that allocates from a pool: the base `cuda_async_view`. The resource keeps the pool.
///
/// # Safety
/// `pool` is a handle from this library; `resource` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_resource(
    pool: *const MemoryPool,
    resource: *mut *mut Resource,
) -> Status {
    with_pool(pool, |pool| {
        let made = CudaAsyncViewMemoryResource::new(pool.clone())?.into_any();
        // SAFETY: the caller's promise.
        unsafe { put_handle(resource, Resource::built(made)) }
    })
}

/// Makes a pool its device's current pool, from which `cuMemAllocAsync` allocates in the whole process. The
/// pool is not destroyed while it is current.
///
/// # Safety
/// `pool` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_set_current(pool: *const MemoryPool) -> Status {
    with_pool(pool, memory_pool::MemoryPool::set_current)
}

/// Writes the driver's handle of a pool (`CUmemoryPool`).
///
/// # Safety
/// `pool` is a handle from this library; `raw` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_raw(pool: *const MemoryPool, raw: *mut *mut c_void) -> Status {
    // SAFETY: the caller's promise.
    with_pool(pool, |pool| unsafe { put(raw, without_provenance_mut(pool.raw().0 as usize)) })
}

/// Writes the pool's device, as a handle that the caller owns.
///
/// # Safety
/// `pool` is a handle from this library; `device` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_device(
    pool: *const MemoryPool,
    device: *mut *mut Device,
) -> Status {
    // SAFETY: the caller's promise.
    with_pool(pool, |pool| unsafe { put_handle(device, Device(pool.driver().clone())) })
}

/// Returns whether the pool was imported from another process; `false` for null.
///
/// # Safety
/// `pool` is null or a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_is_imported(pool: *const MemoryPool) -> bool {
    // SAFETY: the caller's promise.
    let pool = unsafe { pool.as_ref() };
    guarded_or(false, || pool.is_some_and(|pool| pool.0.is_imported()))
}

/// Writes the properties of a pool. For a pool that other code made, the driver must support CUDA 13.2.
///
/// # Safety
/// `pool` is a handle from this library; `properties` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_get_properties(
    pool: *const MemoryPool,
    properties: *mut MemoryPoolProperties,
) -> Status {
    // SAFETY: the caller's promise.
    with_pool(pool, |pool| unsafe { put(properties, MemoryPoolProperties::of(pool.properties()?)) })
}

/// Writes the value of an attribute, one of `millpond_memory_pool_attribute`.
///
/// # Safety
/// `pool` is a handle from this library; `value` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_get_attribute(
    pool: *const MemoryPool,
    attribute: u32,
    value: *mut u64,
) -> Status {
    with_pool(pool, |pool| {
        let found = match Attribute::of(attribute)? {
            Attribute::ReleaseThreshold => pool.release_threshold(),
            Attribute::ReservedCurrent => pool.reserved_bytes(),
            Attribute::ReservedHigh => pool.reserved_high(),
            Attribute::UsedCurrent => pool.used_bytes(),
            Attribute::UsedHigh => pool.used_high(),
            switch => {
                let mut reuse = pool.reuse()?;
                Ok(switch.switch(&mut reuse).is_some_and(|is_on| *is_on).into())
            }
        };
        // SAFETY: the caller's promise.
        unsafe { put(value, found?) }
    })
}

/// Sets an attribute, one of `millpond_memory_pool_attribute`. `MILLPOND_MEMORY_POOL_ATTRIBUTE_RESERVED_HIGH`
/// and `MILLPOND_MEMORY_POOL_ATTRIBUTE_USED_HIGH` can only be set to 0.
///
/// # Safety
/// `pool` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_set_attribute(
    pool: *const MemoryPool,
    attribute: u32,
    value: u64,
) -> Status {
    with_pool(pool, |pool| match (Attribute::of(attribute)?, value) {
        (Attribute::ReleaseThreshold, bytes) => pool.set_release_threshold(bytes),
        (Attribute::ReservedHigh, 0) => pool.reset_reserved_high(),
        (Attribute::UsedHigh, 0) => pool.reset_used_high(),
        (switch, value) => {
            let mut reuse = pool.reuse()?;
            let Some(is_on) = switch.switch(&mut reuse) else {
                let text = format!("attribute {attribute} cannot be set to {value}; a high can be set to 0");
                return Err(Error::invalid_argument(text));
            };
            *is_on = value != 0;
            pool.set_reuse(reuse)
        }
    })
}

/// Releases free memory to the device until the pool holds at most `keep_bytes`, after a wait for the device.
/// Writes the number of released bytes.
///
/// # Safety
/// `pool` is a handle from this library; `released_bytes` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_trim(
    pool: *const MemoryPool,
    keep_bytes: u64,
    released_bytes: *mut u64,
) -> Status {
    // SAFETY: the caller's promise.
    with_pool(pool, |pool| unsafe { put(released_bytes, pool.trim(keep_bytes)?) })
}

/// Writes a device's access to the pool's memory (`CUmemAccess_flags`): 0 for none, 1 for reading, 3 for
/// reading and writing.
///
/// # Safety
/// `pool` and `device` are handles from this library; `access` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_get_access(
    pool: *const MemoryPool,
    device: *const Device,
    access: *mut u32,
) -> Status {
    with_pool(pool, |pool| {
        // SAFETY: the caller's promise.
        let device = unsafe { borrowed(device, "the device") }?.0.device();
        // SAFETY: the caller's promise.
        unsafe { put(access, number_of(pool.access(device)?)) }
    })
}

/// Sets a device's access to the pool's memory, with the numbers of `millpond_memory_pool_get_access`. The
/// setting also holds for memory that the pool allocates later.
///
/// # Safety
/// `pool` and `device` are handles from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_set_access(
    pool: *const MemoryPool,
    device: *const Device,
    access: u32,
) -> Status {
    with_pool(pool, |pool| {
        // SAFETY: the caller's promise.
        let device = unsafe { borrowed(device, "the device") }?.0.device();
        pool.set_access(flags_of(access)?, &[device])
    })
}

/// Writes the host's access to the pool's memory, with the numbers of `millpond_memory_pool_get_access`. The
/// location has CUDA's numbers (`CUmemLocationType`): type 2 is the host, 3 is the NUMA node `location_id` of
/// the host, and 4 is the NUMA node of the calling thread.
///
/// # Safety
/// `pool` is a handle from this library; `access` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_get_host_access(
    pool: *const MemoryPool,
    location_type: u32,
    location_id: i32,
    access: *mut u32,
) -> Status {
    with_pool(pool, |pool| {
        let found = pool.access(host_of(location_type, location_id)?)?;
        // SAFETY: the caller's promise.
        unsafe { put(access, number_of(found)) }
    })
}

/// Sets the host's access to the pool's memory, with the numbers of `millpond_memory_pool_get_host_access`.
/// Returns `MILLPOND_STATUS_INVALID_ARGUMENT` if the driver refuses this access.
///
/// # Safety
/// `pool` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_pool_set_host_access(
    pool: *const MemoryPool,
    location_type: u32,
    location_id: i32,
    access: u32,
) -> Status {
    with_pool(pool, |pool| pool.set_access(flags_of(access)?, &[host_of(location_type, location_id)?]))
}

/// CUDA's numbers of the kinds of access.
const ACCESS: [(u32, AccessFlags); 3] =
    [(0, AccessFlags::None), (1, AccessFlags::Read), (3, AccessFlags::ReadWrite)];

fn number_of(flags: AccessFlags) -> u32 {
    ACCESS.into_iter().find(|(_, known)| *known == flags).map_or(0, |(number, _)| number)
}

fn flags_of(number: u32) -> Result<AccessFlags> {
    let found = ACCESS.into_iter().find(|(known, _)| *known == number).map(|(_, flags)| flags);
    found.ok_or_else(|| Error::invalid_argument(format!("there is no access {number}; pass 0, 1 or 3")))
}

/// The memory that the graphs of a device allocate in their own nodes. All sizes are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "the C interface fixes it")]
pub struct GraphMemoryCounts {
    /// Bytes that graphs use now.
    pub used_bytes: u64,
    /// The highest `used_bytes` so far.
    pub used_high: u64,
    /// Bytes that the driver reserves for graphs now.
    pub reserved_bytes: u64,
    /// The highest `reserved_bytes` so far.
    pub reserved_high: u64,
}

/// Writes the counts of the memory that the device's graphs allocate (`cuDeviceGetGraphMemAttribute`). No
/// resource of this library makes nodes that allocate.
///
/// # Safety
/// `device` is a handle from this library; `counts` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_graph_memory(
    device: *const Device,
    counts: *mut GraphMemoryCounts,
) -> Status {
    with_device(device, |driver| {
        let graphs = GraphMemory::of(driver.clone());
        let found = GraphMemoryCounts {
            used_bytes: graphs.used_bytes()?,
            used_high: graphs.used_high()?,
            reserved_bytes: graphs.reserved_bytes()?,
            reserved_high: graphs.reserved_high()?,
        };
        // SAFETY: the caller's promise.
        unsafe { put(counts, found) }
    })
}

/// Restarts both highs of `millpond_graph_memory` from the bytes of now.
///
/// # Safety
/// `device` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_graph_memory_reset_highs(device: *const Device) -> Status {
    with_device(device, |driver| GraphMemory::of(driver.clone()).reset_highs())
}

/// Releases the memory that the driver reserves for graphs and no graph uses (`cuDeviceGraphMemTrim`).
///
/// # Safety
/// `device` is a handle from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_graph_memory_trim(device: *const Device) -> Status {
    with_device(device, |driver| GraphMemory::of(driver.clone()).trim())
}
