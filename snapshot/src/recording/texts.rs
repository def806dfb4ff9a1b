//! Texts, frames and call stacks. Each of them is stored once.

use std::hash::Hash;
use std::num::NonZeroU32;

use foldhash::HashMap;

use super::Id;
use crate::budget::{Budget, Exceeded};

/// The bytes of a table entry without its value: an entry of the map, with its share of free space, also
/// while the map grows.
const ENTRY_BYTES: usize = 64;

/// Different values in the order of their first use, numbered from 1.
#[derive(Clone, Debug)]
pub(super) struct Table<T: Hash + Eq> {
    values: Vec<T>,
    numbers: HashMap<T, Id>,
}

impl<T: Hash + Eq> Default for Table<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: HashMap::default() }
    }
}

impl<T: Hash + Eq> PartialEq for Table<T> {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl<T: Hash + Eq + Clone> Table<T> {
    /// Returns the number of a value. If the value is new, it is added. `bytes` is the size of the value on
    /// the heap.
    pub(super) fn number(&mut self, value: T, bytes: usize, budget: &mut Budget) -> Result<Id, Exceeded> {
        if let Some(&number) = self.numbers.get(&value) {
            return Ok(number);
        }
        budget.take(ENTRY_BYTES + 4 * size_of::<T>() + 2 * bytes)?;
        self.values.push(value.clone());
        // The budget ends before 2^32 entries.
        let number = NonZeroU32::new(self.values.len() as u32).unwrap_or(NonZeroU32::MAX);
        self.numbers.insert(value, number);
        Ok(number)
    }

    pub(super) fn get(&self, number: Id) -> Option<&T> {
        self.values.get(number.get() as usize - 1)
    }

    pub(super) fn values(&self) -> &[T] {
        &self.values
    }
}

/// A frame whose texts are numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct RawFrame {
    pub(super) function: Id,
    pub(super) file: Id,
    pub(super) line: u64,
}
