//! Reads pickles of plain data. Refuses pickles that ask for anything else.
//!
//! Python's own reader runs any code that a pickle names. This reader knows only numbers, texts, lists,
//! tuples and dictionaries, in the protocols 2 to 5. It imports no module and calls no function, and its
//! memory is bounded.

mod machine;
mod refused;
mod values;

pub(crate) use values::{Kind, Value, Values};

use super::bytes::Bytes;
use super::refusal::Refusal;
use crate::budget::Budget;

/// Reads a pickle.
///
/// # Errors
/// Returns a sentence that names the opcode and its position.
pub(crate) fn read(input: &mut Bytes<'_>, budget: &mut Budget) -> Result<(Values, Value), Refusal> {
    machine::run(input, budget)
}
