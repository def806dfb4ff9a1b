//! Reads allocation logs and replays them through stacks of memory resources.
//!
//! The binary `millpond-replay` is this library with a command line. A log goes through it like this:
//!
//! | module | does |
//! |---|---|
//! | [`log`] | reads rows: RMM's CSV, plain, gzip or zstd |
//! | [`import`] | reads what other programs recorded: PyTorch's snapshots, minimalloc's CSV, Nsight Systems |
//! | [`recording`] | the one model of all of them, with stacks, pools, segments and what is not known |
//! | [`explain`] | says where memory is in a recording, and what would help |
//! | [`fidelity`] | says how well the model of PyTorch's allocator predicts a recording |
//! | [`export`] | writes a recording in the formats of other tools |
//! | [`gate`] | compares the memory of a recording with a budget |
//! | [`record`] | has the lines that make programs write such files |
//! | [`placement`] | says how little memory a recording needs, and places its blocks |
//! | [`tune`] | finds the settings with which a recording needs the least memory |
//! | [`program`] | turns rows into a compact program of operations, in bounded memory |
//! | [`engine`] | replays the program through a stack, on one thread or on many |
//! | [`compare`] | replays through several stacks and collects the figures |
//! | [`lineup`] | the stacks that are compared unless others are named |
//! | [`peers`] | models of PyTorch's allocator, RMM's and others, as layers to compare with |
//! | [`report`] | prints the figures as a table, JSON or CSV |
//! | [`cli`] | the whole command line, for programs with layers of their own |
//!
//! [`mod@bench`] needs no log: it measures stacks on neutral workloads. [`busy`] replays logs with a kernel
//! behind each allocation.
//! [`mod@calibrate`] measures a device, for a simulated one like it.
//!
//! ```
//! use millpond_replay::compare::{self, Settings, StackResult};
//! use millpond_replay::engine::Options;
//! use millpond_replay::log::LogReader;
//! use millpond_replay::program::{Limits, Program};
//! use millpond_replay::progress::Progress;
//!
//! let log = "Thread,Time,Action,Pointer,Size,Stream\n\
//!            7,05:01:18.946606,allocate,0x7f00,1000,0\n\
//!            7,05:01:18.946609,free,0x7f00,1000,0\n";
//! let program = Program::read(LogReader::from_reader("example", log.as_bytes())?, Limits::default())?;
//! let settings = Settings {
//!     device: "sim:h200".parse()?,
//!     stacks: vec!["cuda+pool".parse()?],
//!     options: Options::default(),
//! };
//! let comparison = compare::compare(&program, &settings, &compare::layers(), &Progress::default())?;
//! let StackResult::Ran(figures) = &comparison.stacks[0].result else { panic!() };
//! assert_eq!((figures.operations, figures.failures), (2, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bench;
mod blocks;
mod budget;
pub mod busy;
pub mod calibrate;
#[cfg(feature = "cli")]
pub mod cli;
pub mod compare;
mod device_figures;
pub mod engine;
mod error;
pub mod explain;
pub mod export;
pub mod fidelity;
pub mod gate;
pub mod import;
pub mod lineup;
pub mod log;
pub mod peers;
pub mod placement;
mod plain;
pub mod program;
pub mod progress;
pub mod record;
pub mod recording;
pub mod report;
pub mod tune;

pub use error::{Error, Result};
