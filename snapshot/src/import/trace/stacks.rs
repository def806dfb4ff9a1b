//! Finds the calls that were open when a thread allocated memory.

use std::collections::HashMap;

use crate::budget::{Budget, Exceeded};
use crate::recording::{Frame, Id, Recording};

/// The most open calls that are kept for a call stack.
const MOST_FRAMES: usize = 512;

/// A call of a Python function or of an operator.
#[derive(Clone, Copy, Debug)]
struct Span {
    thread: u64,
    start: i64,
    end: i64,
    frame: Id,
}

/// The calls of a trace.
#[derive(Default)]
pub(super) struct Stacks {
    spans: Vec<Span>,
}

impl Stacks {
    /// Returns whether the trace has no calls.
    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Adds a call with its name in the trace. The times are in nanoseconds.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn add(
        &mut self,
        name: &str,
        thread: u64,
        (start, end): (i64, i64),
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        let frame = recording.add_frame(frame(name), budget)?;
        budget.take(3 * size_of::<Span>())?;
        self.spans.push(Span { thread, start, end, frame });
        Ok(())
    }

    /// Returns the call stacks at the given moments. Each moment is a thread and a time. The moments of one
    /// thread are in the order of their times.
    ///
    /// # Errors
    /// The budget is used up.
    pub(super) fn at(
        mut self,
        moments: &[(u64, i64)],
        recording: &mut Recording,
        budget: &mut Budget,
    ) -> Result<Vec<Option<Id>>, Exceeded> {
        self.spans.sort_by_key(|span| (span.thread, span.start, std::cmp::Reverse(span.end)));
        budget.take(2 * size_of_val(moments))?;
        let mut order: Vec<usize> = (0..moments.len()).collect();
        order.sort_by_key(|&at| moments[at]);
        let mut stacks = vec![None; moments.len()];
        let mut known: HashMap<Vec<Id>, Id> = HashMap::new();
        let (mut next, mut open): (usize, Vec<Span>) = (0, Vec::new());
        for at in order {
            let (thread, time) = moments[at];
            while let Some(span) =
                self.spans.get(next).filter(|span| (span.thread, span.start) <= (thread, time))
            {
                open.retain(|outer| outer.thread == span.thread && outer.end > span.start);
                if open.len() < MOST_FRAMES {
                    open.push(*span);
                }
                next += 1;
            }
            open.retain(|span| span.thread == thread && span.end >= time);
            let frames: Vec<Id> = open.iter().rev().map(|span| span.frame).collect();
            if frames.is_empty() {
                continue;
            }
            let stack = match known.get(&frames) {
                Some(&stack) => stack,
                None => {
                    let stack = recording.add_stack(&frames, budget)?;
                    budget.take(64 + size_of_val(frames.as_slice()))?;
                    known.insert(frames, stack);
                    stack
                }
            };
            stacks[at] = Some(stack);
        }
        Ok(stacks)
    }
}

/// Splits the name of a call into its parts: `train.py(12): step`, `aten::empty`.
fn frame(name: &str) -> Frame<'_> {
    if !name.starts_with('<')
        && let Some((place, function)) = name.split_once("): ")
        && let Some((file, line)) = place.rsplit_once('(')
        && let Ok(line) = line.parse()
    {
        return Frame { function, file, line };
    }
    Frame { function: name, file: "", line: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_calls_are_taken_apart() {
        let of = |name| {
            let Frame { function, file, line } = frame(name);
            (function, file, line)
        };
        assert_eq!(of("torch/nn/module.py(1553): _call_impl"), ("_call_impl", "torch/nn/module.py", 1553));
        assert_eq!(of("aten::empty"), ("aten::empty", "", 0));
        assert_eq!(of("<built-in method f of X (1): 2>").1, "");
    }

    #[test]
    fn the_open_calls_are_the_stack() {
        let (mut recording, mut budget) = (Recording::new("t", "t"), Budget::new(1 << 20));
        let mut stacks = Stacks::default();
        for (name, thread, times) in [
            ("a", 1, (0, 100)),
            ("b", 1, (10, 20)),
            ("c", 1, (30, 40)),
            ("d", 2, (0, 100)),
            ("e", 1, (32, 35)),
        ] {
            stacks.add(name, thread, times, &mut recording, &mut budget).unwrap();
        }
        let moments = [(1, 5), (1, 15), (1, 33), (1, 50), (2, 50), (3, 50), (1, 200)];
        let found = stacks.at(&moments, &mut recording, &mut budget).unwrap();
        let names: Vec<String> = found
            .into_iter()
            .map(|stack| {
                stack
                    .into_iter()
                    .flat_map(|stack| recording.stack(stack))
                    .map(|frame| frame.function)
                    .collect()
            })
            .collect();
        assert_eq!(names, ["a", "ba", "eca", "a", "d", "", ""]);
    }
}
