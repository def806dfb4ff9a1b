//! The two functions through which OpenVM's stark-backend allocates device memory, over a stack of millpond.
//!
//! [`d_malloc_on`] and [`d_free`] have the signatures and the errors of
//! `openvm_cuda_common::memory_manager`. They serve each device from its default resource, which
//! [`use_stack`] sets.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{LazyLock, Mutex};

use millpond::driver::cuda::{CudaDriver, device_of_stream};
use millpond::resources::{get_per_device_resource, registry};
use millpond::stack::StackSpec;
use millpond::{
    AnyResource, DeviceMemoryResource, DevicePtr, DriverHandle, Error, ErrorKind, Layout, StreamRef,
};
use openvm_cuda_common::error::{CudaError, MemoryError};
use openvm_cuda_common::stream::StreamGuard;

/// A live block, with everything that `d_free` needs.
struct Block {
    layout: Layout,
    named: StreamRef,
    resource: AnyResource,
    /// Keeps the stream of the allocation until the block is freed.
    _stream: StreamGuard,
}

static LIVE: LazyLock<Mutex<HashMap<usize, Block>>> = LazyLock::new(Mutex::default);

/// Builds a stack from its text, for example `cuda+pool:max=80%`, and makes it the default of a CUDA device.
/// Blocks of the previous default stay valid.
///
/// # Errors
/// The errors of parsing and building the stack, and of opening the device.
pub fn use_stack(ordinal: u32, text: &str) -> millpond::Result<()> {
    let driver: DriverHandle = CudaDriver::open(ordinal)?;
    let stack = text.parse::<StackSpec>()?.build(&millpond::layers(), &driver)?;
    registry::replace_per_device_resource(driver.device(), stack).map(drop)
}

/// Allocates `size` bytes on the stream's device. The block is ready for work on the stream.
///
/// # Errors
/// [`MemoryError::InvalidMemorySize`] for no bytes, where upstream panics. [`MemoryError::OutOfMemory`], with
/// the bytes that the stack has left; the log has the whole report. [`MemoryError::Cuda`] for all other
/// errors.
pub fn d_malloc_on(size: usize, stream: &StreamGuard) -> Result<*mut c_void, MemoryError> {
    if size == 0 {
        return Err(MemoryError::InvalidMemorySize { size });
    }
    let (ptr, block) = allocate(size, stream).map_err(|(error, available)| {
        tracing::error!("d_malloc_on failed: size={size}: {error}");
        match error.kind() {
            ErrorKind::OutOfMemory => MemoryError::OutOfMemory { requested: size, available },
            _ => MemoryError::Cuda(cuda_error(&error)),
        }
    })?;
    let address = ptr.address() as usize;
    LIVE.lock().map_err(|_| MemoryError::LockError)?.insert(address, block);
    Ok(std::ptr::with_exposed_provenance_mut(address))
}

/// Frees a block in the order of the stream that allocated it. Upstream's function does the same: its buffers
/// submit work to this stream only.
///
/// # Errors
/// [`MemoryError::NullPointer`] for null, and [`MemoryError::InvalidPointer`] for an address that is not the
/// start of a live block.
///
/// # Safety
/// The block is not used after this call. The stream that allocated it waits for all uses on other streams.
pub unsafe fn d_free(ptr: *mut c_void) -> Result<(), MemoryError> {
    let ptr = NonNull::new(ptr).ok_or(MemoryError::NullPointer)?.as_ptr();
    let live = LIVE.lock().map_err(|_| MemoryError::LockError)?.remove(&ptr.expose_provenance());
    let block = live.ok_or(MemoryError::InvalidPointer)?;
    let address = DevicePtr::new(ptr.addr() as u64);
    // SAFETY: the block came from this resource with this layout, and was live until now. The caller promises
    // the order.
    unsafe { block.resource.deallocate(address, block.layout, block.named) };
    Ok(())
}

/// With an error, also returns how many bytes are left.
fn allocate(size: usize, stream: &StreamGuard) -> Result<(DevicePtr, Block), (Error, usize)> {
    let unknown = |error| (error, 0);
    let handle = stream.as_raw().addr() as u64;
    // SAFETY: the guard keeps the stream.
    let device = unsafe { device_of_stream(handle) }.map_err(unknown)?;
    let device = device.ok_or_else(|| unknown(Error::new(ErrorKind::NoDevice, "CUDA cannot be used")))?;
    let resource = get_per_device_resource(device).map_err(unknown)?;
    // SAFETY: the block keeps the stream as long as it names it.
    let named = unsafe { resource.driver().stream_ref(handle) }.map_err(|error| unknown(error.into()))?;
    let layout = Layout::new(size as u64);
    match resource.allocate(layout, named) {
        Ok(ptr) => Ok((ptr, Block { layout, named, resource, _stream: stream.clone() })),
        Err(error) => {
            let left = resource.memory_info().map_or(0, |info| info.free);
            Err((error, left as usize))
        }
    }
}

/// Keeps CUDA's code if the error has one; otherwise `cudaErrorUnknown`.
fn cuda_error(error: &Error) -> CudaError {
    const UNKNOWN: i32 = 999;
    let code = error.driver_error().map_or(UNKNOWN, |driver| driver.code());
    CudaError { code, name: format!("{:?}", error.kind()), message: error.to_string() }
}
