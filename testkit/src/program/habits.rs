//! Habits and demands of other projects' allocators that millpond's resources do not have.

use millpond_driver::sim::{Violation, ViolationKind};

/// What an allocator of another project does differently. The programs allow these habits. By default there
/// are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Habits {
    /// Whether the allocator frees each block in the order of the stream that allocated the block, as PyTorch
    /// and CUB do. Then a program frees the block on that stream, and destroys the stream only afterwards.
    pub frees_on_own_stream: bool,
    /// Whether the allocator never destroys the events of per-thread default streams, as RMM does. Then each
    /// program runs on a thread of its own, and the events do not count as left over.
    pub keeps_events: bool,
    /// Whether the allocator makes streams wait for events that were never recorded, as RMM does. CUDA
    /// ignores such a wait.
    pub waits_for_unrecorded: bool,
    /// Whether the allocator waits for its blocks' streams when it ends, as PyTorch does with expandable
    /// segments. Then a program destroys the streams that are left only after the allocator has ended.
    pub ends_before_streams: bool,
    /// Whether the allocator serves captures only from scopes, as PyTorch's private pools do. Then a stream
    /// captures only while a scope is open for it, in the relaxed mode, and a capture has one scope.
    pub captures_in_scopes: bool,
}

impl Habits {
    /// No habits.
    pub const NONE: Self = Self {
        frees_on_own_stream: false,
        keeps_events: false,
        waits_for_unrecorded: false,
        ends_before_streams: false,
        captures_in_scopes: false,
    };

    millpond_core::setters! {
        frees_on_own_stream: bool,
        keeps_events: bool,
        waits_for_unrecorded: bool,
        ends_before_streams: bool,
        captures_in_scopes: bool,
    }

    /// Returns the first of these violations that the habits do not explain.
    pub(crate) fn unexplained(self, violations: &[Violation]) -> Option<&Violation> {
        let is_habit = |kind| self.waits_for_unrecorded && kind == ViolationKind::UnrecordedEvent;
        violations.iter().find(|violation| !is_habit(violation.kind))
    }
}
