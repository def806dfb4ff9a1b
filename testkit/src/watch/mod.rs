//! A layer that records on each thread which layer is being called. A watchdog names the innermost layer of a
//! call that does not return.
//!
//! ```
//! use std::time::Duration;
//!
//! use millpond_core::{AnyResource, DeviceMemoryResourceExt, DriverHandle, StreamRef};
//! use millpond_driver::sim::{SimConfig, SimDevice};
//! use millpond_testkit::canary::{CanaryPool, Wrong};
//! use millpond_testkit::watch::{self, Watched};
//!
//! let driver: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
//! let pool = CanaryPool::build(&driver, None)?;
//! let resource: AnyResource = Watched::new("canary", pool).into_any();
//! let _watched = watch::program(7, "canary");
//! let block = resource.allocate_bytes(256, StreamRef::LEGACY)?;
//! assert!(watch::hanging(Duration::from_secs(60)).is_none());
//! # // SAFETY: the block is live, unused, and given back with its size.
//! # unsafe { resource.deallocate_bytes(block, 256, StreamRef::LEGACY) };
//! # Ok::<(), millpond_core::Error>(())
//! ```

mod board;
mod layer;

pub use board::{Hang, Watch, Watchdog, call, hanging, program, step};
pub use layer::Watched;
