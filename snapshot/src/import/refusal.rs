//! The reason why a file is not imported, and its position in the file.

use std::fmt;
use std::io;

use crate::budget::Exceeded;

/// The reason why a file is not imported, and its place in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    /// A sentence without the file's name. It contains the remedy.
    pub(crate) text: String,
    /// The number of the line in a text file, counted from 1. 0 for other files.
    pub(crate) line: u64,
}

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), line: 0 }
    }

    pub(crate) fn at_line(line: u64, text: impl Into<String>) -> Self {
        Self { text: text.into(), line }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Exceeded> for Refusal {
    fn from(exceeded: Exceeded) -> Self {
        Self::new(exceeded.to_string())
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::new(match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                "the compressed data ends early: the file is truncated; copy it again".to_owned()
            }
            io::ErrorKind::FileTooLarge => error.to_string(),
            _ => format!("cannot be read ({error})"),
        })
    }
}
