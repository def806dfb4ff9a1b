//! The memory that captured graphs allocate in nodes of their own.

use millpond_core::driver::{CaptureModeGuard, Driver, DriverResult, GraphMemAttribute, call};
use millpond_core::{DriverHandle, Result};

/// The memory that the graphs of a device allocate in their own nodes.
///
/// A program that calls `cuMemAllocAsync` while it captures a graph puts an allocation node into the graph.
/// The driver keeps the memory of such nodes apart from the pools, also after the graph has run. No resource
/// of this crate makes such nodes; see [Graph captures](super#graph-captures).
///
/// ```
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::memory_pool::GraphMemory;
///
/// let graphs = GraphMemory::of(SimDevice::new(SimConfig::h200()));
/// assert_eq!((graphs.used_bytes()?, graphs.reserved_bytes()?), (0, 0));
/// graphs.trim()?;
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GraphMemory(DriverHandle);

impl GraphMemory {
    /// Returns the counts of the driver's device.
    pub fn of(driver: DriverHandle) -> Self {
        Self(driver)
    }

    /// Returns the number of bytes that graphs use now.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn used_bytes(&self) -> Result<u64> {
        self.get(GraphMemAttribute::UsedMemCurrent)
    }

    /// Returns the highest number of bytes that graphs used.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn used_high(&self) -> Result<u64> {
        self.get(GraphMemAttribute::UsedMemHigh)
    }

    /// Returns the number of bytes that the driver reserves for graphs now.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn reserved_bytes(&self) -> Result<u64> {
        self.get(GraphMemAttribute::ReservedMemCurrent)
    }

    /// Returns the highest number of bytes that the driver reserved for graphs.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn reserved_high(&self) -> Result<u64> {
        self.get(GraphMemAttribute::ReservedMemHigh)
    }

    /// Resets both highs to the bytes of now.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn reset_highs(&self) -> Result<()> {
        let reset = |attribute| self.call(|driver| driver.device_reset_graph_mem_attribute(attribute));
        reset(GraphMemAttribute::UsedMemHigh)?;
        reset(GraphMemAttribute::ReservedMemHigh)
    }

    /// Releases the memory that the driver reserves for graphs and no graph uses.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn trim(&self) -> Result<()> {
        self.call(|driver| driver.device_graph_mem_trim())
    }

    fn get(&self, attribute: GraphMemAttribute) -> Result<u64> {
        self.call(|driver| driver.device_get_graph_mem_attribute(attribute))
    }

    fn call<T>(&self, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> Result<T> {
        let _captures = CaptureModeGuard::relaxed(&*self.0);
        call(&*self.0, body)
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::StreamRef;
    use millpond_core::driver::{CaptureMode, StreamFlags};
    use millpond_core::{DeviceMemoryResourceExt, DriverError};
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::{CudaAsyncMemoryResource, CudaAsyncOptions};

    /// A pool serves a capture outside of the graph: the graph gets no node, and its memory no bytes.
    #[test]
    fn a_pool_puts_no_allocation_into_a_graph() {
        let device = SimDevice::new(SimConfig::h200());
        let graphs = GraphMemory::of(device.clone());
        let pool = CudaAsyncMemoryResource::new(device.clone(), CudaAsyncOptions::default()).unwrap();
        let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        device.begin_capture(stream, CaptureMode::Global).unwrap();
        let ptr = pool.allocate_bytes(1 << 20, stream).unwrap();
        // SAFETY: the block came from this resource, and nothing uses it.
        unsafe { pool.deallocate_bytes(ptr, 1 << 20, stream) };
        assert_eq!(device.captured_work(stream), Vec::<String>::new());
        // A query ends no capture.
        assert_eq!((graphs.used_high().unwrap(), graphs.reserved_high().unwrap()), (0, 0));
        device.end_capture(stream).unwrap();
        graphs.reset_highs().unwrap();
        graphs.trim().unwrap();
        let refused = device.device_reset_graph_mem_attribute(GraphMemAttribute::UsedMemCurrent);
        assert_eq!(refused.unwrap_err().code(), DriverError::INVALID_VALUE);
        let again = pool.allocate_bytes(1 << 20, StreamRef::LEGACY).unwrap();
        // SAFETY: as above.
        unsafe { pool.deallocate_bytes(again, 1 << 20, StreamRef::LEGACY) };
    }
}
