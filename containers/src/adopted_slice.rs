//! The resource of memory that a container took over from cudarc.

use std::any::Any;
use std::fmt;
use std::mem;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use millpond_core::driver::{CaptureModeGuard, DriverError, call};
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{
    Accessibility, DeviceMemoryResource, DevicePtr, DriverHandle, Error, Layout, MemoryInfo,
    ResourceStatistics, Result, StreamRef, Traits, is_same,
};
use millpond_driver::CurrentDeviceGuard;
use millpond_driver::cuda::{CudaDriver, stream_ref_of};
use parking_lot::Mutex;

use crate::ConversionError;
use crate::cuda_stream::{failed, is_lost, order_tracked_uses};
use crate::event::order;

/// The memory of one `CudaSlice` that a container took over from cudarc. This type is the resource of the
/// buffer that [`CudaBuffer::adopt`](crate::CudaBuffer::adopt) returns.
///
/// The resource owns the slice. When the container is dropped, cudarc frees the memory on the slice's stream,
/// after all work of the container on the memory. The resource has only this one block. So a container with
/// this resource cannot grow beyond its capacity.
///
/// ```no_run
/// use millpond_containers::{AdoptedSlice, CudaBuffer};
/// use millpond_driver::cuda::cudarc::driver::CudaContext;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let buffer: CudaBuffer<f32, AdoptedSlice<f32>> = CudaBuffer::adopt(stream.alloc_zeros(100)?)?;
/// assert_eq!(buffer.resource().to_string(), "cuda_slice");
/// # Ok(())
/// # }
/// ```
pub struct AdoptedSlice<T> {
    driver: DriverHandle,
    ptr: DevicePtr,
    layout: Layout,
    /// The slice's stream, which the slice keeps alive.
    home: StreamRef,
    /// `None` once the memory was freed or given back.
    slice: Mutex<Option<CudaSlice<T>>>,
}

impl<T> AdoptedSlice<T> {
    /// Takes the slice, and orders its stream after all uses that cudarc has tracked.
    pub(crate) fn new(mut slice: CudaSlice<T>) -> Result<Self, ConversionError<CudaSlice<T>>> {
        match Self::prepare(&mut slice) {
            Ok((driver, home, ptr, layout)) => {
                Ok(Self { driver, ptr, layout, home, slice: Mutex::new(Some(slice)) })
            }
            Err(error) => Err(ConversionError::new(error, slice)),
        }
    }

    fn prepare(slice: &mut CudaSlice<T>) -> Result<(DriverHandle, StreamRef, DevicePtr, Layout)> {
        let layout = Layout::array::<T>(slice.len() as u64)?;
        // SAFETY: the slice keeps its stream, and the resource keeps the slice.
        let home = unsafe { stream_ref_of(slice.stream()) }?;
        // The context is a device's primary one; otherwise the line above would have failed.
        let driver: DriverHandle = CudaDriver::open(slice.context().ordinal() as u32)?;
        let _current = CurrentDeviceGuard::new(driver.device())?;
        let address = order_tracked_uses(slice)?;
        if home.is_per_thread() {
            // cudarc does not remember which thread's stream it is.
            slice.context().synchronize().map_err(|error| failed(&error, "cuCtxSynchronize"))?;
        }
        let ptr = if layout.bytes() == 0 { DevicePtr::NULL } else { DevicePtr::new(address) };
        if !ptr.is_aligned_to(layout.alignment()) {
            return Err(Error::invalid_argument(format!(
                "the slice at {ptr} is not aligned to {} bytes, so it may begin inside an allocation; adopt \
                 a whole allocation",
                layout.alignment()
            )));
        }
        Ok((driver, home, ptr, layout))
    }

    /// Returns the block, its layout, and the stream in whose order it may first be used.
    pub(crate) fn block(&self) -> (DevicePtr, Layout, StreamRef) {
        (self.ptr, self.layout, self.home)
    }

    /// Returns the stream of the slice.
    pub(crate) fn stream(&self) -> Result<Arc<CudaStream>> {
        self.slice.lock().as_ref().map(|slice| Arc::clone(slice.stream())).ok_or_else(gone)
    }

    /// Returns the slice. All uses of its memory happen before the next work of its stream. Uses that cudarc
    /// tracks wait for them there.
    pub(crate) fn take(&self) -> Result<CudaSlice<T>> {
        if is_lost(&self.driver) {
            return Err(self.driver.health().error());
        }
        let held = self.slice.lock().take();
        let mut slice = held.ok_or_else(gone)?;
        let marked = CurrentDeviceGuard::new(self.driver.device()).and_then(|_current| {
            let earlier = slice.context().check_err();
            let marked = order_tracked_uses(&mut slice);
            // cudarc reports its earlier error itself.
            slice.context().record_err(earlier);
            marked
        });
        match marked {
            Ok(_address) => Ok(slice),
            Err(error) => {
                *self.slice.lock() = Some(slice);
                Err(error)
            }
        }
    }

    /// Drops the slice after the work that `ordered` puts before the next work of its stream. Any context may
    /// be current. If the order fails, the memory is leaked: its next owner would get it too early.
    fn free(&self, slice: CudaSlice<T>, ordered: impl FnOnce() -> Result<()>) {
        if is_lost(&self.driver) {
            return mem::forget(slice);
        }
        let current = CurrentDeviceGuard::new(self.driver.device());
        let ordered = current.and_then(|current| ordered().map(|()| current));
        match ordered {
            Ok(_current) => drop(slice),
            Err(error) => {
                tracing::error!(target: "millpond::containers", %error, "an adopted slice was leaked");
                mem::forget(slice);
            }
        }
    }
}

fn gone() -> Error {
    Error::invalid_argument("the adopted slice was already freed or taken out")
}

/// A container leaves the memory here if it was taken apart, or if it could not be ordered when it was
/// dropped. The stream of the last use is unknown.
impl<T> Drop for AdoptedSlice<T> {
    fn drop(&mut self) {
        let Some(slice) = self.slice.get_mut().take() else { return };
        self.free(slice, || {
            let _captures = CaptureModeGuard::relaxed(&*self.driver);
            if self.layout.bytes() == 0 || call(&*self.driver, |driver| driver.synchronize_beside_captures())?
            {
                return Ok(());
            }
            Err(DriverError::new(DriverError::STREAM_CAPTURE_UNSUPPORTED, "cuCtxSynchronize").into())
        });
    }
}

impl<T> fmt::Debug for AdoptedSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptedSlice")
            .field("ptr", &self.ptr)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Display for AdoptedSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cuda_slice")
    }
}

// SAFETY: it allocates no block. The slice's block is disjoint from all others, since the slice owned it, and
// is freed after its last use.
#[deny(clippy::missing_trait_methods)]
unsafe impl<T: Any> DeviceMemoryResource for AdoptedSlice<T> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let message = "memory that was taken over from cudarc cannot grow; copy it into a container over \
                       another resource with DeviceVec::copy_of or DeviceBuffer::copy_of";
        let error = Error::invalid_argument(message).for_request(layout, stream);
        Err(error.on_device(self.driver.device()).in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() {
            return;
        }
        let slice = if ptr == self.ptr { self.slice.lock().take() } else { None };
        match slice {
            Some(slice) => self.free(slice, || {
                order(&self.driver, stream, self.home)
                    .or_else(|_| call(&*self.driver, |driver| driver.stream_synchronize(stream)))
            }),
            None => {
                let kind = MisuseKind::ForeignPointer;
                misuse::report(&Misuse::new(kind, ptr, layout.bytes(), stream, self));
            }
        }
    }

    fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        call(&*self.driver, |driver| driver.mem_get_info()).map_err(|error| error.in_stack(self))
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn accessibility(&self) -> Accessibility {
        Accessibility::DEVICE
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        None
    }

    fn trim(&self, _keep_bytes: u64) -> Result<u64> {
        Ok(0)
    }

    fn provide(&self, _traits: &mut Traits) {}
}
