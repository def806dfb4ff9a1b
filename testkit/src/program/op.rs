//! The operations of a program.

use std::fmt;

use millpond_core::driver::CaptureMode;
use millpond_core::format_bytes;
use millpond_driver::CallKind;

/// The number of a block in the program.
pub type Block = u32;

/// The number of a stream in the program. 0 is the legacy default stream, and 1 is the per-thread default
/// stream. The other streams are created when the program first names them. Streams with even numbers are
/// non-blocking, and streams with odd numbers are blocking.
pub type Stream = u16;

/// The number of an event in the program. The event is created when the program first names it.
pub type Event = u8;

/// The number of a scope for captured graphs in the program. The scope is created when the program first
/// names it.
pub type Scope = u8;

/// The number of streams that a program can name.
pub const MAX_STREAMS: usize = 640;

/// The number of events that a program can name.
pub const MAX_EVENTS: usize = 16;

/// The number of scopes that a program can name.
pub const MAX_SCOPES: usize = 4;

/// A caller's mistake in freeing a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Mistake {
    /// The block is freed a second time.
    DoubleFree,
    /// The block is freed with one byte more than its size.
    WrongSize,
    /// An address inside the block is freed.
    Inside,
}

/// One operation of a program.
///
/// Blocks, streams and events are named by numbers, so a program keeps its meaning when operations are
/// removed. An operation is skipped if the caller must not do it at that moment. For example, its block is
/// not live, or the work of its stream is not ordered after the block's uses. So every list of operations is
/// a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Op {
    /// Allocates a block and writes a tag into it.
    Allocate {
        /// The number of the new block. The operation is skipped if the number was used before.
        block: Block,
        /// The stream of the call and of the write.
        stream: Stream,
        /// The size in bytes.
        bytes: u64,
        /// The alignment in bytes: a power of two.
        alignment: u64,
    },
    /// Checks the block's tag and frees the block.
    Deallocate {
        /// The block.
        block: Block,
        /// The stream of the call and of the check.
        stream: Stream,
    },
    /// Checks the block's tag.
    Read {
        /// The block.
        block: Block,
        /// The stream.
        stream: Stream,
    },
    /// Writes a new tag into the block.
    Write {
        /// The block.
        block: Block,
        /// The stream.
        stream: Stream,
    },
    /// Records an event.
    Record {
        /// The event.
        event: Event,
        /// The stream.
        stream: Stream,
    },
    /// Makes a stream wait for an event.
    Wait {
        /// The waiting stream.
        stream: Stream,
        /// The event.
        event: Event,
    },
    /// Queries whether an event is done; if it is, the host learns that.
    QueryEvent {
        /// The event.
        event: Event,
    },
    /// Waits on the host for an event.
    SyncEvent {
        /// The event.
        event: Event,
    },
    /// Waits on the host for a stream.
    SyncStream {
        /// The stream.
        stream: Stream,
    },
    /// Waits on the host for the device.
    SyncDevice,
    /// Destroys a stream, even if work is left on it. Its number is not used again.
    DestroyStream {
        /// The stream; 0 and 1 cannot be destroyed.
        stream: Stream,
    },
    /// Trims the resource.
    Trim {
        /// The free bytes that the resource may keep.
        keep_bytes: u64,
    },
    /// Lets time pass, so that the resource may release idle memory.
    PassTime {
        /// The time in milliseconds.
        ms: u64,
    },
    /// Makes one driver call fail in the next operation on the resource.
    FailCall {
        /// The kind of the call.
        kind: CallKind,
        /// The number of the call among the driver calls of that kind, counted from 0.
        nth: u8,
        /// The code of the failing call, as in [`DriverError::code`](millpond_core::DriverError::code). It is
        /// not sticky.
        code: i32,
    },
    /// Begins to capture a graph on a stream.
    BeginCapture {
        /// The stream.
        stream: Stream,
        /// The mode of the capture.
        mode: CaptureMode,
    },
    /// Joins all streams of a capture to the stream that began it, and ends the capture.
    EndCapture {
        /// The stream that began the capture.
        stream: Stream,
    },
    /// Launches a captured graph.
    LaunchGraph {
        /// How many captures ago the graph was captured: 0 for the most recent.
        back: u8,
        /// The stream.
        stream: Stream,
    },
    /// Opens a scope for captured graphs for a stream.
    OpenScope {
        /// The scope.
        scope: Scope,
        /// The stream, which is open in no scope yet.
        stream: Stream,
    },
    /// Closes the scope that is open for a stream.
    CloseScope {
        /// The stream.
        stream: Stream,
    },
    /// Drops a scope. It ends when it is open for no stream.
    DropScope {
        /// The scope.
        scope: Scope,
    },
    /// Frees a block in a wrong way, which the resource must refuse and report once.
    Misuse {
        /// The block. After [`Mistake::DoubleFree`] it is free; otherwise it stays live.
        block: Block,
        /// The stream of the call.
        stream: Stream,
        /// The mistake.
        mistake: Mistake,
    },
    /// Continues with another device's program.
    Device {
        /// The device, counted from 0.
        device: u8,
    },
    /// Continues on another thread, which starts when it is first named.
    Thread {
        /// The thread, counted from 0. Its per-thread default stream is stream `1 + 2 * thread`.
        thread: u8,
    },
    /// Resets the device's context, which ends the device's program.
    ResetContext,
    /// Makes every further driver call fail with a sticky error, which ends the device's program.
    LoseDevice,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Allocate { block, stream, bytes, alignment } => {
                write!(f, "block {block} = allocate {} on stream {stream}", format_bytes(bytes))?;
                match alignment {
                    0..=256 => Ok(()),
                    _ => write!(f, ", aligned to {}", format_bytes(alignment)),
                }
            }
            Self::Deallocate { block, stream } => write!(f, "deallocate block {block} on stream {stream}"),
            Self::Read { block, stream } => write!(f, "read block {block} on stream {stream}"),
            Self::Write { block, stream } => write!(f, "write block {block} on stream {stream}"),
            Self::Record { event, stream } => write!(f, "record event {event} on stream {stream}"),
            Self::Wait { stream, event } => write!(f, "stream {stream} waits for event {event}"),
            Self::QueryEvent { event } => write!(f, "query event {event}"),
            Self::SyncEvent { event } => write!(f, "host waits for event {event}"),
            Self::SyncStream { stream } => write!(f, "host waits for stream {stream}"),
            Self::SyncDevice => f.write_str("host waits for the device"),
            Self::DestroyStream { stream } => write!(f, "destroy stream {stream}"),
            Self::Trim { keep_bytes } => write!(f, "trim to {}", format_bytes(keep_bytes)),
            Self::PassTime { ms } => write!(f, "{ms} ms pass"),
            Self::FailCall { kind, nth, code } => {
                write!(f, "driver call {kind} {nth} of the next operation fails with {code}")
            }
            Self::BeginCapture { stream, mode } => write!(f, "stream {stream} begins a capture ({mode:?})"),
            Self::EndCapture { stream } => write!(f, "stream {stream} ends its capture"),
            Self::LaunchGraph { back, stream } => {
                write!(f, "launch the graph captured {back} captures ago on stream {stream}")
            }
            Self::OpenScope { scope, stream } => write!(f, "open scope {scope} for stream {stream}"),
            Self::CloseScope { stream } => write!(f, "close the scope of stream {stream}"),
            Self::DropScope { scope } => write!(f, "drop scope {scope}"),
            Self::Misuse { block, stream, mistake } => {
                write!(f, "free block {block} on stream {stream} with a mistake: {mistake:?}")
            }
            Self::Device { device } => write!(f, "continue with device {device}"),
            Self::Thread { thread } => write!(f, "continue with thread {thread}"),
            Self::ResetContext => f.write_str("reset the context"),
            Self::LoseDevice => f.write_str("lose the device"),
        }
    }
}
