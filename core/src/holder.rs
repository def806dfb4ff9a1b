//! Who holds memory: live blocks, grouped by the part of the program that allocated them.

use std::fmt;

use crate::format::{counted, format_bytes};

/// A group of live blocks whose allocations have the same tag and the same backtrace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Holder {
    /// The tag that the allocating thread had set; `None` if the thread had set no tag.
    pub tag: Option<String>,
    /// The backtrace of the allocations; `None` if no backtraces were recorded.
    pub backtrace: Option<String>,
    /// The number of live blocks in the group.
    pub blocks: u64,
    /// The sum of the requested sizes of the blocks, in bytes.
    pub bytes: u64,
}

/// The most holders that a text names, so that it stays readable.
const NAMED: usize = 8;

/// Writes one line for each of the first holders, followed by the backtrace if there is one.
pub(crate) fn write_holders(f: &mut fmt::Formatter<'_>, holders: &[Holder]) -> fmt::Result {
    for holder in holders.iter().take(NAMED) {
        write!(f, "\n  {holder}")?;
    }
    match holders.len().saturating_sub(NAMED) {
        0 => Ok(()),
        more => write!(f, "\n  and {}", counted(more as u64, "more holder")),
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}, allocated", format_bytes(self.bytes), counted(self.blocks, "block"))?;
        match &self.tag {
            Some(tag) => write!(f, " for `{tag}`")?,
            None if self.backtrace.is_none() => f.write_str(" without a tag")?,
            None => {}
        }
        self.backtrace.as_ref().map_or(Ok(()), |backtrace| write!(f, " at\n{backtrace}"))
    }
}
