//! Containers over millpond's memory resources, and what they are used with.
//!
//! | here | what it is |
//! |---|---|
//! | [`DeviceBuffer`] | a block of device memory that frees itself, in stream order |
//! | [`Stream`] | a stream that destroys itself |
//! | [`Event`] | an event that destroys itself |

mod device_buffer;
mod event;
mod stream;
#[cfg(test)]
mod tests;

pub use device_buffer::{DeviceBuffer, RawParts};
pub use event::Event;
pub use stream::Stream;
