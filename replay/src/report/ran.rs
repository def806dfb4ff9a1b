//! The stacks that ran, for the table and the advice.

use crate::compare::{StackFigures, StackReport, StackResult};

/// The stacks that ran, with their figures.
pub(super) type Ran<'a> = [(&'a StackReport, &'a StackFigures)];

/// Returns the figures of a stack that ran.
pub(super) fn figures(stack: &StackReport) -> Option<(&StackReport, &StackFigures)> {
    match &stack.result {
        StackResult::Ran(figures) => Some((stack, figures)),
        StackResult::Skipped { .. } | StackResult::Failed { .. } => None,
    }
}
