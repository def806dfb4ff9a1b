//! The layer that records events, and its parameters in text.

use std::str::FromStr;
use std::sync::Arc;

use millpond_core::stack::{LayerBuilder, LayerEntry, LayerKind, Params};
use millpond_core::{Error, Layer, Result};

use super::RecordingResourceAdaptor;
use super::recorder::{RecordOptions, RecordStacks};

/// Puts a [`RecordingResourceAdaptor`] on top of a resource.
///
#[doc = include_str!("../../layers/recording.md")]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[must_use]
pub struct RecordingLayer(RecordOptions);

impl RecordingLayer {
    /// Creates a layer that keeps the last 100,000 events, without call stacks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many events the recorder keeps at most. Each event takes 64 bytes of host memory.
    pub fn events(mut self, events: usize) -> Self {
        self.0.events = events;
        self
    }

    /// Sets for which calls the recorder captures the call stack. Each capture takes some microseconds.
    pub fn stacks(mut self, stacks: RecordStacks) -> Self {
        self.0.stacks = stacks;
        self
    }
}

impl FromStr for RecordStacks {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = [Self::Off, Self::Live, Self::Allocations, Self::All];
        let found = known.into_iter().find(|stacks| stacks.name() == text);
        found.ok_or_else(|| Error::invalid_argument("write off, live, allocations or all"))
    }
}

impl RecordStacks {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Live => "live",
            Self::Allocations => "allocations",
            Self::All => "all",
        }
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "recording",
    about: "keeps the last events, with call stacks, for memory snapshots in PyTorch's format",
    params: &[
        ("events", "the most events to keep (default 100000)"),
        ("stacks", "the calls whose call stack is captured: off (the default), live, allocations or all"),
    ],
    kind: LayerKind::ReadLayer(read),
};

fn read<'a>(params: &Params<'a>) -> Result<LayerBuilder<'a>> {
    let mut layer = RecordingLayer::new().stacks(params.get("stacks")?.unwrap_or_default());
    if let Some(events) = params.get("events")? {
        layer = layer.events(events);
    }
    Ok(Box::new(move |upstream, _| Ok(Arc::new(layer.layer(upstream)?))))
}

impl<R: millpond_core::DeviceMemoryResource> Layer<R> for RecordingLayer {
    type Resource = RecordingResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(RecordingResourceAdaptor::new(upstream, self.0))
    }
}
