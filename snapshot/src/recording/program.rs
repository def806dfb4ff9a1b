//! Makes a program, which can be replayed, from a recording.

use millpond_core::{DeviceId, DevicePtr};
use millpond_engine::Result;
use millpond_engine::log::{Action, Event, Flaws, LogError};
use millpond_engine::program::{Limits, Program, ProgramBuilder};

use super::{EventKind, Lane, Recording};

impl Recording {
    /// Makes a program from the recording's allocations, frees and failed requests. The program first
    /// allocates the blocks that were live before the recording began. The line number of a call is the
    /// number of its event, counted from 1.
    ///
    /// # Errors
    /// The recording has no such events, only sums, or only failed requests. Or the temporary file cannot be
    /// written.
    pub fn program(&self, limits: Limits) -> Result<Program> {
        self.require_blocks().map_err(|reason| LogError::new(self.file(), 0, reason))?;
        let mut builder = ProgramBuilder::new(limits);
        let device = if self.is_simulated() { DeviceId::sim } else { DeviceId::cuda };
        for (number, event) in self.events().enumerate() {
            let action = match event.kind {
                EventKind::Allocate => Action::Allocate,
                EventKind::Free => Action::Free,
                EventKind::AllocateFailure => Action::AllocateFailure,
                _ => continue,
            };
            let Lane { thread, stream, .. } = self.lane(event);
            let (line, pointer) = (number as u64 + 1, DevicePtr::new(event.address));
            let mut row = Event::new(line, thread, action, pointer, event.bytes, stream);
            row.alignment = 1 << event.alignment_log2.min(63);
            row.device = self.device().map(device);
            builder.push(&row)?;
        }
        let program = builder.finish()?;
        if program.summary().events == 0 {
            let reason = "holds no allocations and no frees: there is nothing to replay".to_owned();
            return Err(LogError::new(self.file(), 0, reason).into());
        }
        let check = self.check().filter(|check| !check.is_equal());
        let unequal = check.map(|check| {
            let why = check.first.as_deref().unwrap_or("counts differ");
            format!("the events contradict the memory state in the file: {why}")
        });
        let mut not_known: Vec<String> = self.unknowns().iter().map(|unknown| unknown.text.clone()).collect();
        // That the rest of the file is missing stays first.
        let at = usize::from(self.lacks(Flaws::REST_MISSING));
        not_known.splice(at..at, unequal);
        Ok(program.imported(self.file(), &self.source().format, not_known))
    }
}
