//! The stacks that ran. The table and the advice use them.

use crate::compare::{StackFigures, StackReport, StackResult};

/// The stacks that ran, with their figures.
pub(super) type Ran<'a> = [(&'a StackReport, &'a StackFigures)];

/// Returns the stack and its figures, if the stack ran.
pub(super) fn figures(stack: &StackReport) -> Option<(&StackReport, &StackFigures)> {
    match &stack.result {
        StackResult::Ran(figures) => Some((stack, figures)),
        StackResult::Skipped { .. } | StackResult::Failed { .. } => None,
    }
}
