//! A resource whose calls are functions of the program.

use std::fmt;

use millpond_core::driver::call;
use millpond_core::{
    Accessibility, DeviceMemoryResource, DevicePtr, DriverHandle, Error, Layout, MemoryInfo,
    ResourceStatistics, Result, StreamRef, Traits, debug_as_text, is_same,
};

use crate::out_of_memory;

/// The function that hands out a block.
type Allocate = dyn Fn(Layout, StreamRef) -> Result<DevicePtr> + Send + Sync;
/// The function that takes a block back.
type Deallocate = dyn Fn(DevicePtr, Layout, StreamRef) + Send + Sync;

/// A resource that allocates and frees with two functions of the program. For example, the functions may call
/// a foreign allocator or record the calls of a test.
///
/// The resource does not call the functions for requests for zero bytes, nor for frees of null pointers. If
/// the allocating function returns a null pointer or a misaligned block, the request fails.
///
/// ```
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CallbackMemoryResource, CudaMemoryResource};
/// use std::sync::Arc;
///
/// let device = SimDevice::new(SimConfig::h200());
/// let cuda = CudaMemoryResource::new(device.clone()).into_any();
/// let upstream = Arc::clone(&cuda);
/// // SAFETY: both functions pass the call to a resource that keeps the contract.
/// let resource = unsafe {
///     CallbackMemoryResource::new(
///         device,
///         move |layout, stream| cuda.allocate(layout, stream),
///         move |ptr, layout, stream| upstream.deallocate(ptr, layout, stream),
///     )
/// };
/// let block = resource.allocate_bytes(1000, StreamRef::LEGACY)?;
/// // SAFETY: the block came from this resource with this size, once.
/// unsafe { resource.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct CallbackMemoryResource {
    driver: DriverHandle,
    allocate: Box<Allocate>,
    deallocate: Box<Deallocate>,
    accessibility: Accessibility,
    is_stream_ordered: bool,
}

impl CallbackMemoryResource {
    /// Creates a resource from an allocating and a freeing function.
    ///
    /// By default, the resource is stream-ordered: the functions may [submit
    /// work](DeviceMemoryResource#layers-that-submit-work) on the stream of the call.
    /// [`not_stream_ordered`](Self::not_stream_ordered) changes this default. Also by default, only the
    /// device can access the memory. [`accessible_by`](Self::accessible_by) changes this default.
    ///
    /// # Safety
    /// The functions meet the contract of [`DeviceMemoryResource`] for memory of the driver's device. Any
    /// thread may call them.
    pub unsafe fn new(
        driver: DriverHandle,
        allocate: impl Fn(Layout, StreamRef) -> Result<DevicePtr> + Send + Sync + 'static,
        deallocate: impl Fn(DevicePtr, Layout, StreamRef) + Send + Sync + 'static,
    ) -> Self {
        Self {
            driver,
            allocate: Box::new(allocate),
            deallocate: Box::new(deallocate),
            accessibility: Accessibility::DEVICE,
            is_stream_ordered: true,
        }
    }

    /// Sets whether the device, the host, or both can access the memory directly.
    ///
    /// # Safety
    /// All blocks are accessible as `accessibility` says.
    #[must_use]
    pub unsafe fn accessible_by(self, accessibility: Accessibility) -> Self {
        Self { accessibility, ..self }
    }

    /// Declares that any stream may use a block as soon as the allocating function has returned it.
    ///
    /// # Safety
    /// Both functions synchronise with the device, as the functions of plain CUDA memory do. When a function
    /// returns, all work that the function has submitted is done.
    #[must_use]
    pub unsafe fn not_stream_ordered(self) -> Self {
        Self { is_stream_ordered: false, ..self }
    }
}

debug_as_text!(CallbackMemoryResource);

impl fmt::Display for CallbackMemoryResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("callback")
    }
}

// SAFETY: the functions keep the contract, as `new` requires.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for CallbackMemoryResource {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let fail =
            |error: Error| error.for_request(layout, stream).on_device(self.driver.device()).in_stack(self);
        if self.driver.health().is_lost() {
            return Err(fail(self.driver.health().error()));
        }
        if layout.rounded_bytes().is_none() {
            return Err(fail(Error::request_too_large(layout, stream)));
        }
        let reported = |error: Error| out_of_memory::reported(fail(error), &*self.driver, self.accessibility);
        let ptr = (self.allocate)(layout, stream).map_err(reported)?;
        if ptr.is_null() {
            return Err(reported(Error::out_of_memory(layout, stream)));
        }
        if !ptr.is_aligned_to(layout.alignment()) {
            (self.deallocate)(ptr, layout, stream);
            return Err(fail(Error::invalid_argument(format!(
                "the function returned {ptr}, but the address must be a multiple of {} bytes",
                layout.alignment()
            ))));
        }
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if !ptr.is_null() && !self.driver.health().is_lost() {
            (self.deallocate)(ptr, layout, stream);
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
        self.is_stream_ordered
    }

    fn accessibility(&self) -> Accessibility {
        self.accessibility
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        None
    }

    fn trim(&self, _keep_bytes: u64) -> Result<u64> {
        Ok(0)
    }

    fn provide(&self, traits: &mut Traits) {
        traits.share::<Self>();
    }
}
