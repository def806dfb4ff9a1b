//! Snapshots of memory in PyTorch's format.

use std::ptr;

use millpond_adaptors::Recording;
use millpond_adaptors::recording::{Snapshot, memory_snapshot, memory_snapshot_with};
use millpond_core::{AnyResource, DeviceMemoryResourceExt, Error, Result, find_trait};

use crate::framework;
use crate::history::recorder;
use crate::resource::Resource;
use crate::status::{Status, guarded_here, put};

/// Writes a snapshot of memory, as a pickle in the format of PyTorch's `torch.cuda.memory._dump_snapshot`.
/// Also writes the size of the pickle in bytes. If `resource` is null, the snapshot shows all memory behind
/// `millpond_malloc`. The snapshot has the events of the resource's adaptor `recording`. Without that
/// adaptor, it has the events of the history. Free the bytes with `millpond_bytes_free`. Returns
/// `MILLPOND_STATUS_UNSUPPORTED` if no layer of the resource knows its blocks.
///
/// # Safety
/// `resource` is null or a handle from this library; `bytes` and `size` are valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_memory_snapshot(
    resource: *const Resource,
    bytes: *mut *mut u8,
    size: *mut usize,
) -> Status {
    guarded_here(|| {
        // SAFETY: the caller's promise.
        let pickle = match unsafe { resource.as_ref() } {
            None => of_frameworks()?,
            Some(resource) => of_resource(&resource.0)?,
        };
        let pickle = pickle.into_boxed_slice();
        // SAFETY: the caller's promise.
        unsafe {
            put(size, pickle.len())?;
            if bytes.is_null() {
                return Err(Error::invalid_argument("the pointer for the bytes is a null pointer"));
            }
            put(bytes, Box::into_raw(pickle).cast())
        }
    })
}

/// Frees bytes from this library. Does nothing for null.
///
/// # Safety
/// `bytes` is null, or comes from a function whose documentation names this function. `size` is the size that
/// this function wrote. `bytes` is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_bytes_free(bytes: *mut u8, size: usize) {
    if !bytes.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(bytes, size)) });
    }
}

fn of_resource(resource: &AnyResource) -> Result<Vec<u8>> {
    match recorder().filter(|_| find_trait::<dyn Recording>(resource).is_none()) {
        None => memory_snapshot(resource),
        Some(recorder) => memory_snapshot_with(resource, Some(&recorder)),
    }
}

fn of_frameworks() -> Result<Vec<u8>> {
    let mut snapshot = Snapshot::new();
    for resource in framework::resources()? {
        // Plain memory has no map. The history knows its blocks.
        let map = resource.memory_map().unwrap_or_default();
        snapshot.add(resource.device(), &resource.to_string(), map);
    }
    Ok(snapshot.to_pickle(recorder().as_deref()))
}
