//! Containers over millpond's memory resources, and the streams and events that they need.
//!
//! | here | what it is |
//! |---|---|
//! | [`DeviceBuffer`] | a block of device memory that frees itself, in stream order |
//! | [`Stream`] | a stream that destroys itself |
//! | [`Event`] | an event that destroys itself |
//! | `CudaBuffer` | with the feature `cudarc`: values in device memory that go where a `CudaSlice` goes |
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "cudarc")]
mod cuda_buffer;
mod device_buffer;
mod event;
mod stream;
#[cfg(test)]
mod tests;

#[cfg(feature = "cudarc")]
pub use cuda_buffer::CudaBuffer;
pub use device_buffer::{DeviceBuffer, RawParts};
pub use event::Event;
pub use stream::Stream;
