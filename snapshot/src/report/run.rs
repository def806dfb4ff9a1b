//! The page's data about one recording: columns of its blocks, and its stacks.

use std::collections::HashMap;
use std::io;

use millpond_planning::Block;
use serde::Serialize;

use super::Curve;
use super::pack::{Column, Pack};
use crate::frames::{Key, Part, UserStack};
use crate::placement::Placement;
use crate::recording::{Clock, EventKind, Id, Life, Recording};

/// One recording, in the form that the script reads.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    file: String,
    events: usize,
    clock: Clock,
    columns: Vec<Column>,
    /// The number of bytes in all address ranges that were ever used.
    height: f64,
    frames: Vec<String>,
    /// The frames of each stack, outermost first. A stack without frames has the reason for that.
    stacks: Vec<Vec<usize>>,
    /// The same with the user's frames, and one name for the folded ones of each owner.
    parts: Vec<Vec<usize>>,
    /// The group of each stack. The stacks of a group differ in folded frames only.
    groups: Vec<usize>,
    /// The first line of each group, with the path of its modules.
    leads: Vec<String>,
    /// The lines of each group that are not folded, outermost first.
    lines: Vec<String>,
    failures: Vec<Failure>,
    /// The names of the curves.
    curves: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Failure {
    event: usize,
    bytes: u64,
}

impl Run {
    /// Packs a recording.
    pub(super) fn new(
        recording: &Recording,
        placement: Option<&Placement>,
        curves: &[Curve],
        pack: &mut Pack,
    ) -> io::Result<Self> {
        let blocks = recording.block_lives();
        let segments = recording.segment_lives();
        let mut texts = Texts::default();
        let mut columns = lives("", &blocks, pack)?;
        let stacks = blocks.iter().map(|life| texts.stack(recording, life));
        columns.push(pack.u32s("stack", stacks)?);
        if !segments.is_empty() {
            columns.extend(lives("segment_", &segments, pack)?);
        }
        let mut height = 0.0;
        if has_addresses(recording) {
            let places = Places::of(blocks.iter().chain(&segments));
            height = places.height as f64;
            let y = |life: &Life| places.of_address(life.address);
            columns.push(pack.f64s("y", blocks.iter().map(y))?);
            if !segments.is_empty() {
                columns.push(pack.f64s("segment_y", segments.iter().map(y))?);
            }
        }
        if let Some(times) = times(recording) {
            columns.push(pack.f64s("time", times.into_iter())?);
        }
        if let Some(planned) = placement.and_then(planned) {
            columns.extend(lives("plan_", &planned, pack)?);
            columns.push(pack.f64s("plan_y", planned.iter().map(|life| life.address as f64))?);
        }
        for (at, curve) in curves.iter().enumerate() {
            let bytes = curve.bytes.iter().map(|&bytes| bytes as f64);
            columns.push(pack.f64s(&format!("curve_{at}"), bytes)?);
        }
        let failed =
            |(_, event): &(usize, &crate::recording::Event)| event.kind == EventKind::AllocateFailure;
        let failures = recording.events().enumerate().filter(failed);
        Ok(Self {
            file: recording.file().to_owned(),
            events: recording.len().max(1),
            clock: recording.clock(),
            columns,
            height,
            frames: texts.frames,
            stacks: texts.stacks,
            parts: texts.parts,
            groups: texts.groups,
            leads: texts.leads,
            lines: texts.lines,
            failures: failures.map(|(event, failed)| Failure { event, bytes: failed.bytes }).collect(),
            curves: curves.iter().map(|curve| curve.name.clone()).collect(),
        })
    }
}

/// Returns the lives of blocks at their planned offsets.
fn planned(placement: &Placement) -> Option<Vec<Life>> {
    let place = |&(block, offset): &(Block, u64)| Life {
        start: block.birth as usize,
        end: block.death as usize,
        address: offset,
        bytes: block.size,
        stack: None,
    };
    let mut lives: Vec<Life> = placement.placed()?.iter().map(place).collect();
    lives.sort_by_key(|life| life.start);
    Some(lives)
}

/// Packs the columns of lives: starts as differences, durations in events, bytes.
fn lives(prefix: &str, lives: &[Life], pack: &mut Pack) -> io::Result<Vec<Column>> {
    let mut last = 0;
    let starts = lives.iter().map(|life| {
        let step = life.start - last;
        last = life.start;
        step as u32
    });
    Ok(vec![
        pack.u32s(&format!("{prefix}start"), starts)?,
        pack.u32s(&format!("{prefix}life"), lives.iter().map(|life| (life.end - life.start) as u32))?,
        pack.f64s(&format!("{prefix}bytes"), lives.iter().map(|life| life.bytes as f64))?,
    ])
}

fn has_addresses(recording: &Recording) -> bool {
    !recording.unknowns().iter().any(|unknown| unknown.code == "addresses")
}

/// Returns the times of all events since the first one, as differences; `None` if there are none, or if they
/// are only event numbers. An event without a time has the time of the previous event.
fn times(recording: &Recording) -> Option<Vec<f64>> {
    let first = recording.events().find_map(|event| event.time())?;
    let mut latest = first;
    let times = recording.events().map(|event| {
        let before = latest;
        latest = event.time().unwrap_or(latest).max(latest);
        (latest - before) as f64
    });
    let times: Vec<f64> = times.collect();
    (latest > first).then_some(times)
}

/// Maps addresses to drawing positions; addresses that were never used are left out.
struct Places {
    /// The used ranges: the address, and the bytes in all earlier ranges.
    ranges: Vec<(u64, u64)>,
    height: u64,
}

impl Places {
    fn of<'a>(lives: impl Iterator<Item = &'a Life>) -> Self {
        let mut used: Vec<(u64, u64)> =
            lives.map(|life| (life.address, life.address.saturating_add(life.bytes))).collect();
        used.sort_unstable();
        let (mut ranges, mut height, mut covered) = (Vec::new(), 0_u64, None);
        for (from, to) in used {
            match covered {
                Some(end) if from <= end => {
                    height = height.saturating_add(to.saturating_sub(end));
                    covered = Some(end.max(to));
                }
                _ => {
                    ranges.push((from, height));
                    height = height.saturating_add(to - from);
                    covered = Some(to);
                }
            }
        }
        Self { ranges, height }
    }

    fn of_address(&self, address: u64) -> f64 {
        let at = self.ranges.partition_point(|&(from, _)| from <= address).checked_sub(1);
        at.map_or(0.0, |at| (self.ranges[at].1 + (address - self.ranges[at].0)) as f64)
    }
}

/// The stacks of blocks, and their frames, each once.
#[derive(Default)]
struct Texts<'a> {
    frames: Vec<String>,
    stacks: Vec<Vec<usize>>,
    parts: Vec<Vec<usize>>,
    groups: Vec<usize>,
    leads: Vec<String>,
    lines: Vec<String>,
    frame_numbers: HashMap<String, usize>,
    stack_numbers: HashMap<Result<Id, &'static str>, u32>,
    group_numbers: HashMap<Result<Key<'a>, &'static str>, usize>,
}

impl<'a> Texts<'a> {
    /// Returns the number of the stack of a block.
    fn stack(&mut self, recording: &'a Recording, life: &Life) -> u32 {
        let stack = life.stack.ok_or_else(|| recording.without_stack(life.start));
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

    /// Notes the group of the last stack.
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
