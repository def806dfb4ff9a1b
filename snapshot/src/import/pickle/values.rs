//! The values of a pickle. References need neither copies nor recursion.
//!
//! A value is a 32-bit number. Lists, dictionaries and tuples are chains of slices. Equal slices are stored
//! once, so a file whose events repeat their call stacks needs little memory. The reader never follows
//! references, so deep or circular nesting does no harm.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher, Hash, Hasher};

use crate::blocks::Blocks;
use crate::budget::{Budget, Exceeded};

/// A value, or its index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Value(u32);

/// The kind of a value, with its number if it has one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Kind {
    None,
    Bool(bool),
    /// A whole number of up to 64 bits, signed or unsigned.
    Int(i128),
    Float(f64),
    Text(u32),
    List(u32),
    Dict(u32),
}

const NONE: u32 = 0;
const BOOL: u32 = 1;
const SMALL: u32 = 2;
const SIGNED: u32 = 3;
const UNSIGNED: u32 = 4;
const FLOAT: u32 = 5;
const TEXT: u32 = 6;
const LIST: u32 = 7;
const DICT: u32 = 8;

/// The number of bits of a value below its tag.
const BITS: u32 = 28;

/// The bytes of a map entry, including the entry's share of the map's free space, also while the map grows.
const MAP_ENTRY_BYTES: usize = 64;

/// A slice of a list or a dictionary.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// For a list, its length. For a dictionary, the slot that holds its length. The slots of the keys follow
    /// that slot.
    about: u32,
    /// The first slot of the values, and whether more slices follow; see [`MORE`].
    first: u32,
}

/// Marks the first slice of a list or dictionary that has several slices. Slots have 28-bit numbers.
const MORE: u32 = 1 << 31;

/// An empty slice of a dictionary.
const NO_KEYS: u32 = u32::MAX;

/// The values that a file has made so far.
#[derive(Debug)]
pub(crate) struct Values {
    slots: Blocks<Value>,
    /// The first slice of each list and dictionary.
    heads: Blocks<Part>,
    /// The other slices of lists and dictionaries that have several slices, by the index of the first slice.
    more: HashMap<u32, Vec<Part>>,
    numbers: Blocks<u64>,
    texts: Blocks<Box<str>>,
    /// The key differs for each file, so that no file can choose texts and slices with equal hashes.
    hasher: RandomState,
    text_by_hash: HashMap<u64, u32>,
    /// The first slot and the length of a slice, by the hash of the slice.
    slice_by_hash: HashMap<u64, (u32, u32)>,
}

impl Value {
    pub(crate) const NONE: Self = Self::new(NONE, 0);

    /// Marks an unused index of the memo; it is not a value.
    pub(crate) const ABSENT: Self = Self(u32::MAX);

    const fn new(tag: u32, payload: u32) -> Self {
        Self(tag << BITS | payload)
    }

    pub(crate) const fn bool(value: bool) -> Self {
        Self::new(BOOL, value as u32)
    }

    fn tag(self) -> u32 {
        self.0 >> BITS
    }

    fn payload(self) -> u32 {
        self.0 & ((1 << BITS) - 1)
    }

    pub(crate) fn is_list(self) -> bool {
        self.tag() == LIST
    }

    pub(crate) fn is_dict(self) -> bool {
        self.tag() == DICT
    }
}

impl Values {
    pub(crate) fn new() -> Self {
        Self {
            slots: Blocks::new(),
            heads: Blocks::new(),
            more: HashMap::default(),
            numbers: Blocks::new(),
            texts: Blocks::new(),
            hasher: RandomState::new(),
            text_by_hash: HashMap::default(),
            slice_by_hash: HashMap::default(),
        }
    }

    pub(crate) fn int(&mut self, value: i64, budget: &mut Budget) -> Result<Value, Exceeded> {
        if (0..1 << BITS).contains(&value) {
            return Ok(Value::new(SMALL, value as u32));
        }
        Ok(Value::new(SIGNED, self.numbers.push(value as u64, budget)?))
    }

    pub(crate) fn unsigned(&mut self, value: u64, budget: &mut Budget) -> Result<Value, Exceeded> {
        Ok(Value::new(UNSIGNED, self.numbers.push(value, budget)?))
    }

    pub(crate) fn float(&mut self, value: f64, budget: &mut Budget) -> Result<Value, Exceeded> {
        Ok(Value::new(FLOAT, self.numbers.push(value.to_bits(), budget)?))
    }

    /// Adds a text. Equal texts become one value.
    pub(crate) fn text(&mut self, text: &str, budget: &mut Budget) -> Result<Value, Exceeded> {
        let hash = self.hasher.hash_one(text);
        if let Some(&known) = self.text_by_hash.get(&hash)
            && **self.texts.of(known as usize) == *text
        {
            return Ok(Value::new(TEXT, known));
        }
        budget.take(text.len() + 16 + MAP_ENTRY_BYTES)?;
        let number = self.texts.push(text.into(), budget)?;
        self.text_by_hash.entry(hash).or_insert(number);
        Ok(Value::new(TEXT, number))
    }

    pub(crate) fn empty_list(&mut self, budget: &mut Budget) -> Result<Value, Exceeded> {
        Ok(Value::new(LIST, self.heads.push(Part { about: 0, first: 0 }, budget)?))
    }

    pub(crate) fn empty_dict(&mut self, budget: &mut Budget) -> Result<Value, Exceeded> {
        Ok(Value::new(DICT, self.heads.push(Part { about: NO_KEYS, first: 0 }, budget)?))
    }

    /// Appends values to a list: the values in `stack` from index `from` on.
    pub(crate) fn extend_list(
        &mut self,
        list: Value,
        stack: &Blocks<Value>,
        from: usize,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        if from == stack.len() {
            return Ok(());
        }
        let len = (stack.len() - from) as u32;
        let first = self.shared((from..stack.len()).map(|at| stack.at(at)), budget)?;
        let is_empty = self.heads.at(list.payload() as usize).about == 0;
        self.append(list.payload(), is_empty, Part { about: len, first }, budget)
    }

    /// Adds pairs of keys and values to a dictionary: the pairs in `stack` from index `from` on.
    pub(crate) fn extend_dict(
        &mut self,
        dict: Value,
        stack: &Blocks<Value>,
        from: usize,
        budget: &mut Budget,
    ) -> Result<(), Exceeded> {
        if from == stack.len() {
            return Ok(());
        }
        let pairs = (from..stack.len()).step_by(2);
        let len = Value::new(SMALL, pairs.len() as u32);
        let keys = std::iter::once(len).chain(pairs.clone().map(|at| stack.at(at)));
        let about = self.shared(keys, budget)?;
        let first = self.slice(pairs.map(|at| stack.at(at + 1)), budget)?;
        let is_empty = self.heads.at(dict.payload() as usize).about == NO_KEYS;
        self.append(dict.payload(), is_empty, Part { about, first }, budget)
    }

    /// Stores a slice of values, and returns its first slot.
    fn slice(&mut self, values: impl Iterator<Item = Value>, budget: &mut Budget) -> Result<u32, Exceeded> {
        let first = self.slots.len() as u32;
        for value in values {
            self.slots.push(value, budget)?;
        }
        Ok(first)
    }

    /// Stores a slice of values, or finds an equal slice that is stored already. The values of dictionaries
    /// are seldom equal.
    fn shared(
        &mut self,
        values: impl Iterator<Item = Value> + Clone,
        budget: &mut Budget,
    ) -> Result<u32, Exceeded> {
        let mut hasher = self.hasher.build_hasher();
        values.clone().for_each(|value| value.hash(&mut hasher));
        let hash = hasher.finish();
        if let Some(&(first, len)) = self.slice_by_hash.get(&hash)
            && values.clone().eq((first..first + len).map(|at| self.slots.at(at as usize)))
        {
            return Ok(first);
        }
        let first = self.slice(values, budget)?;
        let len = self.slots.len() as u32 - first;
        if let Entry::Vacant(entry) = self.slice_by_hash.entry(hash) {
            budget.take(MAP_ENTRY_BYTES)?;
            entry.insert((first, len));
        }
        Ok(first)
    }

    fn append(&mut self, head: u32, is_empty: bool, part: Part, budget: &mut Budget) -> Result<(), Exceeded> {
        let first = self.heads.of_mut(head as usize);
        if is_empty {
            *first = part;
            return Ok(());
        }
        if first.first & MORE == 0 {
            first.first |= MORE;
            budget.take(MAP_ENTRY_BYTES)?;
        }
        budget.take(3 * size_of::<Part>())?;
        self.more.entry(head).or_default().push(part);
        Ok(())
    }

    pub(crate) fn kind(&self, value: Value) -> Kind {
        let payload = value.payload();
        let number = |payload: u32| self.numbers.at(payload as usize);
        match value.tag() {
            NONE => Kind::None,
            BOOL => Kind::Bool(payload != 0),
            SMALL => Kind::Int(payload.into()),
            SIGNED => Kind::Int((number(payload) as i64).into()),
            UNSIGNED => Kind::Int(number(payload).into()),
            FLOAT => Kind::Float(f64::from_bits(number(payload))),
            TEXT => Kind::Text(payload),
            LIST => Kind::List(payload),
            _ => Kind::Dict(payload),
        }
    }

    /// Returns the text, if the value is a text.
    pub(crate) fn as_text(&self, value: Value) -> Option<&str> {
        match self.kind(value) {
            Kind::Text(number) => Some(self.texts.of(number as usize)),
            _ => None,
        }
    }

    /// Returns the number, if the value is a whole number that fits into unsigned 64 bits.
    pub(crate) fn as_u64(&self, value: Value) -> Option<u64> {
        match self.kind(value) {
            Kind::Int(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }

    /// Returns the number of slots that all lists and dictionaries use. Equal slices are stored once.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the values of a list or tuple, in order. Returns no values if `list` is another value.
    pub(crate) fn items(&self, list: Value) -> impl Iterator<Item = Value> + '_ {
        let parts = list.is_list().then(|| self.parts(list)).into_iter().flatten();
        parts.flat_map(|part| (part.first..part.first + part.about).map(|at| self.slots.at(at as usize)))
    }

    /// Returns the number of values in a list or tuple. Returns 0 if `list` is another value.
    pub(crate) fn len(&self, list: Value) -> u64 {
        let parts = list.is_list().then(|| self.parts(list)).into_iter().flatten();
        parts.map(|part| u64::from(part.about)).sum()
    }

    /// Returns the pairs of a dictionary, in order; nothing for other values.
    pub(crate) fn pairs(&self, dict: Value) -> impl Iterator<Item = (Value, Value)> + '_ {
        let parts = dict.is_dict().then(|| self.parts(dict)).into_iter().flatten();
        parts.filter(|part| part.about != NO_KEYS).flat_map(move |part| {
            let len = self.slots.at(part.about as usize).payload();
            (0..len).map(move |at| {
                let slot = |number: u32| self.slots.at(number as usize);
                (slot(part.about + 1 + at), slot(part.first + at))
            })
        })
    }

    /// Returns the pairs of a dictionary, in order. Returns no pairs if `dict` is another value.
    pub(crate) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        // If a key occurs several times, the last pair counts, as in Python.
        self.pairs(dict).filter(|&(name, _)| self.as_text(name) == Some(key)).last().map(|(_, value)| value)
    }

    /// Returns a number for the content of a list. Lists with equal numbers are equal. Returns `None` if
    /// `list` is another value.
    pub(crate) fn content(&self, list: Value) -> Option<u64> {
        let head = list.is_list().then(|| self.heads.at(list.payload() as usize))?;
        Some(if head.first & MORE == 0 {
            u64::from(head.first) << 32 | u64::from(head.about)
        } else {
            // The highest bit marks lists that have several slices.
            1 << 63 | u64::from(list.payload())
        })
    }

    /// Returns a number for the keys of a dictionary. The number is equal for dictionaries with the same keys
    /// in the same order. Returns `None` if the dictionary has several slices.
    pub(crate) fn shape(&self, dict: Value) -> Option<u32> {
        let head = dict.is_dict().then(|| self.heads.at(dict.payload() as usize))?;
        (head.first & MORE == 0).then_some(head.about)
    }

    /// Returns the value at a position of a dictionary that has a [`shape`](Self::shape).
    pub(crate) fn at(&self, dict: Value, place: u32) -> Value {
        self.slots.at((self.heads.at(dict.payload() as usize).first + place) as usize)
    }

    /// Returns the slices of a list or dictionary.
    fn parts(&self, container: Value) -> impl Iterator<Item = Part> + '_ {
        let head = self.heads.at(container.payload() as usize);
        let more = if head.first & MORE == 0 { None } else { self.more.get(&container.payload()) };
        let first = Part { first: head.first & !MORE, ..head };
        std::iter::once(first).chain(more.into_iter().flatten().copied())
    }
}
