//! Reads and writes profiles as TOML.

use std::path::Path;

use millpond_core::Result;

#[cfg(feature = "profiles")]
use super::read;
use super::{Profile, write};

impl Profile {
    /// Reads the profile from a TOML file.
    ///
    /// # Errors
    /// An error if the file cannot be read, and the errors of [`from_toml`](Self::from_toml).
    #[cfg(feature = "profiles")]
    pub fn from_file(path: &Path) -> Result<Self> {
        read::file(path)
    }

    /// Returns an error, because reading profiles requires the feature `profiles`.
    ///
    /// # Errors
    /// In every case.
    #[cfg(not(feature = "profiles"))]
    pub fn from_file(path: &Path) -> Result<Self> {
        Err(millpond_core::Error::invalid_argument(format!(
            "the profile {} cannot be read: this program was built without millpond's feature `profiles`",
            path.display()
        )))
    }

    /// Reads the profile from this text. Errors name `source` as its origin.
    ///
    /// # Errors
    /// An error if the text is not TOML, or if a field is missing, unknown or wrong. The error names the line
    /// and the field.
    #[cfg(feature = "profiles")]
    pub fn from_toml(text: &str, source: &str) -> Result<Self> {
        read::parse(text, source)
    }

    /// Returns the profile as TOML, with an explanation of each field. The method calls `comment` with the
    /// name of each field, such as `mem_create` or `calls_ns.event_query`, and adds the text that it returns.
    /// If the field is a curve, the method also calls `comment` with the size in bytes of each point of the
    /// curve.
    pub fn to_toml(&self, comment: impl Fn(&str, Option<u64>) -> Option<String>) -> String {
        write::toml(self, &comment)
    }
}
