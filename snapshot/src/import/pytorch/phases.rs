//! The phases of a program that a snapshot names, in the order of time.

use crate::budget::{Budget, Exceeded};
use crate::import::pickle::{Value, Values};
use crate::recording::{Event, EventKind, Id, Recording};

use super::row::Row;

/// A start or an end of a phase.
#[derive(Clone, Copy, Debug)]
struct Mark {
    time: u64,
    kind: EventKind,
    tag: Id,
}

/// The starts and ends of phases that are still to come.
#[derive(Default, Debug)]
pub(super) struct Phases {
    marks: Vec<Mark>,
    next: usize,
}

impl Phases {
    /// Reads `external_annotations`.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn read(
        values: &Values,
        annotations: Option<Value>,
        device: u64,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<Self, Exceeded> {
        let mut marks = Vec::new();
        let mut row = Row::new(["name", "stage", "device", "time_us"]);
        for annotation in annotations.into_iter().flat_map(|list| values.items(list)) {
            let Some([name, stage, owner, time]) = row.of(values, annotation) else { continue };
            let text = |value: Option<Value>| value.and_then(|value| values.as_text(value));
            let (Some(name), Some(stage)) = (text(name), text(stage)) else { continue };
            let number = |value: Option<Value>| value.and_then(|value| values.as_u64(value));
            let Some(time) = number(time).and_then(|micros| micros.checked_mul(1000)) else { continue };
            if number(owner).is_some_and(|owner| owner != device) {
                continue;
            }
            let kind = match stage {
                "START" => EventKind::PhaseStart,
                "END" => EventKind::PhaseEnd,
                _ => continue,
            };
            budget.take(2 * size_of::<Mark>())?;
            marks.push(Mark { time, kind, tag: recording.add_tag(name, budget)? });
        }
        marks.sort_by_key(|mark| mark.time);
        Ok(Self { marks, next: 0 })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Adds the starts and ends of phases up to a time.
    pub(super) fn until(
        &mut self,
        time: u64,
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        while let Some(mark) = self.marks.get(self.next).filter(|mark| mark.time <= time) {
            let event = Event { raw_time: mark.time, tag: Some(mark.tag), ..Event::new(mark.kind) };
            recording.push(event, budget)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Adds the remaining starts and ends of phases.
    pub(super) fn rest(&mut self, recording: &mut Recording, budget: &mut Budget) -> Result<(), Exceeded> {
        self.until(u64::MAX, recording, budget)
    }
}
