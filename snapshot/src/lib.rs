//! Reads recordings of GPU memory that programs made, and explains them.
//!
//! | module | does |
//! |---|---|
//! | [`import`] | reads recordings of other programs: snapshots, traces, logs, messages that memory ran out |
//! | [`recording`] | the one model of all of them, with stacks, pools, segments and a list of gaps |
//! | [`frames`] | tells whose code the frames of stacks are, and which line is the user's |
//! | [`explain`] | tells where memory is in a recording, and what would help |
//! | [`fidelity`] | tells how well the model of PyTorch's allocator predicts a recording |
//! | [`report`] | draws a recording on one page of HTML |
//! | [`export`] | writes a recording in the formats of other tools |
//! | [`gate`] | compares the memory of a recording with a budget |
//! | [`record`] | has the lines that make programs write such files |
//! | [`placement`] | tells how little memory a recording needs, and places its blocks |
//! | [`tune`] | finds the settings that need the least memory for a recording |
//! | [`peers`] | models of PyTorch's, RMM's and other allocators, as layers to compare with |
//!
//! The program `millpond-replay` has a command for each.
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
