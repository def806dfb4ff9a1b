//! The layer `plan`, from code and from text.

use std::sync::Arc;
use std::time::Duration;

use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{DeviceMemoryResource, Layer, Result};

use crate::plan::PlanMemoryResource;
use crate::plan::options::{DEFAULT_MS, DEFAULT_REPEAT, PlanOptions};

/// Builds the layer `plan` from text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "plan",
    about: "learns the part of a program that repeats, and places its blocks as a plan says",
    params: &[
        ("repeat", "allocations over which a part has to repeat before it is planned (default 512)"),
        ("time", "milliseconds of search for each plan, at most (default 2000)"),
    ],
    kind: LayerKind::Layer(|params, upstream| {
        let milliseconds = params.get("time")?.unwrap_or(DEFAULT_MS);
        let repeat = params.get("repeat")?.unwrap_or(DEFAULT_REPEAT);
        let options = PlanOptions { repeat, time: Duration::from_millis(milliseconds) };
        Ok(Arc::new(PlanMemoryResource::new(upstream, options)?))
    }),
};

/// Puts a [`PlanMemoryResource`] on top of a resource.
///
#[doc = include_str!("../../layers/plan.md")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct PlanLayer(PlanOptions);

impl PlanLayer {
    /// Returns a layer that plans what repeats over 512 allocations, for up to 2 seconds each time.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the allocations over which a part has to repeat.
    pub fn repeat(mut self, allocations: u32) -> Self {
        self.0.repeat = allocations;
        self
    }

    /// Sets the time of search for each plan.
    pub fn time(mut self, time: Duration) -> Self {
        self.0.time = time;
        self
    }
}

impl<R: DeviceMemoryResource> Layer<R> for PlanLayer {
    type Resource = PlanMemoryResource<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        PlanMemoryResource::new(upstream, self.0)
    }
}
