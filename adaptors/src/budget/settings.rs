//! The settings of a budget, as Rust or a stack's text gives them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use millpond_core::stack::LayerSpec;
use millpond_core::{ByteSize, Error, Result};

use crate::timeout::{DEFAULT_TIMEOUT, Timeout};

/// When a budget clears memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Zero {
    /// Never. This is the default.
    #[default]
    Off,
    /// When a block comes from the layer below. The budget fills the block with zeros on the stream of the
    /// request, before it returns the block.
    Handover,
}

impl FromStr for Zero {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(Self::Off),
            "handover" => Ok(Self::Handover),
            _ => Err(Error::invalid_argument("write off or handover")),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) limit: ByteSize,
    pub(crate) guaranteed: ByteSize,
    pub(crate) parent: Option<String>,
    pub(crate) priority: u32,
    pub(crate) wait: Duration,
    pub(crate) zero: Zero,
}

impl Settings {
    pub(crate) const NO_GUARANTEE: ByteSize = ByteSize::Bytes(0);

    pub(crate) fn new(name: String, limit: ByteSize) -> Self {
        Self {
            name,
            limit,
            guaranteed: Self::NO_GUARANTEE,
            parent: None,
            priority: 0,
            wait: DEFAULT_TIMEOUT,
            zero: Zero::Off,
        }
    }
}

/// Prints the layer, with the options that are not the defaults.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut layer =
            LayerSpec::new("budget").with("name", self.name.as_str()).with("limit", self.limit.to_string());
        if let Some(parent) = &self.parent {
            layer = layer.with("parent", parent.as_str());
        }
        for (key, value, is_default) in [
            ("guaranteed", self.guaranteed.to_string(), self.guaranteed == Self::NO_GUARANTEE),
            ("priority", self.priority.to_string(), self.priority == 0),
            ("wait", Timeout(self.wait).to_string(), self.wait == DEFAULT_TIMEOUT),
            ("zero", "handover".to_owned(), self.zero == Zero::Off),
        ] {
            if !is_default {
                layer = layer.with(key, value);
            }
        }
        layer.fmt(f)
    }
}
