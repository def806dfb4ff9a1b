//! Containers over millpond's memory resources, and the streams and events that they need.
//!
//! | here | what it is |
//! |---|---|
//! | [`DeviceBuffer`] | a block of device memory that frees itself, in stream order |
//! | [`DeviceVec`] | values of one type in device memory |
//! | [`DeviceScalar`] | one value in device memory |
//! | [`HostStaging`], [`HostCopy`] | pinned memory of the host, through which asynchronous copies go |
//! | [`Stream`], [`BorrowedStream`] | a stream that destroys itself, and one that another value owns |
//! | [`StreamPool`] | streams that are handed out in turn |
//! | [`Event`] | an event that destroys itself |
//! | [`DeviceGuard`] | makes a device the thread's current one for a while |
//! | [`prefetch`] | moves managed memory; buffers and vectors have a method |
//! | [`available_device_memory`], [`percent_of_free_device_memory`] | what the current device has free |
//! | [`StreamAllocator`] | a resource together with the stream that it is used on |
//! | `HostAllocator` | with the feature `allocator-api2`: collections of the host in memory of a resource |
//! | `CudaBuffer` | with the feature `cudarc`: values in device memory that go where a `CudaSlice` goes |
//! | `CudaBufferView`, `CudaBufferViewMut` | with the feature `cudarc`: a part of one, for such calls |
//! | `AdoptedSlice` | with the feature `cudarc`: memory of a `CudaSlice` that a container took over |
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "cudarc")]
mod adopted_slice;
mod borrowed_stream;
#[cfg(feature = "cudarc")]
mod conversion_error;
#[cfg(feature = "cudarc")]
mod cuda_buffer;
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
