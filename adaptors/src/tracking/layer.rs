//! The layer that tracks allocations, and its parameters in text.

use std::str::FromStr;
use std::sync::Arc;

use millpond_core::stack::{LayerBuilder, LayerEntry, LayerKind, Params};
use millpond_core::{Error, Layer, Result};

/// Puts a [`TrackingResourceAdaptor`](super::TrackingResourceAdaptor) on top of a resource.
///
#[doc = include_str!("../../layers/tracking.md")]
#[derive(Clone, Copy, Default, Debug)]
pub struct TrackingLayer {
    pub(super) stacks: Stacks,
}

/// Selects whether the adaptor captures a backtrace for every allocation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Stacks {
    /// The adaptor captures no backtraces.
    #[default]
    Off,
    /// The adaptor captures a backtrace for each allocation, which takes microseconds. The addresses in a
    /// backtrace are resolved to names only when the backtrace is printed.
    On,
}

impl TrackingLayer {
    /// Creates a layer that tracks allocations without backtraces.
    pub const fn new() -> Self {
        Self { stacks: Stacks::Off }
    }

    /// Sets whether the adaptor captures a backtrace for every allocation.
    #[must_use]
    pub const fn stacks(mut self, stacks: Stacks) -> Self {
        self.stacks = stacks;
        self
    }
}

impl FromStr for Stacks {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            _ => Err(Error::invalid_argument("write on or off")),
        }
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "tracking",
    about: "records every live allocation, refuses unknown pointers, and reports leaks",
    params: &[("stacks", "on (a backtrace for every allocation) or off (the default)")],
    kind: LayerKind::ReadLayer(read),
};

fn read<'a>(params: &Params<'a>) -> Result<LayerBuilder<'a>> {
    let layer = TrackingLayer::new().stacks(params.get("stacks")?.unwrap_or_default());
    Ok(Box::new(move |upstream, _| Ok(Arc::new(layer.layer(upstream)?))))
}
