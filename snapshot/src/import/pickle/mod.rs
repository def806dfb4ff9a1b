//! Reads pickles of plain data, and refuses pickles that ask for anything else.
//!
//! Python's own reader runs whatever code a pickle asks for. This reader knows numbers, texts, lists, tuples
//! and dictionaries, in protocols 2 to 5. It imports and calls nothing, and its memory is bounded.

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
/// A sentence with the opcode and its position.
pub(crate) fn read(input: &mut Bytes<'_>, budget: &mut Budget) -> Result<(Values, Value), Refusal> {
    machine::run(input, budget)
}
