use std::str::FromStr;

use super::LayerEntry;
use crate::{ByteSize, Driver, Error, Result};

/// The parameters of one layer, checked against the names that its [`LayerEntry`] knows.
#[derive(Debug)]
pub struct Params<'a> {
    entry: &'a LayerEntry,
    values: &'a [(String, String)],
}

impl<'a> Params<'a> {
    /// Checks that every key is known and given once.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack), naming what the layer does know.
    pub fn new(entry: &'a LayerEntry, values: &'a [(String, String)]) -> Result<Self> {
        for (index, (key, _)) in values.iter().enumerate() {
            if !entry.params.iter().any(|(known, _)| known == key) {
                let known: Vec<&str> = entry.params.iter().map(|(name, _)| *name).collect();
                return Err(Error::invalid_stack(if known.is_empty() {
                    format!("`{}` takes no parameters, so not `{key}`", entry.name)
                } else {
                    format!("`{}` has no parameter `{key}`; it knows {}", entry.name, known.join(", "))
                }));
            }
            if values[..index].iter().any(|(earlier, _)| earlier == key) {
                return Err(Error::invalid_stack(format!("`{key}` of `{}` is given twice", entry.name)));
            }
        }
        Ok(Self { entry, values })
    }

    /// The text of a parameter, if given.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        debug_assert!(self.entry.params.iter().any(|(known, _)| *known == key), "{key} is not declared");
        self.values.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// A parameter of any type that is read from text, if given.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if it cannot be read.
    pub fn get<T>(&self, key: &str) -> Result<Option<T>>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        let Some(text) = self.text(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|error| {
            Error::invalid_stack(format!("`{key}={text}` of `{}`: {error}", self.entry.name))
        })
    }

    /// A size in bytes, if given; percentages are of what `driver`'s device has free now.
    ///
    /// # Errors
    /// As [`get`](Self::get), and the driver's.
    pub fn bytes(&self, key: &str, driver: &dyn Driver) -> Result<Option<u64>> {
        self.get::<ByteSize>(key)?.map(|size| size.resolve(driver)).transpose()
    }
}
