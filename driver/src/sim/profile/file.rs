//! Reads profiles from TOML, and writes them.

use std::path::Path;

use millpond_core::Result;

#[cfg(feature = "profiles")]
use super::read;
use super::{Profile, write};

impl Profile {
    /// The profile in a TOML file.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong: as [`from_toml`](Self::from_toml).
    #[cfg(feature = "profiles")]
    pub fn from_file(path: &Path) -> Result<Self> {
        read::file(path)
    }

    /// Refuses: profiles are read with the feature `profiles`.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(feature = "profiles"))]
    pub fn from_file(path: &Path) -> Result<Self> {
        Err(millpond_core::Error::invalid_argument(format!(
            "the profile {} cannot be read: this program was built without millpond's feature `profiles`",
            path.display()
        )))
    }

    /// The profile in this text; `source` names it in errors.
    ///
    /// # Errors
    /// The text is not TOML, a field is missing, unknown or wrong; the error names the line and the field.
    #[cfg(feature = "profiles")]
    pub fn from_toml(text: &str, source: &str) -> Result<Self> {
        read::parse(text, source)
    }

    /// The profile as TOML, with the meaning of each field, and the text of `comment` about a field (as in
    /// `mem_create` or `calls_ns.event_query`), or about its point at a size in bytes.
    pub fn to_toml(&self, comment: impl Fn(&str, Option<u64>) -> Option<String>) -> String {
        write::toml(self, &comment)
    }
}
