//! One event of a recording.

use std::num::NonZeroU32;

/// The kind of the event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum EventKind {
    /// A block was handed out.
    Allocate,
    /// The program freed a block that other streams may still use. The block is not free before
    /// [`Free`](Self::Free).
    FreeRequested,
    /// A block became free.
    Free,
    /// A request failed because memory ran out. The address is 0.
    AllocateFailure,
    /// The allocator took a segment from the driver.
    SegmentAllocate,
    /// The allocator returned a segment to the driver.
    SegmentFree,
    /// The allocator mapped memory into an expandable segment.
    SegmentMap,
    /// The allocator unmapped memory of an expandable segment.
    SegmentUnmap,
    /// The free bytes of the device at the failed request before this event.
    DeviceFree,
    /// The program wrote the state of its memory.
    Snapshot,
    /// The program named a block; the tag is the name.
    Annotate,
    /// A phase of the program began; the tag is its name.
    PhaseStart,
    /// A phase of the program ended; the tag is its name.
    PhaseEnd,
    /// Events are missing here; `bytes` is their number, 0 if it is not known.
    Lost,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 14] = [
        Self::Allocate,
        Self::FreeRequested,
        Self::Free,
        Self::AllocateFailure,
        Self::SegmentAllocate,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::DeviceFree,
        Self::Snapshot,
        Self::Annotate,
        Self::PhaseStart,
        Self::PhaseEnd,
        Self::Lost,
    ];

    /// Returns the name in a log and in JSON.
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
            Self::DeviceFree => "device_free",
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

    /// Returns whether the event is a row of RMM's logs; otherwise it is a note at the next row.
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
    /// What happened.
    pub kind: EventKind,
    /// Whether the event happened before recording began. The importer inferred it from the state or from
    /// later events.
    pub is_before: bool,
    /// The binary logarithm of the requested alignment in bytes; 8 if the source has none.
    pub alignment_log2: u8,
    /// The address of the block or the segment.
    pub address: u64,
    /// The size in bytes; for a block, the requested size.
    pub bytes: u64,
    /// The time in the unit of the recording's [`Clock`](super::Clock), or [`NO_TIME`](Self::NO_TIME).
    pub raw_time: u64,
    /// The number of the thread, stream and pool; see [`Recording::lane`](super::Recording::lane).
    pub lane: u32,
    /// The call stack; see [`Recording::stack`](super::Recording::stack).
    pub stack: Option<Id>,
    /// The tag; see [`Recording::tag`](super::Recording::tag).
    pub tag: Option<Id>,
}

/// Recordings have millions of events.
const _: () = assert!(size_of::<Event>() == 40);

impl Event {
    /// The time of an event with an unknown time.
    pub const NO_TIME: u64 = u64::MAX;

    /// Returns an event with nothing but its kind.
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
