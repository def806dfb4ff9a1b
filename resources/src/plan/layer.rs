//! The layer `plan`, from code and from text.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millpond_core::stack::{FilePath, LayerEntry, LayerKind};
use millpond_core::{DeviceMemoryResource, Error, Layer, Result};
use millpond_planning::ProgramPlan;

use crate::plan::options::{DEFAULT_MS, DEFAULT_REPEAT, PlanOptions};
use crate::plan::{PlanMemoryResource, file};

/// Builds the layer `plan` from text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "plan",
    about: "learns the part of a program that repeats, and places its blocks as a plan says",
    params: &[
        ("file", "a plan to begin with, from `millpond-replay plan LOG -o FILE.plan` (default: none)"),
        ("repeat", "allocations over which a part has to repeat before it is planned (default 512)"),
        ("time", "milliseconds of search for each plan, at most (default 2000)"),
        (
            "background",
            "on: a thread of its own plans (default); off: the request that ends the repetition does",
        ),
        ("share", "on: streams that keep up with the host share memory; off: they do not (default)"),
    ],
    kind: LayerKind::ReadLayer(|params| {
        let milliseconds = params.get("time")?.unwrap_or(DEFAULT_MS);
        let repeat = params.get("repeat")?.unwrap_or(DEFAULT_REPEAT);
        let file = params.path("file")?;
        let is_on = |name, default| match params.text(name)?.unwrap_or(default) {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(Error::invalid_argument("write on or off")),
        };
        let (background, share) = (is_on("background", "on")?, is_on("share", "off")?);
        let time = Duration::from_millis(milliseconds);
        let options = PlanOptions { repeat, time, background, share, file: None };
        options.check()?;
        Ok(Box::new(move |upstream, _| {
            let path = |file: &FilePath| file.resolve(Some(upstream.driver().device()));
            let options = PlanOptions { file: file.as_ref().map(path).transpose()?, ..options };
            Ok(Arc::new(PlanMemoryResource::new(upstream, options)?))
        }))
    }),
};

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Puts the layer on `upstream`, with a plan to begin with. [`PlanOptions::file`] is not read.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for a plan with another alignment than
    /// 256.
    pub fn with_plan(upstream: R, options: PlanOptions, plan: &ProgramPlan) -> Result<Self> {
        let this = Self::new(upstream, PlanOptions { file: None, ..options })?;
        let followed = this.locked(|state| file::follow(&this.upstream, state, plan));
        followed.unwrap_or(Ok(())).map_err(Error::invalid_argument)?;
        Ok(this)
    }
}

/// Puts a [`PlanMemoryResource`] on top of a resource.
///
#[doc = include_str!("../../layers/plan.md")]
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct PlanLayer {
    options: PlanOptions,
    plan: Option<Arc<ProgramPlan>>,
}

impl PlanLayer {
    /// Returns a layer that plans what repeats over 512 allocations, for up to 2 seconds each time.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a layer that begins with the plan of a file. A relative path is relative to the directory of
    /// the process.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let options = PlanOptions { file: Some(path.into()), ..PlanOptions::default() };
        Self { options, plan: None }
    }

    /// Returns a layer that begins with a plan. The stack's text does not name it.
    ///
    /// ```
    /// use millpond_core::{DeviceMemoryResourceExt, StreamRef};
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    /// use millpond_resources::{CudaMemoryResource, PlanLayer, PoolLayer, ProgramPlan};
    ///
    /// let log = "07".repeat(32);
    /// let plan = format!(
    ///     "millpond plan 1\nlog sha256:{log}\nalignment 256\nstreams 1\nlane 1536\nbound 1536\n\
    ///      ratio 1.00000\nbeside 0\nallocations 2\nbytes stream life offset\n1024 0 2 0\n512 0 1 1024\n"
    /// );
    /// let plan = ProgramPlan::read(plan.as_bytes())?;
    /// let device = SimDevice::new(SimConfig::h200());
    /// let pool = CudaMemoryResource::new(device).layer(PoolLayer::new())?;
    /// let stack = pool.layer(PlanLayer::from_plan(plan))?;
    /// stack.allocate_bytes(1000, StreamRef::LEGACY)?;
    /// assert_eq!(stack.plan_statistics().served, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_plan(plan: ProgramPlan) -> Self {
        Self { options: PlanOptions::default(), plan: Some(Arc::new(plan)) }
    }

    /// Sets the allocations over which a part has to repeat.
    pub fn repeat(mut self, allocations: u32) -> Self {
        self.options.repeat = allocations;
        self
    }

    /// Sets the time of search for each plan.
    pub fn time(mut self, time: Duration) -> Self {
        self.options.time = time;
        self
    }

    /// Sets whether streams share memory ([`PlanOptions::share`]).
    pub fn share(mut self, is_on: bool) -> Self {
        self.options.share = is_on;
        self
    }

    /// Sets whether a thread of its own plans.
    pub fn background(mut self, is_on: bool) -> Self {
        self.options.background = is_on;
        self
    }
}

impl<R: DeviceMemoryResource> Layer<R> for PlanLayer {
    type Resource = PlanMemoryResource<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        match &self.plan {
            Some(plan) => PlanMemoryResource::with_plan(upstream, self.options, plan),
            None => PlanMemoryResource::new(upstream, self.options),
        }
    }
}
