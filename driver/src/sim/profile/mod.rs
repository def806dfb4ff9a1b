//! The profile of a device: its size and the costs of its driver calls.
//!
//! | file | contents |
//! |---|---|
//! | `device` | the profile itself |
//! | `built_in` | the profiles that need no file |
//! | `file` | reading and writing profile files |
//! | `costs` | the costs, field by field as in a file |
//! | `curve` | a cost that depends on the size |
//! | `read`, `write` | profiles as TOML |
//! | `h100` | the costs of an H100, as in `driver/profiles/h100.toml` |
//! | `h200` | the costs of an H200, as in `driver/profiles/h200.toml` |

mod built_in;
mod costs;
mod curve;
mod device;
mod file;
#[rustfmt::skip]
mod h100;
#[rustfmt::skip]
mod h200;
#[cfg(feature = "profiles")]
mod read;
mod write;

pub use costs::{CallCosts, Costs, EventRecordCosts, PlainCosts, SetAccessCosts, SizeCosts, UnmapCosts};
pub use curve::Curve;
pub use device::Profile;
