//! Provides containers that allocate from millpond's memory resources, and the streams and events that
//! containers need.
//!
//! | here | meaning |
//! |---|---|
//! | [`DeviceBuffer`] | a block of device memory that frees itself in stream order |
//! | [`DeviceVec`] | values of one type in device memory |
//! | [`DeviceScalar`] | one value in device memory |
//! | [`HostStaging`], [`HostCopy`] | pinned host memory for asynchronous copies |
//! | [`Stream`], [`BorrowedStream`] | a stream that destroys itself, and a stream that something else owns |
//! | [`StreamPool`] | a fixed number of streams, lent in turn |
//! | [`Event`] | an event that destroys itself |
//! | [`DeviceGuard`] | makes a device current on the thread until it is dropped |
//! | [`prefetch`] | moves managed memory; buffers and vectors also have a method for it |
//! | [`available_device_memory`], [`percent_of_free_device_memory`] | the free memory of the current device |
//! | [`StreamAllocator`] | a resource together with a stream |
//! | `HostAllocator` | with the feature `allocator-api2`: host collections in a resource's memory |
//! | `CudaBuffer` | with the feature `cudarc`: values in device memory that cudarc accepts as a `CudaSlice` |
//! | `CudaBufferView`, `CudaBufferViewMut` | with the feature `cudarc`: a part of such values |
//! | `use_pool_in_cudarc` | with the feature `cudarc`: makes cudarc allocate from a configured driver pool |
//! | `AdoptedSlice` | with the feature `cudarc`: the memory of a `CudaSlice` that a container took over |
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "cudarc")]
mod adopted_slice;
mod borrowed_stream;
#[cfg(feature = "cudarc")]
mod conversion_error;
#[cfg(feature = "cudarc")]
mod cuda_buffer;
#[cfg(feature = "cudarc")]
mod cuda_events;
#[cfg(feature = "cudarc")]
mod cuda_pool;
#[cfg(feature = "cudarc")]
mod cuda_stream;
#[cfg(feature = "cudarc")]
mod cuda_view;
mod device_buffer;
mod device_memory;
mod device_scalar;
mod device_vec;
mod event;
#[cfg(feature = "allocator-api2")]
mod host_allocator;
#[cfg(feature = "cudarc")]
mod kernel_argument;
mod staging;
mod stream;
mod stream_allocator;
mod stream_pool;
#[cfg(test)]
mod tests;

pub use millpond_driver::CurrentDeviceGuard as DeviceGuard;

#[cfg(feature = "cudarc")]
pub use adopted_slice::AdoptedSlice;
pub use borrowed_stream::BorrowedStream;
#[cfg(feature = "cudarc")]
pub use conversion_error::ConversionError;
#[cfg(feature = "cudarc")]
pub use cuda_buffer::CudaBuffer;
#[cfg(feature = "cudarc")]
pub use cuda_pool::use_pool_in_cudarc;
#[cfg(feature = "cudarc")]
pub use cuda_view::{CudaBufferView, CudaBufferViewMut};
pub use device_buffer::{DeviceBuffer, RawParts};
pub use device_memory::{PrefetchTo, available_device_memory, percent_of_free_device_memory, prefetch};
pub use device_scalar::DeviceScalar;
pub use device_vec::DeviceVec;
pub use event::Event;
#[cfg(feature = "allocator-api2")]
pub use host_allocator::HostAllocator;
pub use staging::{HostCopy, HostStaging};
pub use stream::Stream;
pub use stream_allocator::StreamAllocator;
pub use stream_pool::StreamPool;
