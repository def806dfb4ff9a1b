//! Provides the drivers of millpond: CUDA, loaded at run time, and the simulated device.
//!
//! | item | purpose |
//! |---|---|
//! | [`cuda`] | the real driver, loaded at run time; a missing driver is an error, never a panic |
//! | [`sim`] | a deterministic simulated device that checks stream order |
//! | [`CountingDriver`] | wraps any driver, and counts its calls and their time by kind |
//! | [`open`], [`find`], [`current`], [`DeviceSpec`] | return a driver |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod counting;
pub mod cuda;
mod current;
mod device_spec;
mod environment;
#[doc(hidden)] // for the pools
pub mod nvtx;
mod own;
mod plain;
mod registry;
pub mod sim;
mod thread_device;

pub use counting::{CallCounts, CallKind, CountingDriver, KindCounts};
pub use current::CurrentDeviceGuard;
pub use device_spec::DeviceSpec;
pub use own::register;
pub use registry::{current, current_device, find, open};
