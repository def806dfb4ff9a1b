//! The allocators that run the workloads.

use millpond_core::{AnyResource, DeviceMemoryResource, DevicePtr, ErrorKind, Layout, StreamRef};

use super::Status;
use super::setback::{Attempt, Setback};

/// An allocator that runs a workload.
pub(super) trait Subject: Sync {
    /// Allocates a block, and returns its address.
    fn allocate(&self, bytes: u64, stream: StreamRef) -> Attempt<u64>;

    /// Frees a block.
    ///
    /// # Safety
    /// The block comes from `allocate` of the same subject with the same `bytes`. It is freed once, and is
    /// not used afterwards.
    unsafe fn free(&self, address: u64, bytes: u64, stream: StreamRef);
}

impl Subject for AnyResource {
    #[inline]
    fn allocate(&self, bytes: u64, stream: StreamRef) -> Attempt<u64> {
        match DeviceMemoryResource::allocate(&**self, Layout::new(bytes), stream) {
            Ok(ptr) => Ok(ptr.address()),
            Err(error) => Err(setback(&error)),
        }
    }

    #[inline]
    unsafe fn free(&self, address: u64, bytes: u64, stream: StreamRef) {
        // SAFETY: the caller's promise. No work that uses the block was ever submitted, so any stream is
        // correct.
        unsafe { self.deallocate(DevicePtr::new(address), Layout::new(bytes), stream) }
    }
}

#[cold]
fn setback(error: &millpond_core::Error) -> Setback {
    let status = if error.kind() == ErrorKind::OutOfMemory { Status::OutOfMemory } else { Status::Failed };
    Setback { status, reason: error.to_string() }
}

/// mimalloc, the CPU memory allocator whose time is the lower bound for bookkeeping. It has no streams.
#[cfg(feature = "mimalloc")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Mimalloc;

#[cfg(feature = "mimalloc")]
impl Subject for Mimalloc {
    #[inline]
    fn allocate(&self, bytes: u64, _stream: StreamRef) -> Attempt<u64> {
        // SAFETY: mi_malloc takes any size.
        let block = unsafe { libmimalloc_sys::mi_malloc(bytes as usize) };
        if block.is_null() {
            let reason = format!("mi_malloc could not allocate {bytes} bytes");
            return Err(Setback { status: Status::OutOfMemory, reason });
        }
        Ok(block.expose_provenance() as u64)
    }

    #[inline]
    unsafe fn free(&self, address: u64, _bytes: u64, _stream: StreamRef) {
        // SAFETY: `mi_malloc` returned the address, and the caller frees it once.
        unsafe { libmimalloc_sys::mi_free(std::ptr::with_exposed_provenance_mut(address as usize)) }
    }
}
