//! Mistakes that the checker must find, each in one step of the model.

/// A mistake of the pool, of a layer above it, or of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// RMM's issue 2489: a stream takes over another stream's order by a wait, and does not record its event
    /// again. A third stream that waits for the old event believes that it covers the other stream too.
    Merge2489,
    /// A record's `seen` is read after the record, and has waits that came later.
    SeenAtSettle,
    /// The epoch ends only after the event was recorded.
    RecordBeforeEpochEnds,
    /// Two threads create a stream's first event, and the record of the event that is not kept counts.
    SecondEventCounts,
    /// A query's answer also counts for a record that came after the query.
    QueryKeptOverRecord,
    /// A wait is noted before it is submitted.
    WaitNotedEarly,
    /// A wait also counts for frees after the record.
    WaitCoversLater,
    /// What one thread learned from a wait for the device also counts for frees of other threads during it.
    DeviceCoversLater,
    /// A forgotten stream's epochs stay in what others have seen.
    SweepKeepsSeen,
    /// A stream is forgotten while a thread holds an event.
    SweepDuringCalls,
    /// A stream is forgotten while a thread frees a block on it.
    SweepDuringFree,
    /// A layer submits work after it has passed the free on: zeros, a copy, a launch of a captured graph.
    WorkAfterFree,
    /// A block is freed on a stream that does not come after its last use: a buffer of Python that was used
    /// on another stream, an exported view, a prefetch on a stream of its own, memory of a capture scope
    /// whose graph still runs.
    FreeWithoutOrder,
}

impl Mistake {
    /// All mistakes.
    pub(crate) const ALL: [Self; 13] = [
        Self::Merge2489,
        Self::SeenAtSettle,
        Self::RecordBeforeEpochEnds,
        Self::SecondEventCounts,
        Self::QueryKeptOverRecord,
        Self::WaitNotedEarly,
        Self::WaitCoversLater,
        Self::DeviceCoversLater,
        Self::SweepKeepsSeen,
        Self::SweepDuringCalls,
        Self::SweepDuringFree,
        Self::WorkAfterFree,
        Self::FreeWithoutOrder,
    ];
}
