//! The call stacks of blocks, and their frames. Each of them is stored once.

use std::collections::HashMap;

use serde::Serialize;

use crate::frames::{Key, Part, UserStack};
use crate::recording::{Id, Recording};

/// The stacks of blocks, and their frames, each once.
#[derive(Debug, Default, Serialize)]
pub(super) struct Texts<'a> {
    frames: Vec<String>,
    /// The frames of each call stack, the outermost first. If a call stack has no frames, it has the reason
    /// for that.
    stacks: Vec<Vec<usize>>,
    /// The same call stacks with the user's frames only. The folded frames of each owner have one name.
    parts: Vec<Vec<usize>>,
    /// The group of each call stack. The call stacks of a group differ in folded frames only.
    pub(super) groups: Vec<usize>,
    /// The first line of each group, with the path of its modules.
    leads: Vec<String>,
    /// The lines of each group that are not folded, the outermost first.
    lines: Vec<String>,
    #[serde(skip)]
    frame_numbers: HashMap<String, usize>,
    #[serde(skip)]
    stack_numbers: HashMap<Result<Id, &'static str>, u32>,
    #[serde(skip)]
    group_numbers: HashMap<Result<Key<'a>, &'static str>, usize>,
}

impl<'a> Texts<'a> {
    /// Returns the number of the call stack of a block that the event `start` allocated.
    pub(super) fn stack(&mut self, recording: &'a Recording, stack: Option<Id>, start: usize) -> u32 {
        let stack = stack.ok_or_else(|| recording.without_stack(start));
        if let Some(&number) = self.stack_numbers.get(&stack) {
            return number;
        }
        let number = self.stacks.len() as u32;
        self.stack_numbers.insert(stack, number);
        match stack {
            Ok(stack) => self.add(recording, &recording.user_stack(stack)),
            Err(reason) => {
                let frame = self.frame(reason.to_owned());
                self.stacks.push(vec![frame]);
                self.parts.push(vec![frame]);
                self.group(Err(reason), || (reason.to_owned(), reason.to_owned()));
            }
        }
        number
    }

    fn add(&mut self, recording: &'a Recording, stack: &UserStack<'a>) {
        let folder = recording.user_folder();
        let all = stack.frames().iter().rev();
        let all = all.map(|(frame, _)| format!("{} ({}:{})", frame.function, frame.file, frame.line));
        let all: Vec<usize> = all.map(|text| self.frame(text)).collect();
        self.stacks.push(all);
        let parts: Vec<(String, bool)> = stack
            .parts()
            .into_iter()
            .map(|part| match part {
                Part::Frame(at) => (stack.text(at, folder), true),
                Part::Folded(name) => (name, false),
            })
            .collect();
        let numbers = parts.iter().map(|(text, _)| self.frame(text.clone())).collect();
        self.parts.push(numbers);
        self.group(Ok(stack.key()), || {
            let backward = if stack.is_in_backward() { ", in backward" } else { "" };
            let modules = stack.module_path().map_or(String::new(), |path| format!("  ({path})"));
            let lead = format!("{}{backward}{modules}", stack.lead(folder));
            let lines: Vec<&str> =
                parts.iter().filter(|(_, is_frame)| *is_frame).map(|(text, _)| text.as_str()).collect();
            let lines = if lines.is_empty() { lead.clone() } else { lines.join("\n") };
            (lead, lines)
        });
    }

    /// Stores the group of the last call stack.
    fn group(&mut self, key: Result<Key<'a>, &'static str>, texts: impl FnOnce() -> (String, String)) {
        let next = self.leads.len();
        let group = *self.group_numbers.entry(key).or_insert(next);
        if group == next {
            let (lead, lines) = texts();
            self.leads.push(lead);
            self.lines.push(lines);
        }
        self.groups.push(group);
    }

    fn frame(&mut self, text: String) -> usize {
        let next = self.frames.len();
        *self.frame_numbers.entry(text).or_insert_with_key(|text| {
            self.frames.push(text.clone());
            next
        })
    }
}
