//! The stacks that ran, for the table and the advice.

use crate::compare::{StackFigures, StackReport, StackResult};

/// Returns the figures of a stack that ran.
pub(super) fn figures(stack: &StackReport) -> Option<(&StackReport, &StackFigures)> {
    match &stack.result {
        StackResult::Ran(figures) => Some((stack, figures)),
        StackResult::Skipped { .. } | StackResult::Failed { .. } => None,
    }
}
