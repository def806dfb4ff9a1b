//! Functions for single layers that the text of a stack cannot express: files, a limit's counts, bins over
//! other resources, the driver's pools.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::ptr::{null_mut, without_provenance_mut};

use millpond_adaptors::{AllocationLimit, AllocationLog};
use millpond_core::driver::MemPool;
use millpond_core::stack::{FilePath, LayerEntry, StackSpec};
use millpond_core::{
    AnyResource, ByteSize, DeviceMemoryResourceExt, Error, ErrorKind, Result, downcast, find_trait,
};
use millpond_resources::memory_pool::{DriverPool, MemoryPool};
use millpond_resources::{BinningLayer, BinningMemoryResource, CudaAsyncViewMemoryResource};
use serde_json::{Map, Value};

use crate::device::Device;
use crate::resource::{Resource, layers, with_resource};
use crate::status::{
    Status, borrowed, guarded, guarded_here, put, put_c_string, put_handle, put_text, text_of,
};

/// Builds layers from text on a resource, which the caller still owns. The outermost layer gets `path` as the
/// value of its option `key`, for example `file` of `logging`. The path is not parsed as part of the stack's
/// text, so it may contain any byte except zero. Names in braces are replaced; for example, `{pid}` becomes
/// the process's number.
///
/// # Safety
/// `upstream` is a handle from this library; `layer`, `key` and `path` are strings; `resource` may be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_layer_file(
    upstream: *const Resource,
    layer: *const c_char,
    key: *const c_char,
    path: *const c_char,
    resource: *mut *mut Resource,
) -> Status {
    with_resource(upstream, |upstream| {
        // SAFETY: the caller's promise.
        let (layer, key) = unsafe { (text_of(layer, "the text of the layer")?, text_of(key, "the key")?) };
        if path.is_null() {
            return Err(Error::invalid_argument("the path of the file is a null pointer"));
        }
        // SAFETY: the caller's promise.
        let path = FilePath::new(path_of(unsafe { CStr::from_ptr(path) })?);
        path.resolve(Some(upstream.driver().device()))?;
        let spec: StackSpec = layer.parse()?;
        let mut specs = spec.layers().to_vec();
        let text = path.to_text()?;
        let outermost = specs.pop().map(|outermost| outermost.with(key, text));
        specs.extend(outermost);
        let built = StackSpec::new(specs)?.build_on(upstream.clone(), &layers())?;
        // SAFETY: the caller's promise.
        unsafe { put_handle(resource, Resource::new(built)) }
    })
}

/// Converts a path from C.
#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other systems refuse some bytes")]
fn path_of(path: &CStr) -> Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(path.to_bytes())))
}

/// Converts a path from C.
#[cfg(not(unix))]
fn path_of(path: &CStr) -> Result<PathBuf> {
    let text = path.to_str().map_err(|_| Error::invalid_argument("the path of the file is not UTF-8"))?;
    Ok(PathBuf::from(text))
}

/// Writes the path of the file of the stack's outermost log to `path`, with the names in braces replaced.
/// Writes null if the log has no file. Returns `MILLPOND_STATUS_UNSUPPORTED` if no layer logs. Free the
/// result with `millpond_string_free`.
///
/// # Safety
/// `resource` is a handle from this library; `path` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_logging_file(resource: *const Resource, path: *mut *mut c_char) -> Status {
    with_resource(resource, |resource| {
        let log = find_trait::<dyn AllocationLog>(resource);
        let file = log
            .ok_or_else(|| lacks(resource, "writes an allocation log; add `+logging` to the stack"))?
            .file();
        let bytes = file.map(|file| file.as_os_str().as_encoded_bytes().to_vec());
        let text = bytes.map(CString::new).transpose();
        let text = text.map_err(|_| Error::invalid_argument("the path of the log has a zero byte"))?;
        match text {
            // SAFETY: the caller's promise.
            Some(text) => unsafe { put_c_string(path, text) },
            // SAFETY: the caller's promise.
            None => unsafe { put(path, null_mut()) },
        }
    })
}

/// Describes the bins of the adaptor `binning`, which must be the outermost layer. Writes the number of bins
/// to `count`. For the bin with index `bin`, writes the largest request in bytes that the bin serves. Also
/// writes the resource that was given for this bin, as a handle that the caller owns. The handle is null if
/// the bin allocates its own blocks or if `bin` is past the last bin.
///
/// # Safety
/// `resource` is a handle from this library; the results are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_binning_bin(
    resource: *const Resource,
    bin: usize,
    count: *mut usize,
    bytes: *mut u64,
    of_bin: *mut *mut Resource,
) -> Status {
    with_resource(resource, |resource| {
        let layer = downcast::<BinningMemoryResource<AnyResource>>(resource);
        let layer = layer.ok_or_else(|| unsupported(resource, "is not `binning`"))?;
        let found = layer.given().nth(bin);
        let given = found.and_then(|(_, of_bin)| of_bin.cloned());
        // SAFETY: the caller's promise.
        unsafe {
            put(count, layer.given().count())?;
            put(bytes, found.map_or(0, |(bytes, _)| bytes))?;
            match given {
                Some(given) => put_handle(of_bin, Resource::new(given)),
                None => put(of_bin, null_mut()),
            }
        }
    })
}

/// Writes the resource below the outermost layer, as a handle that the caller owns. Writes null if the
/// outermost layer is a base.
///
/// # Safety
/// `resource` is a handle from this library; `upstream` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_upstream(
    resource: *const Resource,
    upstream: *mut *mut Resource,
) -> Status {
    with_resource(resource, |resource| {
        let below = resource.upstream().map(|below| {
            let owned = handle_of(below);
            owned.ok_or_else(|| unsupported(resource, "gives out no handle of its upstream"))
        });
        match below.transpose()? {
            // SAFETY: the caller's promise.
            Some(below) => unsafe { put_handle(upstream, Resource::new(below)) },
            // SAFETY: the caller's promise.
            None => unsafe { put(upstream, null_mut()) },
        }
    })
}

/// Returns the handle that a layer owns.
fn handle_of(resource: &dyn millpond_core::DeviceMemoryResource) -> Option<AnyResource> {
    let any: &dyn std::any::Any = resource;
    any.downcast_ref::<AnyResource>().cloned()
}

/// Writes the name of the outermost layer, as in a stack's text, to `name`. Free it with
/// `millpond_string_free`.
///
/// # Safety
/// `resource` is a handle from this library; `name` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_resource_name(resource: *const Resource, name: *mut *mut c_char) -> Status {
    with_resource(resource, |resource| {
        let spec: StackSpec = resource.to_string().parse()?;
        let outermost = spec.layers().last().map_or("", |layer| &layer.name);
        // SAFETY: the caller's promise.
        unsafe { put_text(name, outermost) }
    })
}

/// Reads an amount of memory from text. For a size, such as `4GiB`, writes the number of bytes. For a share
/// of the free memory, such as `50%`, writes the percentage. The other result is set to 0. A small number
/// without a unit is refused.
///
/// # Safety
/// `size` is a string; both results are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_parse_size(
    size: *const c_char,
    bytes: *mut u64,
    percent: *mut f64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let size: ByteSize = unsafe { text_of(size, "the size") }?.parse()?;
        let (as_bytes, as_percent) = match size {
            ByteSize::Bytes(bytes) => (bytes, 0.0),
            ByteSize::PercentOfFree(percent) => (0, percent),
            other => {
                let text = format!("`{other}` is neither a number of bytes nor a share of the free memory");
                return Err(Error::invalid_argument(text));
            }
        };
        // SAFETY: the caller's promise.
        unsafe {
            put(bytes, as_bytes)?;
            put(percent, as_percent)
        }
    })
}

/// Writes the layers that a stack's text can name to `json`, as a JSON object. It maps each layer's name to
/// an object, which maps each option of the layer to a line of help. Free the text with
/// `millpond_string_free`.
///
/// # Safety
/// `json` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_layers_json(json: *mut *mut c_char) -> Status {
    guarded(|| {
        let options = |entry: &LayerEntry| {
            let params = entry.params.iter().map(|(name, help)| ((*name).to_owned(), Value::from(*help)));
            (entry.name.to_owned(), Value::Object(params.collect()))
        };
        let table: Map<String, Value> = layers().entries().iter().map(options).collect();
        // SAFETY: the caller's promise.
        unsafe { put_text(json, &Value::Object(table).to_string()) }
    })
}

/// Writes the live bytes of the adaptor `limiting`, and its limit in bytes.
///
/// # Safety
/// `resource` is a handle from this library; both numbers are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_limiting_counts(
    resource: *const Resource,
    allocated_bytes: *mut u64,
    limit_bytes: *mut u64,
) -> Status {
    with_resource(resource, |resource| {
        let adaptor = find_trait::<dyn AllocationLimit>(resource);
        let adaptor = adaptor.ok_or_else(|| lacks(resource, "limits allocations"))?;
        // SAFETY: the caller's promise.
        unsafe {
            put(allocated_bytes, adaptor.allocated_bytes())?;
            put(limit_bytes, adaptor.limit_bytes())
        }
    })
}

/// Puts bins on a resource. Bin `i` serves requests up to `sizes[i]` bytes that the next smaller bin cannot
/// serve. These requests go to `resources[i]`. If `resources[i]` is null, fixed-size blocks from `upstream`
/// serve them. The caller still owns all handles.
///
/// # Safety
/// `upstream` is a handle from this library. `sizes` and `resources` hold `count` values each. Each resource
/// is null or a handle from this library. `resource` is valid for writes.
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
        unsafe { put_handle(resource, Resource::built(made.into_any())) }
    })
}

/// Writes the driver's pool (`CUmemoryPool`) of the base `cuda_async`, `cuda_async_view`,
/// `cuda_async_managed` or `cuda_async_pinned`.
///
/// # Safety
/// `resource` is a handle from this library; `pool` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_async_pool(resource: *const Resource, pool: *mut *mut c_void) -> Status {
    with_resource(resource, |resource| {
        let found = find_trait::<dyn DriverPool>(resource);
        let found = found.ok_or_else(|| lacks(resource, "has a driver pool"))?;
        let raw = found.memory_pool().raw().0;
        // SAFETY: the caller's promise.
        unsafe { put(pool, without_provenance_mut(raw as usize)) }
    })
}

/// Makes a resource over a driver pool (`CUmemoryPool`) that the caller still owns.
///
/// # Safety
/// `device` is a handle from this library; the pool belongs to this device's context and lives as long as the
/// resource and its blocks; `resource` is valid for writes.
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
        unsafe { put_handle(resource, Resource::built(CudaAsyncViewMemoryResource::new(pool)?.into_any())) }
    })
}

fn unsupported(resource: &AnyResource, what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the outermost layer of `{resource}` {what}"))
}

pub(crate) fn lacks(resource: &AnyResource, what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("no layer of `{resource}` {what}"))
}
