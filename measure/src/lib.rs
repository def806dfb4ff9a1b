//! Measures GPU memory allocators, and the devices that they run on.
//!
//! | module | does |
//! |---|---|
//! | [`mod@bench`] | measures stacks of memory resources on synthetic workloads |
//! | [`busy`] | replays logs with a kernel after each allocation |
//! | [`calibrate`] | measures a device, to simulate one like it |
//!
//! The program `millpond-replay` has a command for each of these modules.

pub mod bench;
pub mod busy;
pub mod calibrate;

/// The layers for the stacks of the tests.
#[cfg(test)]
fn layers() -> millpond_core::stack::LayerTable {
    let own = millpond_resources::LAYERS.iter().chain(millpond_adaptors::LAYERS);
    millpond_core::stack::LayerTable::new(own.copied())
}
