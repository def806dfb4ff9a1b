use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a stream *is*, in difference to its handle, which CUDA gives to another stream after the
/// first is destroyed. Unique for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(u64);

impl StreamId {
    /// The id of the legacy default stream.
    pub const LEGACY: Self = Self(0);

    /// The id as a number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether this is a per-thread default stream, of whatever thread.
    pub const fn is_per_thread(self) -> bool {
        self.0 & PER_THREAD_BIT != 0
    }
}

/// Ids of per-thread default streams are numbered by millpond, apart from the driver's.
const PER_THREAD_BIT: u64 = 1 << 63;

/// A stream as calls name it: the raw handle, and the identity of the stream behind it.
///
/// 16 bytes, copied freely. Handles `0` and `1` are the legacy default stream, `2` the per-thread
/// default stream, which is another stream on another thread: [`id`](Self::id) says which. For any
/// other stream the identity is read from the driver once, by
/// [`Driver::stream_ref`](crate::Driver::stream_ref), and carried along, so that a free-list hit
/// asks the driver nothing.
///
/// A `StreamRef` does not keep its stream alive. It must not be passed to a call after the stream was
/// destroyed.
///
/// ```
/// use millpond_core::StreamRef;
/// let mine = StreamRef::PER_THREAD.id();
/// let other = std::thread::spawn(|| StreamRef::PER_THREAD.id()).join().unwrap();
/// assert_ne!(mine, other);
/// ```
#[derive(Clone, Copy)]
pub struct StreamRef {
    handle: u64,
    id: u64,
}

impl StreamRef {
    /// The legacy default stream (handle `0`): what a null stream means unless a program is compiled
    /// for per-thread default streams.
    pub const LEGACY: Self = Self { handle: 0, id: StreamId::LEGACY.0 };

    /// The per-thread default stream (handle `2`).
    pub const PER_THREAD: Self = Self { handle: 2, id: PER_THREAD_BIT };

    /// The stream with this raw handle, whose unique id the driver gave as `unique_id`. For the
    /// special handles 0, 1 and 2 the id is not looked at.
    ///
    /// Call [`Driver::stream_ref`](crate::Driver::stream_ref) unless the id is at hand.
    pub const fn from_raw_parts(handle: u64, unique_id: u64) -> Self {
        match handle {
            0 | 1 => Self { handle, id: StreamId::LEGACY.0 },
            2 => Self::PER_THREAD,
            _ => Self { handle, id: unique_id & !PER_THREAD_BIT },
        }
    }

    /// The raw handle (`CUstream` as a number).
    pub const fn handle(self) -> u64 {
        self.handle
    }

    /// The identity of the stream. For [`StreamRef::PER_THREAD`] it is that of the calling thread's stream.
    #[inline]
    pub fn id(self) -> StreamId {
        if self.id & PER_THREAD_BIT != 0 { per_thread_id() } else { StreamId(self.id) }
    }

    /// Whether this is the legacy default stream.
    pub const fn is_legacy(self) -> bool {
        self.handle < 2
    }

    /// Whether this is the per-thread default stream.
    pub const fn is_per_thread(self) -> bool {
        self.handle == 2
    }
}

#[inline]
fn per_thread_id() -> StreamId {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static MINE: StreamId = StreamId(NEXT.fetch_add(1, Ordering::Relaxed) | PER_THREAD_BIT);
    }
    // After the thread's locals are gone every call gets an id that nobody else has.
    MINE.try_with(|id| *id)
        .unwrap_or_else(|_| StreamId(NEXT.fetch_add(1, Ordering::Relaxed) | PER_THREAD_BIT))
}

impl PartialEq for StreamRef {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for StreamRef {}

impl std::hash::Hash for StreamRef {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl fmt::Debug for StreamRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamRef({self})")
    }
}

/// As RMM's logs print it: `0`, `0x1`, `0x2`, `0x55e8c0a1b2d0`.
impl fmt::Display for StreamRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.handle == 0 { f.write_str("0") } else { write!(f, "{:#x}", self.handle) }
    }
}
