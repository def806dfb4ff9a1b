//! Seeded programs of operations over many streams. A program runs against a resource on the simulated
//! device, and oracles check the rules of the contract. If a program fails, it is shrunk.
//!
//! | oracle | checked by |
//! |---|---|
//! | 1 no overlap, 2 in bounds and aligned | the simulated device, and the [shadow](crate::shadow) |
//! | 3 a stream gets a block after every release of it | the simulated device, by clocks and by data |
//! | 4 no dead stream or event is named, 7 waits are on recorded events | the simulated device |
//! | 5 statistics show the bytes taken from upstream | here, against the device's live bytes |
//! | 6 an out-of-memory error is true | here: after synchronising and trimming, the request fails again |
//! | 8 statistics equal the shadow's | here |
//! | 9 memory goes back to the driver after all use | the simulated device |
//!
//! ```
//! use millpond_driver::sim::{SimConfig, SimDevice};
//! use millpond_testkit::canary::{CanaryPool, Wrong};
//! use millpond_testkit::program::{self, Config};
//!
//! let config = Config::new("canary");
//! let correct = |driver: &_| CanaryPool::build(driver, None);
//! let wrong = |driver: &_| CanaryPool::build(driver, Some(Wrong::StealWithoutWait));
//! assert!((0..20).all(|seed| program::run(seed, &config, &correct).is_ok()));
//! let failure = (0..20).find_map(|seed| program::run(seed, &config, &wrong).err()).unwrap();
//! let shrunk = program::shrink(*failure, &config, &wrong);
//! assert!(shrunk.operations.len() < 12, "{shrunk}");
//! ```

mod broken;
mod capture;
mod config;
mod ending;
mod execute;
mod execution;
mod failure;
mod generate;
mod graphs;
mod habits;
mod launches;
mod misuse;
mod op;
mod oracle;
mod order;
mod pieces;
mod run;
mod scope;
mod session;
mod shrink;
mod source;
mod summary;
mod sweep;
mod worker;

pub use config::{Build, Config, NewScope, OnCapture, ScopeOfGraphs};
pub use failure::{Failure, FailureKind};
pub use habits::Habits;
pub use op::{Block, Event, MAX_EVENTS, MAX_SCOPES, MAX_STREAMS, Mistake, Op, Scope, Stream};
pub use run::{replay, run};
pub use shrink::shrink;
pub use summary::Summary;
pub use sweep::{Case, Sweep, sweep, sweep_cases};

pub use crate::statistics_check::StatisticsCheck;
