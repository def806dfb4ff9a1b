//! Begins with a plan that was made before the program runs.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceMemoryResource, Error, ErrorKind, Result, format_bytes};
use millpond_planning::ProgramPlan;

use crate::plan::body::Body;
use crate::plan::options::PlanOptions;
use crate::plan::running::Running;
use crate::plan::state::State;

/// Checks the options, and returns the state in which the program begins.
pub(crate) fn begin(upstream: &impl DeviceMemoryResource, options: &PlanOptions) -> Result<State> {
    options.check()?;
    let mut state = State::new(options.repeat as usize);
    if let Some(path) = &options.file {
        let shown = path.display();
        let plan = read(path)?;
        follow(upstream, &mut state, &plan)
            .map_err(|why| Error::invalid_argument(format!("the plan {shown}: {why}")))?;
    }
    Ok(state)
}

fn read(path: &Path) -> Result<ProgramPlan> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| {
        let advice = "write one with `millpond-replay plan LOG -o FILE.plan`";
        Error::new(ErrorKind::Io, format!("the plan {shown} cannot be opened; {advice}")).caused_by(error)
    })?;
    ProgramPlan::read(BufReader::new(file))
        .map_err(|error| Error::invalid_argument(format!("the plan {shown}: {error}")))
}

/// Follows a plan from the next request on, if the device has the memory for it.
pub(crate) fn follow(
    upstream: &impl DeviceMemoryResource,
    state: &mut State,
    plan: &ProgramPlan,
) -> std::result::Result<(), String> {
    let parts = plan.parts();
    if parts.alignment != ALLOCATION_ALIGNMENT {
        let alignment = parts.alignment;
        return Err(format!("its alignment is {alignment}, and that of requests {ALLOCATION_ALIGNMENT}"));
    }
    let (log, needed) = (parts.log, parts.bytes());
    // Without an answer the plan is tried.
    if let Ok(info) = upstream.memory_info()
        && info.free < needed
    {
        let (needed, free) = (format_bytes(needed), format_bytes(info.free));
        tracing::warn!(
            target: "millpond::plan", stack = %upstream, %log, needed, free,
            "no memory for a plan; it is left out"
        );
        return Ok(());
    }
    let allocations = parts.allocations.len();
    tracing::info!(
        target: "millpond::plan", stack = %upstream, %log, allocations, bytes = needed, "follows a plan"
    );
    state.counts.plans += 1;
    state.running = Some(Running::new(state.counts.plans, Body::of_plan(plan), None));
    Ok(())
}
