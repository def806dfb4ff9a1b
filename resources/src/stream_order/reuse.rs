//! The option that selects the steps of the reuse ladder.

use std::fmt;
use std::str::FromStr;

use millpond_core::{Error, Result};

/// The ways in which a resource may reuse blocks that other streams have freed. Each way is a step that the
/// resource tries for a request. Three further steps cannot be turned off: it reuses blocks of the requesting
/// stream, grows, and synchronises with the device to reclaim blocks.
///
/// In a stack's text: `reuse=ordered/completed/waited` (the default), any of the three, or `reuse=own` for
/// none. The names in parentheses below are the names of CUDA's settings for the driver's pools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Reuse {
    /// Reuse a block of another stream if the requesting stream is already ordered after the block's free
    /// (follow event dependencies).
    pub ordered: bool,
    /// Reuse a block of another stream if the device has reached that stream's recorded event
    /// (opportunistic).
    pub completed: bool,
    /// If the pool cannot grow, make the requesting stream wait for another stream's event, and reuse that
    /// stream's blocks (internal dependencies).
    pub waited: bool,
}

impl Reuse {
    millpond_core::setters! { ordered: bool, completed: bool, waited: bool }

    /// All steps.
    pub const ALL: Self = Self { ordered: true, completed: true, waited: true };
    /// No way: a stream gets no blocks of other streams, unless memory is short.
    pub const OWN_STREAM: Self = Self { ordered: false, completed: false, waited: false };
}

impl Default for Reuse {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromStr for Reuse {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut reuse = Self::OWN_STREAM;
        for step in text.split('/') {
            match step.trim() {
                "ordered" => reuse.ordered = true,
                "completed" => reuse.completed = true,
                "waited" => reuse.waited = true,
                "own" => {}
                other => {
                    return Err(Error::invalid_argument(format!(
                        "there is no step `{other}`; write own, or some of ordered/completed/waited"
                    )));
                }
            }
        }
        Ok(reuse)
    }
}

impl fmt::Display for Reuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = [(self.ordered, "ordered"), (self.completed, "completed"), (self.waited, "waited")];
        let named: Vec<&str> = steps.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        f.write_str(if named.is_empty() { "own".to_owned() } else { named.join("/") }.as_str())
    }
}
