//! Replays allocation logs through stacks of memory resources and compares the stacks.
//!
//! The binary `millpond-replay` is this library with a command line:
//!
//! | module | does |
//! |---|---|
//! | [`compare`] | replays a log through several stacks and collects the figures |
//! | [`lineup`] | the stacks that are compared if you name none |
//! | [`report`] | prints the figures as a table, JSON or CSV |
//! | [`cli`] | the whole command line, for programs with layers of their own |
//!
//! The command line also has commands of three other crates. [`millpond_engine`] reads a log and replays it
//! through one stack. [`millpond_snapshot`] reads and explains memory snapshots. [`millpond_measure`]
//! measures stacks and devices.
//!
//! ```
//! use millpond_engine::log::LogReader;
//! use millpond_engine::program::{Limits, Program};
//! use millpond_replay::compare::{self, Settings, StackResult};
//! use millpond_replay::progress::Progress;
//!
//! let log = "Thread,Time,Action,Pointer,Size,Stream\n\
//!            7,05:01:18.946606,allocate,0x7f00,1000,0\n\
//!            7,05:01:18.946609,free,0x7f00,1000,0\n";
//! let program = Program::read(LogReader::from_reader("example", log.as_bytes())?, Limits::default())?;
//! let settings = Settings::new("sim:h200".parse()?, vec!["cuda+pool".parse()?]);
//! let comparison = compare::compare(&program, &settings, &compare::layers(), &Progress::default())?;
//! let StackResult::Ran(figures) = &comparison.stacks[0].result else { panic!() };
//! assert_eq!((figures.operations, figures.failures), (2, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "cli")]
pub mod cli;
pub mod compare;
pub mod lineup;
pub mod progress;
pub mod report;
