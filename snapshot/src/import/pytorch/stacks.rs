//! Stores each call stack of a snapshot once. Compares call stacks first by the shared value in the file,
//! then by content.

use std::collections::HashMap;

use super::row::Row;
use super::traceback;
use crate::budget::{Budget, Exceeded};
use crate::import::pickle::{Value, Values};
use crate::recording::{Frame, Id, Recording};

/// The most frames of one call stack that are read.
const MAX_FRAMES: usize = 2048;

/// The most source frames that replace one frame of a compiled graph.
const MAX_ORIGINAL: usize = 64;

/// The bytes of a map entry, including the entry's share of the map's free space, also while the map grows.
const MAP_ENTRY_BYTES: usize = 64;

/// Separates the frames of the backward pass from the frames of the forward pass that belongs to it.
const FORWARD: Frame<'_> = Frame { function: "forward pass", file: "<backward of>", line: 0 };

/// The call stacks and frames of a snapshot that were read so far.
pub(super) struct Stacks {
    row: Row<4>,
    /// A frame, and the source frames that it was compiled from.
    frames: HashMap<Value, Box<[Id]>>,
    /// The call stack by the contents of two lists: the frames, and the lines of the forward pass. So equal
    /// lists share one entry.
    stacks: HashMap<(u64, Option<u64>), Option<Id>>,
    open: Vec<Id>,
}

impl Stacks {
    pub(super) fn new() -> Self {
        Self {
            row: Row::new(["name", "filename", "line", "fx_original_trace"]),
            frames: HashMap::default(),
            stacks: HashMap::default(),
            open: Vec::new(),
        }
    }

    /// Returns the call stack of a list of frames; `None` if the list has no frames.
    pub(super) fn stack(
        &mut self,
        values: &Values,
        list: Option<Value>,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<Option<Id>, Exceeded> {
        self.with_forward(values, (list, None), recording, budget)
    }

    /// Returns the call stack of a list of frames, and of a list of texts with the forward pass. Returns
    /// `None` if there are no frames.
    pub(super) fn with_forward(
        &mut self,
        values: &Values,
        (list, forward): (Option<Value>, Option<Value>),
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<Option<Id>, Exceeded> {
        let forward = forward.filter(|list| list.is_list());
        let list = list.filter(|list| list.is_list());
        if list.is_none() && forward.is_none() {
            return Ok(None);
        }
        let lists = list.map_or(Some(u64::MAX), |list| values.content(list));
        let content = lists.map(|list| (list, forward.and_then(|forward| values.content(forward))));
        if let Some(&known) = content.and_then(|content| self.stacks.get(&content)) {
            return Ok(known);
        }
        self.open.clear();
        for frame in list.into_iter().flat_map(|list| values.items(list)).take(MAX_FRAMES) {
            self.frame(values, frame, recording, budget)?;
        }
        if let Some(forward) = forward {
            self.forward(values, forward, recording, budget)?;
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

    /// Adds the frames of the forward pass. PyTorch lists them as Python prints them: the outermost first.
    fn forward(
        &mut self,
        values: &Values,
        lines: Value,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        let texts = values.items(lines).take(MAX_FRAMES).filter_map(|text| values.as_text(text));
        let found: Vec<Frame<'_>> = texts.flat_map(traceback::frames).take(MAX_FRAMES).collect();
        if found.is_empty() {
            return Ok(());
        }
        self.open.push(recording.add_frame(FORWARD, budget)?);
        for frame in found.into_iter().rev() {
            self.open.push(recording.add_frame(frame, budget)?);
        }
        Ok(())
    }

    /// Adds a frame, and the source frames that it was compiled from.
    fn frame(
        &mut self,
        values: &Values,
        frame: Value,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        if let Some(known) = self.frames.get(&frame) {
            self.open.extend(known);
            return Ok(());
        }
        let mut ids: Vec<Id> = Vec::new();
        if let Some([name, file, line, original]) = self.row.of(values, frame) {
            let text = |value: Option<Value>| value.and_then(|value| values.as_text(value)).unwrap_or("");
            let line = line.and_then(|line| values.as_u64(line)).unwrap_or(0);
            let frame = Frame { function: text(name), file: text(file), line };
            ids.push(recording.add_frame(frame, budget)?);
            for frame in traceback::frames(text(original)).rev().take(MAX_ORIGINAL) {
                ids.push(recording.add_frame(frame, budget)?);
            }
        }
        budget.take(MAP_ENTRY_BYTES + size_of_val(ids.as_slice()))?;
        self.open.extend(&ids);
        self.frames.insert(frame, ids.into());
        Ok(())
    }
}
