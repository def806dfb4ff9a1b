//! Reads the values of given keys from many dictionaries with the same shape. The positions of the keys are
//! looked up only once.

use crate::import::pickle::{Value, Values};

/// The most keys of a dictionary that is read. A trace entry of PyTorch has about ten keys.
const MAX_KEYS: usize = 64;

/// The positions of `N` keys in dictionaries.
pub(super) struct Row<const N: usize> {
    keys: [&'static str; N],
    /// The shape of the last dictionary that had a shape.
    shape: Option<u32>,
    places: [Option<u32>; N],
}

impl<const N: usize> Row<N> {
    pub(super) fn new(keys: [&'static str; N]) -> Self {
        Self { keys, shape: None, places: [None; N] }
    }

    /// Returns the values of the keys; `None` if `dict` is not a dictionary, or has more than 64 keys.
    pub(super) fn of(&mut self, values: &Values, dict: Value) -> Option<[Option<Value>; N]> {
        if !dict.is_dict() {
            return None;
        }
        let shape = values.shape(dict);
        if shape.is_none() || shape != self.shape {
            let pairs = values.pairs(dict).enumerate().take(MAX_KEYS + 1);
            let mut found = [None; N];
            for (place, (name, value)) in pairs {
                if place == MAX_KEYS {
                    return None;
                }
                let Some(name) = values.as_text(name) else { continue };
                if let Some(key) = self.keys.iter().position(|key| *key == name) {
                    found[key] = Some((place as u32, value));
                }
            }
            if shape.is_some() {
                (self.shape, self.places) = (shape, found.map(|found| found.map(|(place, _)| place)));
            }
            return Some(found.map(|found| found.map(|(_, value)| value)));
        }
        Some(self.places.map(|place| place.map(|place| values.at(dict, place))))
    }
}
