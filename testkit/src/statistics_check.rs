//! How thoroughly statistics are compared.

/// Which part of a resource's statistics is compared with the shadow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StatisticsCheck {
    /// Nothing: the resource keeps no statistics, or returns those from a layer below it.
    None,
    /// The memory in use: blocks, requested bytes, and the number of calls.
    Counts,
    /// The same as [`Counts`](Self::Counts). Also, the reserved bytes must equal the bytes that the device
    /// has handed out.
    Exact,
}
