//! Measures allocators of GPU memory, and the devices that they run on.
//!
//! | module | does |
//! |---|---|
//! | [`mod@bench`] | measures stacks of memory resources on neutral workloads |
//! | [`busy`] | replays logs with a kernel behind each allocation |
//! | [`calibrate`] | measures a device, for a simulated one like it |
//!
//! `millpond-replay`, the program, has a command for each.

pub mod bench;
pub mod busy;
pub mod calibrate;

/// The layers that the tests build stacks of.
#[cfg(test)]
fn layers() -> millpond_core::stack::LayerTable {
    let own = millpond_resources::LAYERS.iter().chain(millpond_adaptors::LAYERS);
    millpond_core::stack::LayerTable::new(own.copied())
}
