//! Reads and writes profiles as TOML.

use std::path::Path;

use millpond_core::Result;

#[cfg(feature = "profiles")]
use super::read;
use super::{Profile, write};

impl Profile {
    /// Reads a profile from a TOML file.
    ///
    /// # Errors
    /// An error if the file cannot be read, and the errors of [`from_toml`](Self::from_toml).
    #[cfg(feature = "profiles")]
    pub fn from_file(path: &Path) -> Result<Self> {
        read::file(path)
    }

    /// Returns an error: reading profiles needs the feature `profiles`.
    ///
    /// # Errors
    /// An error in every case.
    #[cfg(not(feature = "profiles"))]
    pub fn from_file(path: &Path) -> Result<Self> {
        Err(millpond_core::Error::invalid_argument(format!(
            "the profile {} cannot be read: this program was built without millpond's feature `profiles`",
            path.display()
        )))
    }

    /// Reads a profile from `text`. Errors name `source` as the origin of the text.
    ///
    /// # Errors
    /// An error if the text is not TOML, or if a field is missing, unknown or wrong. The error names the line
    /// and the field.
    #[cfg(feature = "profiles")]
    pub fn from_toml(text: &str, source: &str) -> Result<Self> {
        read::parse(text, source)
    }

    /// Returns the profile as TOML, with an explanation of each field.
    ///
    /// For each field, the method calls `comment` with the name of the field, such as `mem_create` or
    /// `calls_ns.event_query`. It adds the returned text to the field as a comment. If the field is a curve,
    /// the method also calls `comment` with the size in bytes of each point of the curve.
    pub fn to_toml(&self, comment: impl Fn(&str, Option<u64>) -> Option<String>) -> String {
        write::toml(self, &comment)
    }
}
