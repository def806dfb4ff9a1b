//! The option that selects the steps of the reuse ladder.

use std::fmt;
use std::str::FromStr;

use millpond_core::{Error, Result};

/// Selects the methods by which a resource may reuse blocks that other streams have freed.
///
/// A resource tries several steps to serve a request. Each field turns one of these steps on or off. Three
/// further steps are always on: the resource reuses blocks of the requesting stream, grows, and synchronises
/// with the device to reclaim blocks.
///
/// In the text of a stack: `reuse=ordered/completed/waited` (the default), one or two of these words, or
/// `reuse=own` for none. The driver's own pools have similar settings. The fields below name these settings
/// in parentheses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Reuse {
    /// Whether the resource may reuse a block of another stream if the requesting stream is already ordered
    /// after the block's free (follow event dependencies).
    pub ordered: bool,
    /// Whether the resource may reuse a block of another stream if the device has reached the event that was
    /// recorded after the block's free (opportunistic).
    pub completed: bool,
    /// Whether the resource may make the requesting stream wait for another stream's event, to reuse blocks
    /// of that stream (internal dependencies). The resource tries this only if it cannot grow.
    pub waited: bool,
}

impl Reuse {
    millpond_core::setters! { ordered: bool, completed: bool, waited: bool }

    /// All three methods are on.
    pub const ALL: Self = Self { ordered: true, completed: true, waited: true };
    /// All three methods are off. A stream gets blocks of other streams only if memory is short.
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
                        "`{other}` is no way to reuse blocks; write own, or some of ordered/completed/waited"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_is_written_as_it_is_read() {
        for [ordered, completed, waited] in (0..8).map(|bits: u8| [1, 2, 4].map(|bit| bits & bit != 0)) {
            let reuse = Reuse { ordered, completed, waited };
            assert_eq!(reuse.to_string().parse::<Reuse>().expect("it can be read"), reuse);
        }
        assert_eq!(Reuse::OWN_STREAM.to_string(), "own");
    }
}
