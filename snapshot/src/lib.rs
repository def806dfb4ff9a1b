//! Reads recordings of the GPU memory that a program used, and explains them.
//!
//! | module | does |
//! |---|---|
//! | [`import`] | reads files of other programs: snapshots, traces, logs, out-of-memory messages |
//! | [`recording`] | the contents of such a file: events, call stacks, pools, segments, and a list of gaps |
//! | [`frames`] | finds out whose code each frame of a call stack is, and which line is the user's |
//! | [`explain`] | shows what uses the memory in a recording, and which changes would help |
//! | [`fidelity`] | measures how well the model of PyTorch's allocator predicts a recording |
//! | [`report`] | draws a recording on one page of HTML |
//! | [`export`] | writes a recording in the formats of other tools |
//! | [`gate`] | compares the memory of a recording with a budget |
//! | [`record`] | returns the lines to add to a program so that it writes such a file |
//! | [`placement`] | computes the least memory that a recording needs, and places its blocks |
//! | [`tune`] | finds the settings that need the least memory for a recording |
//! | [`peers`] | models of PyTorch's and RMM's allocators, as layers to compare with |
//!
//! The program `millpond-replay` has commands for these modules.
//!
//! ```
//! use millpond_snapshot::{explain, import};
//!
//! let csv = "id,lower,upper,size\na,0,10,4096\nb,5,20,1024\n";
//! let recording = import::read("example", csv.as_bytes(), &import::Options::default())?;
//! let explanation = explain::explain(&recording, None);
//! assert_eq!(recording.sums().peak_live_bytes, 5120);
//! assert!(!explanation.moments.is_empty());
//! # Ok::<(), millpond_engine::log::LogError>(())
//! ```

mod blocks;
mod budget;
pub mod explain;
pub mod export;
pub mod fidelity;
pub mod frames;
pub mod gate;
pub mod import;
pub mod peers;
pub mod placement;
pub mod record;
pub mod recording;
pub mod report;
pub mod tune;

/// The layers for the stacks of the tests.
#[cfg(test)]
fn layers() -> millpond_core::stack::LayerTable {
    let own = millpond_resources::LAYERS.iter().chain(millpond_plan::LAYERS);
    let own = own.chain(millpond_adaptors::LAYERS);
    millpond_core::stack::LayerTable::new(own.chain(peers::LAYERS).copied())
}
