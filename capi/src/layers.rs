//! What single layers offer beyond their text: a limit's counts, bins of other resources, the driver's pools.

use std::ffi::c_void;
use std::ptr::without_provenance_mut;

use millpond_adaptors::LimitingResourceAdaptor;
use millpond_core::driver::MemPool;
use millpond_core::{AnyResource, DeviceMemoryResourceExt, Error, ErrorKind, find};
use millpond_resources::memory_pool::MemoryPool;
use millpond_resources::{
    BinningLayer, CudaAsyncManagedMemoryResource, CudaAsyncMemoryResource, CudaAsyncViewMemoryResource,
};

use crate::device::Device;
use crate::resource::{Resource, with_resource};
use crate::status::{Status, borrowed, guarded_here, put, put_handle};

/// The bytes that the adaptor `limiting` has handed out, and its limit in bytes.
///
/// # Safety
/// `resource` is a handle of this library's; both numbers may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_limiting_counts(
    resource: *const Resource,
    allocated_bytes: *mut u64,
    limit_bytes: *mut u64,
) -> Status {
    with_resource(resource, |resource| {
        let adaptor = find::<LimitingResourceAdaptor<AnyResource>>(resource);
        let adaptor = adaptor.ok_or_else(|| lacks(resource, "limits what is handed out"))?;
        // SAFETY: the caller's promise.
        unsafe {
            put(allocated_bytes, adaptor.allocated_bytes())?;
            put(limit_bytes, adaptor.limit_bytes())
        }
    })
}

/// Puts bins on a resource: requests up to `sizes[i]` bytes, beyond the next smaller bin, go to
/// `resources[i]`, or to fixed-size blocks from `upstream` where that is null. All handles stay the caller's.
///
/// # Safety
/// `upstream` is a handle of this library's; `sizes` and `resources` hold `count` values, and the latter are
/// null or handles of this library's; `resource` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_binning(
    upstream: *const Resource,
    sizes: *const u64,
    resources: *const *const Resource,
    count: usize,
    resource: *mut *mut Resource,
) -> Status {
    with_resource(upstream, |upstream| {
        let mut layer = BinningLayer::new();
        if count > 0 && (sizes.is_null() || resources.is_null()) {
            return Err(Error::invalid_argument("the sizes or the resources of the bins are a null pointer"));
        }
        for bin in 0..count {
            // SAFETY: the caller's promise.
            let (bytes, of_bin) = unsafe { (*sizes.add(bin), (*resources.add(bin)).as_ref()) };
            layer = match of_bin {
                Some(of_bin) => layer.add_bin_with(bytes, of_bin.0.clone()),
                None => layer.add_bin(bytes),
            };
        }
        let made = upstream.clone().layer(layer)?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(resource, Resource::new(made.into_any())) }
    })
}

/// The driver's pool (`CUmemoryPool`) of the base `cuda_async`, `cuda_async_view` or `cuda_async_managed`.
///
/// # Safety
/// `resource` is a handle of this library's; `pool` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_async_pool(resource: *const Resource, pool: *mut *mut c_void) -> Status {
    with_resource(resource, |resource| {
        let found = find::<CudaAsyncMemoryResource>(resource).map(CudaAsyncMemoryResource::pool);
        let found = found
            .or_else(|| find::<CudaAsyncViewMemoryResource>(resource).map(CudaAsyncViewMemoryResource::pool));
        let found = found.or_else(|| {
            find::<CudaAsyncManagedMemoryResource>(resource).map(CudaAsyncManagedMemoryResource::pool)
        });
        let raw = found.ok_or_else(|| lacks(resource, "has a pool of the driver's"))?.raw().0;
        // SAFETY: the caller's promise.
        unsafe { put(pool, without_provenance_mut(raw as usize)) }
    })
}

/// Makes a resource over a pool of the driver's (`CUmemoryPool`) that stays the caller's.
///
/// # Safety
/// `device` is a handle of this library's; the pool is of this device's context and lives as long as the
/// resource and its blocks; `resource` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_async_view(
    device: *const Device,
    pool: *mut c_void,
    resource: *mut *mut Resource,
) -> Status {
    guarded_here(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { borrowed(device, "the device") }?;
        if pool.is_null() {
            return Err(Error::invalid_argument("the driver's pool is a null pointer"));
        }
        // SAFETY: the caller's promise.
        let pool = unsafe { MemoryPool::from_raw(device.0.clone(), MemPool(pool.addr() as u64)) };
        // SAFETY: the caller's promise.
        unsafe { put_handle(resource, Resource::new(CudaAsyncViewMemoryResource::new(pool)?.into_any())) }
    })
}

fn lacks(resource: &AnyResource, what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("no layer of `{resource}` {what}"))
}
