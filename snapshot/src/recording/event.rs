//! One event of a recording.

use std::num::NonZeroU32;

/// The kind of the event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was allocated.
    Allocate,
    /// The program freed a block that other streams may still use. The block becomes free only at
    /// [`Free`](Self::Free).
    FreeRequested,
    /// A block became free.
    Free,
    /// A request failed because the allocator was out of memory. The address is 0.
    AllocateFailure,
    /// The allocator reserved a segment from the driver.
    SegmentAllocate,
    /// The allocator returned a segment to the driver.
    SegmentFree,
    /// The allocator mapped memory into an expandable segment.
    SegmentMap,
    /// The allocator unmapped memory from an expandable segment.
    SegmentUnmap,
    /// The program wrote the state of its memory to a file.
    Snapshot,
    /// The program named a block. The tag is the name.
    Annotate,
    /// A phase of the program began. The tag is the phase's name.
    PhaseStart,
    /// A phase of the program ended. The tag is the phase's name.
    PhaseEnd,
    /// Events are missing here. `bytes` is the number of missing events; 0 if it is not known.
    Lost,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Allocate,
        Self::FreeRequested,
        Self::Free,
        Self::AllocateFailure,
        Self::SegmentAllocate,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::Annotate,
        Self::PhaseStart,
        Self::PhaseEnd,
        Self::Lost,
    ];

    /// Returns the name of the kind, as in a log and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::FreeRequested => "free_requested",
            Self::Free => "free",
            Self::AllocateFailure => "allocate_failure",
            Self::SegmentAllocate => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::Annotate => "annotate",
            Self::PhaseStart => "phase_start",
            Self::PhaseEnd => "phase_end",
            Self::Lost => "lost",
        }
    }

    /// Returns the kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns whether the event becomes a row of RMM's logs. If not, it becomes a note in the next row.
    pub fn is_row(self) -> bool {
        matches!(self, Self::Allocate | Self::Free | Self::AllocateFailure)
    }
}

/// The number of a call stack or a tag, counted from 1.
pub type Id = NonZeroU32;

/// One event of a [`Recording`](super::Recording). Call stacks, tags and streams are numbers; the recording
/// has their texts. Sizes are in bytes.
///
/// ```
/// use millpond_snapshot::recording::{Event, EventKind};
/// let event = Event { bytes: 1000, address: 0x7f00, ..Event::new(EventKind::Allocate) };
/// assert_eq!((event.time(), event.stack, event.is_before), (None, None, false));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a recording has millions, so its size is fixed")]
pub struct Event {
    /// The kind of the event.
    pub kind: EventKind,
    /// Whether the event happened before recording began. In this case, the importer inferred it from the
    /// state or from later events.
    pub is_before: bool,
    /// The binary logarithm of the requested alignment in bytes; 8 if the source does not record it.
    pub alignment_log2: u8,
    /// The address of the block or the segment.
    pub address: u64,
    /// The size in bytes. For a block, it is the requested size.
    pub bytes: u64,
    /// The time in the unit of the recording's [`Clock`](super::Clock), or [`NO_TIME`](Self::NO_TIME).
    pub raw_time: u64,
    /// The number of the event's lane: its thread, stream and pool.
    /// [`Recording::lane`](super::Recording::lane) returns them.
    pub lane: u32,
    /// The number of the call stack. [`Recording::stack`](super::Recording::stack) returns its frames.
    pub stack: Option<Id>,
    /// The number of the tag. [`Recording::tag`](super::Recording::tag) returns its text.
    pub tag: Option<Id>,
}

/// Recordings have millions of events, so an event must be small.
const _: () = assert!(size_of::<Event>() == 40);

impl Event {
    /// The value of `raw_time` if the time is not known.
    pub const NO_TIME: u64 = u64::MAX;

    /// Returns an event of this kind. All other fields have their default values.
    pub fn new(kind: EventKind) -> Self {
        Self {
            kind,
            is_before: false,
            alignment_log2: 8,
            lane: 0,
            address: 0,
            bytes: 0,
            raw_time: Self::NO_TIME,
            stack: None,
            tag: None,
        }
    }

    /// Returns the time in the unit of the recording's [`Clock`](super::Clock), if it is known.
    pub fn time(&self) -> Option<u64> {
        (self.raw_time != Self::NO_TIME).then_some(self.raw_time)
    }
}
