//! Mistakes of clients. The checker finds each of them.

/// A mistake in one step. Most were made here once, or are left out by a test of the Python package.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mistake {
    /// A use on another stream does not wait for the block's stream.
    UseWithoutWait,
    /// The block's stream does not wait for a use on another stream.
    UseNotFollowed,
    /// The source of a copy counts as unused.
    SourceNotUsed,
    /// The block's stream does not wait for the work of an export's consumer.
    ExportNotFollowed,
    /// The end of a block does not wait for work on unnamed streams.
    UnknownNotAwaited,
    /// The default streams of two threads count as one.
    OtherThreadsStream,
    /// On a third thread, the legacy stream stands for the default streams of two threads, which then count
    /// as one.
    LegacyStandsForTwo,
    /// A refused wait leaves no note.
    FailureForgotten,
    /// An order that a capture records counts for work outside of the graph.
    OrderInCapture,
    /// A consumer in the capture of the block's stream only waits inside the graph. It may go on after it.
    LendInCapture,
    /// A consumer's stream that was destroyed counts as done.
    DeadStreamSkipped,
    /// A buffer that was imported again keeps an order of its own.
    ImportHasOwnOrder,
    /// A block ends while another thread uses it.
    ReleaseDuringUse,
    /// Memory of another library ends while its stream captures, and nothing waits.
    ForeignEndsInCapture,
    /// A layer submits its work on a stream of its own.
    LayerOnOwnStream,
    /// A layer submits work after it has freed the block in the pool.
    LayerAfterPassingOn,
    /// A layer submits work to a stream that captures, so each launch of the graph repeats it.
    LayerInCapture,
    /// A layer says that its blocks are ready for every stream.
    LayerSaysReady,
}

impl Mistake {
    /// All mistakes.
    pub(super) const ALL: [Self; 18] = [
        Self::UseWithoutWait,
        Self::UseNotFollowed,
        Self::SourceNotUsed,
        Self::ExportNotFollowed,
        Self::UnknownNotAwaited,
        Self::OtherThreadsStream,
        Self::LegacyStandsForTwo,
        Self::FailureForgotten,
        Self::OrderInCapture,
        Self::LendInCapture,
        Self::DeadStreamSkipped,
        Self::ImportHasOwnOrder,
        Self::ReleaseDuringUse,
        Self::ForeignEndsInCapture,
        Self::LayerOnOwnStream,
        Self::LayerAfterPassingOn,
        Self::LayerInCapture,
        Self::LayerSaysReady,
    ];
}
