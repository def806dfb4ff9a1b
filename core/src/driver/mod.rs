//! Defines the interface to a device. Every call that millpond makes to CUDA goes through the trait
//! [`Driver`]. The crate `millpond-driver` implements it for CUDA and for the simulated device, so code that
//! uses the trait runs unchanged on both.

mod call;
mod capture;
mod defaults;
mod error;
mod health;
mod interface;
mod pools;
#[cfg(test)]
mod tests;
mod types;

use std::sync::Arc;

pub use call::{ask, call, has_attribute};
pub use capture::{CaptureModeGuard, is_capturing, record_unless_capturing};
pub use error::{DriverError, DriverResult};
pub use health::Health;
pub use interface::Driver;
pub use pools::{
    AccessLocation, FabricHandle, GraphMemAttribute, HandleTypes, MemAllocationType, MemLocation, MemPool,
    MemPoolAttribute, MemPoolProps, MemPoolPtrData,
};
pub use types::{
    AccessFlags, CaptureMode, DeviceAttribute, Event, EventFlags, HostFlags, HostPtr, IpcMemHandle,
    MemAdvice, MemoryInfo, MemoryKind, PhysicalHandle, PhysicalProps, StreamFlags,
};

/// A shared handle to a driver.
pub type DriverHandle = Arc<dyn Driver>;
