//! The extent of the comparison of statistics.

/// How much of the statistics of a resource is compared with the shadow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatisticsCheck {
    /// Nothing: the resource keeps none, or keeps those of something below it.
    None,
    /// The handed-out memory: blocks, bytes as requested, and the number of calls.
    Counts,
    /// The counts, and that the bytes reserved are those that the device has handed out.
    Exact,
}
