//! Helpers of the table and the advice.

use crate::compare::{StackFigures, StackReport, StackResult};
use crate::plain::plural;

/// The figures of a stack that ran.
pub(super) fn figures(stack: &StackReport) -> Option<(&StackReport, &StackFigures)> {
    match &stack.result {
        StackResult::Ran(figures) => Some((stack, figures)),
        StackResult::Skipped { .. } | StackResult::Failed { .. } => None,
    }
}

/// A number of things, as in `1 event` and `1,234 events`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{} {}", thousands(count), plural(count, noun))
}

/// `1234567` as `1,234,567`.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
