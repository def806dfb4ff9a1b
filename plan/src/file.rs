//! Reads a plan from its file, and checks that the device has enough memory for it.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use millpond_core::{ALLOCATION_ALIGNMENT, DeviceMemoryResource, Error, ErrorKind, Result, format_bytes};
use millpond_planning::ProgramPlan;

use crate::following::Following;

/// How to get a plan.
pub(crate) const ADVICE: &str = "`millpond-replay plan LOG -o FILE.plan` makes a plan from a log";

/// Reads a plan from a file.
pub(crate) fn read(path: &Path) -> Result<ProgramPlan> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| {
        Error::new(ErrorKind::Io, format!("the plan {shown} cannot be opened; {ADVICE}")).caused_by(error)
    })?;
    ProgramPlan::read(BufReader::new(file))
        .map_err(|error| Error::invalid_argument(format!("the plan {shown}: {error}")))
}

/// Returns the plan in a form that the layer can follow from the next request on. Returns `None` if the
/// device has too little memory for the plan.
pub(crate) fn follow(upstream: &impl DeviceMemoryResource, plan: &ProgramPlan) -> Result<Option<Following>> {
    let parts = plan.parts();
    if parts.alignment != ALLOCATION_ALIGNMENT {
        let alignment = parts.alignment;
        let why =
            format!("the plan's alignment is {alignment} bytes, but it must be {ALLOCATION_ALIGNMENT} bytes");
        return Err(Error::invalid_argument(why));
    }
    let (log, needed) = (parts.log, parts.bytes());
    // If the upstream cannot report its free memory, the plan is tried.
    if let Ok(info) = upstream.memory_info()
        && info.free < needed
    {
        let (needed, free) = (format_bytes(needed), format_bytes(info.free));
        tracing::warn!(
            target: "millpond::plan", stack = %upstream, %log, needed, free,
            "too little free memory for the plan; the layer ignores the plan"
        );
        return Ok(None);
    }
    let allocations = parts.allocations.len();
    tracing::info!(
        target: "millpond::plan", stack = %upstream, %log, allocations, bytes = needed, "follows a plan"
    );
    Ok(Some(Following::new(plan)))
}
