#![doc = include_str!("../README.md")]
//!
//! # Where things are
//! Everything here is re-exported from the crates of the workspace; this crate has no logic of its own.

pub use millpond_adaptors as adaptors;
pub use millpond_containers as containers;
pub use millpond_core as core;
pub use millpond_driver as driver;
pub use millpond_plugin as plugin;
pub use millpond_resources as resources;

pub use millpond_core::*;

/// Every layer that a stack's text can name.
pub fn layers() -> stack::LayerTable {
    stack::LayerTable::new(resources::LAYERS.iter().copied()).with(adaptors::LAYERS.iter().copied())
}
