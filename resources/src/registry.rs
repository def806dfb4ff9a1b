//! Holds the default resource of each device.
//!
//! The environment variable `MILLPOND_STACK` names the initial default of every device, as the text of a
//! stack. Without the variable, the initial default is a plain [`CudaMemoryResource`].
//!
//! The functions return owned handles. A replaced resource lives until its last handle is dropped. Blocks of
//! a replaced resource still return to that resource. All functions are thread-safe.
//!
//! If the context of a device is reset (`cuDevicePrimaryCtxReset`), the default of that device is lost. A new
//! initial default then replaces the lost default.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use dashmap::DashMap;
use millpond_core::stack::{LayerTable, STACK_VARIABLE, StackSpec};
use millpond_core::{AnyResource, DeviceId, DeviceMemoryResourceExt, DriverHandle, Error, Result, watch};
use rustc_hash::FxBuildHasher;

use crate::CudaMemoryResource;

static DEFAULTS: LazyLock<DashMap<DeviceId, AnyResource, FxBuildHasher>> = LazyLock::new(DashMap::default);

/// Counts the changes of defaults.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Builds the stack named by the environment, or the plain resource.
fn initial(device: DeviceId) -> Result<AnyResource> {
    // A program that asks for a default may not want any device memory yet.
    let driver = millpond_driver::find(device)?;
    let Some(stack) = StackSpec::from_env()? else { return Ok(plain(driver)) };
    let layers = LayerTable::new(crate::LAYERS.iter().chain(millpond_plan::LAYERS).copied())
        .with(millpond_adaptors::LAYERS.iter().copied());
    stack.build(&layers, &driver).map_err(|error| {
        error.context(format_args!("building the default resource named by {STACK_VARIABLE}"))
    })
}

fn plain(driver: DriverHandle) -> AnyResource {
    Arc::new(CudaMemoryResource::new(driver))
}

/// Returns the default resource of `device`.
///
/// # Errors
/// [`NoDevice`](millpond_core::ErrorKind::NoDevice) if there is no such device and no default was set. Also
/// the errors of building the stack that `MILLPOND_STACK` names.
pub fn get_per_device_resource(device: DeviceId) -> Result<AnyResource> {
    // If two threads find no default, or a lost one, the first to build a resource wins. Neither holds a lock
    // meanwhile: opening a device takes long, and so may dropping the lost resource.
    let known = DEFAULTS.get(&device).map(|resource| Arc::clone(&resource));
    let lost = match known {
        Some(resource) if resource.driver().was_reset() => Some(resource),
        Some(resource) => return Ok(resource),
        None => None,
    };
    let fresh = initial(device)?;
    watch::add(&fresh);
    let mut slot = DEFAULTS.entry(device).or_insert_with(|| Arc::clone(&fresh));
    if let Some(lost) = lost.as_ref().filter(|lost| Arc::ptr_eq(lost, &slot)) {
        *slot = Arc::clone(&fresh);
        CHANGES.fetch_add(1, Ordering::Release);
        let now = Arc::clone(&slot);
        drop(slot);
        tracing::warn!(
            target: "millpond::resources",
            "the default resource `{lost}` of {device} was lost when the device's context was reset; `{now}` \
             takes its place"
        );
        return Ok(now);
    }
    Ok(Arc::clone(&slot))
}

/// Returns whether `resource` is the current default of `device`, and is not lost. The call builds and drops
/// no resource. The only driver call checks whether the context of the device was reset.
pub fn is_per_device_resource(device: DeviceId, resource: &AnyResource) -> bool {
    DEFAULTS.get(&device).is_some_and(|known| Arc::ptr_eq(&known, resource)) && !resource.driver().was_reset()
}

/// Returns the current default of each device that has one, in the order of the devices. The call builds no
/// resource, so a device whose default was neither set nor read is missing.
pub fn per_device_resources() -> Vec<AnyResource> {
    let mut all: Vec<_> = DEFAULTS.iter().map(|entry| (*entry.key(), Arc::clone(&entry))).collect();
    all.sort_unstable_by_key(|(device, _)| *device);
    all.into_iter().map(|(_, resource)| resource).collect()
}

/// Returns how many times the default of any device was replaced. As long as this number is unchanged, every
/// default is unchanged.
pub fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// Makes `resource` the default of `device`. Returns the previous default.
///
/// ```
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, PoolLayer, registry};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let pool = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new())?.into_any();
/// let id = pool.device();
/// let before = registry::set_per_device_resource(id, pool)?;
/// assert_eq!(before.to_string(), "cuda");
/// assert_eq!(registry::get_per_device_resource(id)?.to_string(), "cuda+pool");
/// assert_eq!(registry::reset_per_device_resource(id)?.to_string(), "cuda+pool");
/// # Ok::<(), millpond_core::Error>(())
/// ```
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the resource belongs to another device.
pub fn set_per_device_resource(device: DeviceId, resource: AnyResource) -> Result<AnyResource> {
    let driver = DriverHandle::clone(resource.driver());
    if let Some(before) = replace_per_device_resource(device, resource)? {
        return Ok(before);
    }
    Ok(initial(device).unwrap_or_else(|error| {
        tracing::warn!(
            target: "millpond::resources",
            %error,
            "cannot build the previous default resource; returning plain CUDA memory in its place"
        );
        plain(driver)
    }))
}

/// Makes `resource` the default of `device`, like [`set_per_device_resource`]. Returns the previous default,
/// or `None` if the device had no default yet. So, unlike `set_per_device_resource`, this function never
/// builds the initial default.
///
/// # Errors
/// The errors of [`set_per_device_resource`].
pub fn replace_per_device_resource(device: DeviceId, resource: AnyResource) -> Result<Option<AnyResource>> {
    if resource.device() != device {
        return Err(Error::invalid_argument(format!(
            "`{resource}` allocates on {} and cannot be the default of {device}; build it on that device",
            resource.device()
        )));
    }
    watch::add(&resource);
    // Drop the previous default without the table's lock: its end may call anything.
    let before = DEFAULTS.insert(device, resource);
    CHANGES.fetch_add(1, Ordering::Release);
    Ok(before)
}

/// Restores the initial default of `device`, which the [module](self) describes. Returns the previous
/// default.
///
/// # Errors
/// [`NoDevice`](millpond_core::ErrorKind::NoDevice) if there is no such device.
pub fn reset_per_device_resource(device: DeviceId) -> Result<AnyResource> {
    // If no default was set, the initial default is also the previous one. Do not build it twice: it may hold
    // a large part of the device.
    if !DEFAULTS.contains_key(&device) {
        return get_per_device_resource(device);
    }
    set_per_device_resource(device, initial(device)?)
}

/// Returns the default resource of the calling thread's current device.
///
/// # Errors
/// The errors of [`get_per_device_resource`].
pub fn get_current_device_resource() -> Result<AnyResource> {
    get_per_device_resource(millpond_driver::current_device()?)
}

/// Makes `resource` the default of the calling thread's current device. Returns the previous default.
///
/// # Errors
/// The errors of [`set_per_device_resource`].
pub fn set_current_device_resource(resource: AnyResource) -> Result<AnyResource> {
    set_per_device_resource(millpond_driver::current_device()?, resource)
}

/// Restores the initial default of the calling thread's current device. Returns the previous default.
///
/// # Errors
/// The errors of [`reset_per_device_resource`].
pub fn reset_current_device_resource() -> Result<AnyResource> {
    reset_per_device_resource(millpond_driver::current_device()?)
}
