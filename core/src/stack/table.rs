use super::Params;
use crate::{AnyResource, DriverHandle, Error, Result};

/// How a layer is built from text.
#[derive(Clone, Copy, Debug)]
pub enum LayerKind {
    /// Takes its memory from the driver; stands first.
    Base(fn(&Params<'_>, &DriverHandle) -> Result<AnyResource>),
    /// Stands on what is below.
    Layer(fn(&Params<'_>, AnyResource) -> Result<AnyResource>),
}

/// What one name in a stack's text means. Each resource and adaptor that text can name has one, beside
/// its code.
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
