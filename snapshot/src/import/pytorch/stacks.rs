//! Interns the stacks of a snapshot: first by the shared value in the file, then by content.

use std::collections::HashMap;

use super::row::Row;
use crate::budget::{Budget, Exceeded};
use crate::import::pickle::{Value, Values};
use crate::recording::{Frame, Id, Recording};

/// The most frames of one stack that are read.
const MAX_FRAMES: usize = 2048;

/// The bytes of a map entry, including its share of free space, also while the map grows.
const MAP_ENTRY_BYTES: usize = 64;

/// The stacks and frames of a snapshot so far.
pub(super) struct Stacks {
    row: Row<3>,
    frames: HashMap<Value, Option<Id>>,
    /// By the content of a list, so that equal lists share one entry.
    stacks: HashMap<u64, Option<Id>>,
    open: Vec<Id>,
}

impl Stacks {
    pub(super) fn new() -> Self {
        Self {
            row: Row::new(["name", "filename", "line"]),
            frames: HashMap::default(),
            stacks: HashMap::default(),
            open: Vec::new(),
        }
    }

    /// Returns the stack of a list of frames; `None` if it has no frames.
    pub(super) fn stack(
        &mut self,
        values: &Values,
        list: Option<Value>,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<Option<Id>, Exceeded> {
        let Some(list) = list.filter(|list| list.is_list()) else { return Ok(None) };
        let content = values.content(list);
        if let Some(&known) = content.and_then(|content| self.stacks.get(&content)) {
            return Ok(known);
        }
        self.open.clear();
        for frame in values.items(list).take(MAX_FRAMES) {
            if let Some(frame) = self.frame(values, frame, recording, budget)? {
                self.open.push(frame);
            }
        }
        let stack = match self.open.as_slice() {
            [] => None,
            frames => Some(recording.add_stack(frames, budget)?),
        };
        if let Some(content) = content {
            budget.take(MAP_ENTRY_BYTES)?;
            self.stacks.insert(content, stack);
        }
        Ok(stack)
    }

    fn frame(
        &mut self,
        values: &Values,
        frame: Value,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<Option<Id>, Exceeded> {
        if let Some(&known) = self.frames.get(&frame) {
            return Ok(known);
        }
        let id = match self.row.of(values, frame) {
            Some([name, file, line]) => {
                let text = |value: Option<Value>| value.and_then(|value| values.as_text(value)).unwrap_or("");
                let line = line.and_then(|line| values.as_u64(line)).unwrap_or(0);
                let frame = Frame { function: text(name), file: text(file), line };
                Some(recording.add_frame(frame, budget)?)
            }
            None => None,
        };
        budget.take(MAP_ENTRY_BYTES)?;
        self.frames.insert(frame, id);
        Ok(id)
    }
}
