//! Reads and writes profiles as TOML.

use std::path::Path;

use millpond_core::Result;

#[cfg(feature = "profiles")]
use super::read;
use super::{Profile, write};

impl Profile {
    /// Reads the profile in a TOML file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if [`from_toml`](Self::from_toml) refuses it.
    #[cfg(feature = "profiles")]
    pub fn from_file(path: &Path) -> Result<Self> {
        read::file(path)
    }

    /// Refuses: reading profiles requires the feature `profiles`.
    ///
    /// # Errors
    /// Always fails.
    #[cfg(not(feature = "profiles"))]
    pub fn from_file(path: &Path) -> Result<Self> {
        Err(millpond_core::Error::invalid_argument(format!(
            "the profile {} cannot be read: this program was built without millpond's feature `profiles`",
            path.display()
        )))
    }

    /// Parses the profile in this text; `source` names it in errors.
    ///
    /// # Errors
    /// Fails if the text is not TOML, or if a field is missing, unknown or wrong. The error names the line
    /// and the field.
    #[cfg(feature = "profiles")]
    pub fn from_toml(text: &str, source: &str) -> Result<Self> {
        read::parse(text, source)
    }

    /// Returns the profile as TOML with an explanation of each field. It adds the text that `comment` returns
    /// for a field (such as `mem_create` or `calls_ns.event_query`) or for the field's point at a size in
    /// bytes.
    pub fn to_toml(&self, comment: impl Fn(&str, Option<u64>) -> Option<String>) -> String {
        write::toml(self, &comment)
    }
}
