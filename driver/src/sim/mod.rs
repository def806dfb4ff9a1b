//! Simulates a device. The simulated device is deterministic, and checks stream order.
//!
//! [`SimDevice`] implements [`Driver`](millpond_core::Driver). So all code that uses a driver runs on it
//! unchanged, on any machine. A simulated device consists of:
//!
//! - memory of a fixed size. The host allocates memory for the contents on the first write;
//! - streams, events and work. A virtual clock or a seeded adversary chooses the order in which work runs,
//!   among the orders that CUDA allows ([`Schedule`]);
//! - a virtual clock. A driver call takes no real time, but advances the clock by the time that the call
//!   takes on a real device ([`Profile`]);
//! - a plan that tells which calls fail ([`FaultPlan`]);
//! - an oracle, which checks stream order. The oracle records each broken rule as a [`Violation`]. It uses
//!   vector clocks to know which work runs before other work.
//!
//! A test reports each block that the resource under test allocates or frees, with [`lend`](SimDevice::lend)
//! and [`give_back`](SimDevice::give_back). The test submits the work of the block's users with
//! [`launch`](SimDevice::launch).
//!
//! If a program makes the same calls in the same order, it gets the same addresses, handles, answers and
//! violations in every process. [`SimDevice::trace_hash`] shows this. Two things differ between processes:
//! the addresses of managed and pinned memory, because they are real, and the ids of streams.
//!
//! ```
//! use millpond_core::driver::{Driver, StreamFlags};
//! use millpond_driver::sim::{Access, SimConfig, SimDevice, ViolationKind};
//!
//! let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
//! let block = device.mem_alloc(4096)?;
//! let a = device.stream_create(StreamFlags::NON_BLOCKING)?;
//! let b = device.stream_create(StreamFlags::NON_BLOCKING)?;
//!
//! device.lend(block, 4096, a);
//! device.launch(a, &[Access::write(block, 4096, 1)]);
//! device.give_back(block, 4096, a);
//! device.lend(block, 4096, b); // nothing orders `b` after the kernel on `a`
//! assert_eq!(device.violations()[0].kind, ViolationKind::StreamOrder);
//! # Ok::<(), millpond_core::DriverError>(())
//! ```
//!
//! # Source files
//! | file or folder | contents |
//! |---|---|
//! | `model` | the data of a device, each part with its rules |
//! | `model/order`, `model/clock` | which work happens before which, with the exact rule |
//! | `model/oracle`, `model/violation` | blocks, the history of memory, and reported violations |
//! | `model/work` | queues, schedules, kernels, copies and fills |
//! | `model/memory`, `model/host` | the bytes |
//! | `model/space`, `model/address`, `model/runs` | addresses, mappings, capacity |
//! | `model/capture_rules` | which calls a capture refuses |
//! | `state` | all parts of one device, behind its lock |
//! | `calls` | one file for each group of driver calls |
//! | `device`, `machine` | one device; several devices that reach each other's memory |
//! | `reset` | the state that survives a reset of the context |
//! | `harness` | the operations for tests |
//! | `call`, `driver_impl` | the common part of every driver call; the `Driver` in front of the device |
//! | `config`, `profile` | how a device is set up; the costs of its calls |

mod call;
mod calls;
mod config;
mod device;
mod driver_impl;
mod harness;
mod machine;
mod model;
mod profile;
mod reset;
mod state;

pub use config::{Schedule, SimConfig};
pub use device::{Observer, SimDevice};
pub(crate) use device::{find, first};
pub use machine::SimMachine;
pub use model::access::Access;
pub use model::fault::FaultPlan;
pub use model::violation::{Violation, ViolationKind};
pub use profile::{
    CallCosts, Costs, Curve, EventRecordCosts, PlainCosts, Profile, SetAccessCosts, SizeCosts, UnmapCosts,
};
