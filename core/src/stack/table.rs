//! The names that a stack's text may use, and what each builds.

use std::any::Any;
use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

use super::{StackSpec, Value};
use crate::{AnyResource, ByteSize, Driver, DriverHandle, Error, Result};

/// How a layer is built from text.
#[derive(Clone, Copy, Debug)]
pub enum LayerKind {
    /// Takes its memory from the driver; stands first.
    Base(fn(&Params<'_>, &DriverHandle) -> Result<AnyResource>),
    /// Stands on what is below.
    Layer(fn(&Params<'_>, AnyResource) -> Result<AnyResource>),
}

/// The meaning of one name in a stack's text. Each resource and adaptor that text can name has an entry
/// beside its code.
#[derive(Clone, Copy, Debug)]
pub struct LayerEntry {
    /// The name.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// The parameters: name, and one line for people, with the default.
    pub params: &'static [(&'static str, &'static str)],
    /// How it is built.
    pub kind: LayerKind,
}

/// The names that stacks may use.
///
/// `millpond::layers()` is the table of everything in millpond; [`with`](Self::with) adds one's own.
#[derive(Clone, Debug, Default)]
pub struct LayerTable {
    entries: Vec<LayerEntry>,
}

impl LayerTable {
    /// A table of these entries.
    pub fn new(entries: impl IntoIterator<Item = LayerEntry>) -> Self {
        Self { entries: entries.into_iter().collect() }
    }

    /// Adds entries; a name that is there already now means the new one.
    #[must_use]
    pub fn with(mut self, entries: impl IntoIterator<Item = LayerEntry>) -> Self {
        for entry in entries {
            self.entries.retain(|known| known.name != entry.name);
            self.entries.push(entry);
        }
        self
    }

    /// All entries.
    pub fn entries(&self) -> &[LayerEntry] {
        &self.entries
    }

    /// The entry with this name.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack), naming those that exist.
    pub fn get(&self, name: &str) -> Result<&LayerEntry> {
        self.entries.iter().find(|entry| entry.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.entries.iter().map(|entry| entry.name).collect();
            Error::invalid_stack(format!("there is no layer `{name}`; there are {}", known.join(", ")))
        })
    }
}

/// The parameters of one layer, checked against the names that its [`LayerEntry`] knows.
#[derive(Debug)]
pub struct Params<'a> {
    entry: &'a LayerEntry,
    values: &'a [(String, Value)],
    table: &'a LayerTable,
}

impl<'a> Params<'a> {
    /// Checks that every key is known and given once. `table` is for stacks in parentheses.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack), naming what the layer does know.
    pub fn new(entry: &'a LayerEntry, values: &'a [(String, Value)], table: &'a LayerTable) -> Result<Self> {
        for (index, (key, _)) in values.iter().enumerate() {
            if !entry.params.iter().any(|(known, _)| known == key) {
                let known: Vec<&str> = entry.params.iter().map(|(name, _)| *name).collect();
                return Err(Error::invalid_stack(if known.is_empty() {
                    format!("`{}` takes no parameters, so not `{key}`; leave it out", entry.name)
                } else {
                    format!("`{}` has no parameter `{key}`; it knows {}", entry.name, known.join(", "))
                }));
            }
            if values[..index].iter().any(|(earlier, _)| earlier == key) {
                let twice = format!("`{key}` of `{}` is given twice; leave one out", entry.name);
                return Err(Error::invalid_stack(twice));
            }
        }
        Ok(Self { entry, values, table })
    }

    /// A parameter's value, if given.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        debug_assert!(self.entry.params.iter().any(|(known, _)| *known == key), "{key} is not declared");
        self.values.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The text of a parameter, if given.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if it is a stack.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_text().map(Some).ok_or_else(|| {
            let name = self.entry.name;
            Error::invalid_stack(format!(
                "`{key}={value}` of `{name}`: a stack in parentheses is not possible"
            ))
        })
    }

    /// A further upstream, if given: the resource of a stack in parentheses, on `driver`'s device.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if it is not a stack in parentheses; what building it
    /// reports.
    pub fn resource(&self, key: &str, driver: &DriverHandle) -> Result<Option<AnyResource>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let stack = value.as_stack().ok_or_else(|| {
            Error::invalid_stack(format!(
                "`{key}={value}` of `{}` is not a stack in parentheses; write for example \
                 `{key}=(cuda+pool)`",
                self.entry.name
            ))
        })?;
        self.build(stack, driver).map(Some)
    }

    /// Builds a stack that is a [`Piece`](super::Piece) of a parameter.
    ///
    /// # Errors
    /// Those of [`StackSpec::build`].
    pub fn build(&self, stack: &StackSpec, driver: &DriverHandle) -> Result<AnyResource> {
        stack.build(self.table, driver)
    }

    /// A parameter of any type that is read from text, if given.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if it cannot be read.
    pub fn get<T>(&self, key: &str) -> Result<Option<T>>
    where
        T: FromStr,
        T::Err: std::fmt::Display + 'static,
    {
        let Some(text) = self.text(key)? else { return Ok(None) };
        text.parse().map(Some).map_err(|error: T::Err| {
            // The standard library's words for a number are those of a programmer in Rust.
            let why = match (&error as &dyn Any).downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
                Some(IntErrorKind::PosOverflow) => "the number is too large".to_owned(),
                Some(_) => "that is no whole number; write for example 16".to_owned(),
                None => error.to_string(),
            };
            Error::invalid_stack(format!("`{key}={text}` of `{}`: {why}", self.entry.name))
        })
    }

    /// A size in bytes, if given; percentages are of what `driver`'s device has free now.
    ///
    /// # Errors
    /// Those of [`get`](Self::get), and the driver's.
    pub fn bytes(&self, key: &str, driver: &dyn Driver) -> Result<Option<u64>> {
        self.get::<ByteSize>(key)?.map(|size| size.resolve(driver)).transpose()
    }
}
