//! Makes a program of a recording.

use millpond_core::{DeviceId, DevicePtr};

use super::{Limits, Program, ProgramBuilder};
use crate::Result;
use crate::log::{Action, Event, LogError};
use crate::recording::{EventKind, Lane, Recording};

impl Program {
    /// Makes a program of the allocations, the frees and the failed requests of a recording. What was live
    /// before it began is allocated first. A line of the program is the number of the event, counted from 1.
    ///
    /// # Errors
    /// The recording has none of these, or the temporary file cannot be written.
    pub fn of(recording: &Recording, limits: Limits) -> Result<Self> {
        let mut builder = ProgramBuilder::new(limits);
        let device = if recording.is_simulated() { DeviceId::sim } else { DeviceId::cuda };
        for (number, event) in recording.events().enumerate() {
            let action = match event.kind {
                EventKind::Allocate => Action::Allocate,
                EventKind::Free => Action::Free,
                EventKind::AllocateFailure => Action::AllocateFailure,
                _ => continue,
            };
            let Lane { thread, stream, .. } = recording.lane(event);
            builder.push(&Event {
                line: number as u64 + 1,
                thread,
                action,
                pointer: DevicePtr::new(event.address),
                bytes: event.bytes,
                stream,
                alignment: 1 << event.alignment_log2.min(63),
                device: recording.device().map(device),
                sequence: None,
                monotonic_ns: None,
                duration_ns: None,
            })?;
        }
        let mut program = builder.finish()?;
        let summary = &mut program.summary;
        recording.file().clone_into(&mut summary.file);
        if summary.events == 0 {
            let file = summary.file.clone();
            let reason = "holds no allocation and no free: nothing to replay".to_owned();
            return Err(LogError { file, line: 0, column: None, reason }.into());
        }
        summary.imported_from = Some(recording.source().format.clone());
        let check = recording.check().filter(|check| !check.is_equal());
        let unequal = check.map(|check| {
            let why = check.first.as_deref().unwrap_or("counts differ");
            format!("the events do not lead to the state in the file: {why}")
        });
        let unknowns = recording.unknowns().iter().map(|unknown| unknown.text.clone());
        summary.not_known = unequal.into_iter().chain(unknowns).collect();
        Ok(program)
    }
}
