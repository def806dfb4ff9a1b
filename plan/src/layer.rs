//! The layer `plan`, from code and from text.

use std::path::PathBuf;
use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{DeviceMemoryResource, Error, Layer, Result};
use millpond_planning::ProgramPlan;

use crate::file::ADVICE;
use crate::resource::PlanMemoryResource;

/// Builds the layer `plan` from text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "plan",
    about: "serves a program from a prepared plan of its allocations",
    params: &[("file", "the plan, from `millpond-replay plan LOG -o FILE.plan`; required")],
    kind: LayerKind::ReadLayer(|params| {
        let file = params.path("file")?.ok_or_else(|| {
            Error::invalid_stack(format!(
                "`plan` needs a file and no longer learns a plan; write plan:file=FILE.plan: {ADVICE}"
            ))
        })?;
        Ok(Box::new(move |upstream, _| {
            let path = file.resolve(Some(upstream.driver().device()))?;
            Ok(Arc::new(PlanMemoryResource::open(upstream, path)?))
        }))
    }),
};

/// A layer that puts a [`PlanMemoryResource`] on top of a resource.
///
#[doc = include_str!("../layers/plan.md")]
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct PlanLayer(Source);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Source {
    File(PathBuf),
    Plan(Arc<ProgramPlan>),
}

impl PlanLayer {
    /// Creates a layer that reads the plan from a file. A relative path is relative to the current directory
    /// of the process.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// Creates a layer that follows this plan. If you print the stack, its text does not name the plan.
    pub fn from_plan(plan: ProgramPlan) -> Self {
        Self(Source::Plan(Arc::new(plan)))
    }
}

impl<R: DeviceMemoryResource> Layer<R> for PlanLayer {
    type Resource = PlanMemoryResource<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        match self.0 {
            Source::File(path) => PlanMemoryResource::open(upstream, path),
            Source::Plan(plan) => PlanMemoryResource::new(upstream, &plan),
        }
    }
}
