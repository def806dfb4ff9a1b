//! How calls name streams.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The identity of a stream. No two streams of a process ever have the same identity. A raw handle is
/// different: CUDA may give the handle of a destroyed stream to a new stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(u64);

impl StreamId {
    /// The id of the legacy default stream.
    pub const LEGACY: Self = Self(0);

    /// Returns the id as a number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns whether this is the id of a per-thread default stream, of any thread.
    pub const fn is_per_thread(self) -> bool {
        self.0 & PER_THREAD_BIT != 0
    }
}

/// Millpond numbers the ids of per-thread default streams itself; other ids come from the driver.
const PER_THREAD_BIT: u64 = 1 << 63;

/// Marks a [`StreamRef`] whose maker guarantees that the stream is alive; not part of the identity.
const FOREIGN_BIT: u64 = 1 << 62;

/// A stream argument: the raw handle of a stream, and the identity of the stream.
///
/// A `StreamRef` is 16 bytes and cheap to copy. Handles `0` and `1` are the legacy default stream. Handle `2`
/// is the per-thread default stream, a different stream on each thread. On each thread, [`id`](Self::id)
/// returns the identity of that thread's stream. For any other stream,
/// [`Driver::stream_ref`](crate::Driver::stream_ref) reads the identity from the driver once. The `StreamRef`
/// then carries the identity, so a cache hit makes no driver call.
///
/// A `StreamRef` does not keep its stream alive, and may outlive the stream. A driver knows the streams that
/// were made through it. If such a stream was destroyed or never existed, a driver call with the `StreamRef`
/// fails. An allocation that makes no driver call on the stream can still succeed. If a stream was made
/// elsewhere, the caller guarantees that the stream is alive ([`foreign`](Self::foreign)).
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
    /// The legacy default stream (handle `0`). CUDA treats a null stream as the legacy default stream, unless
    /// the program is compiled for per-thread default streams.
    pub const LEGACY: Self = Self { handle: 0, id: StreamId::LEGACY.0 };

    /// The per-thread default stream (handle `2`).
    pub const PER_THREAD: Self = Self { handle: 2, id: PER_THREAD_BIT };

    /// Returns a new stream with this raw handle, and with an id that no other stream of the process has. A
    /// [driver of your own](crate::Driver#a-driver-of-your-own) calls this function once for each stream that
    /// it creates. The handles 0, 1 and 2 return the default streams.
    ///
    /// ```
    /// use millpond_core::StreamRef;
    /// let [first, second] = [StreamRef::with_new_id(64), StreamRef::with_new_id(64)];
    /// assert!(first != second && first.handle() == second.handle());
    /// ```
    pub fn with_new_id(handle: u64) -> Self {
        // CUDA and the simulated device count from 1.
        static NEXT: AtomicU64 = AtomicU64::new(1 << 61);
        Self::from_raw_parts(handle, NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the stream with this raw handle, and with the unique id that the driver gave. To get a new
    /// unique id, call [`with_new_id`](Self::with_new_id).
    ///
    /// `unique_id` is ignored for the handles 0, 1 and 2, the default streams. For other handles, the bits 62
    /// and 63 of `unique_id` are ignored, and the id 0 is the id of the legacy default stream.
    ///
    /// The stream must have been made through a [`Driver`](crate::Driver). The driver refuses calls with any
    /// other stream.
    pub const fn from_raw_parts(handle: u64, unique_id: u64) -> Self {
        match handle {
            0 | 1 => Self { handle, id: StreamId::LEGACY.0 },
            2 => Self::PER_THREAD,
            _ => Self { handle, id: unique_id & !(PER_THREAD_BIT | FOREIGN_BIT) },
        }
    }

    /// Returns a stream that a framework or the program's own CUDA calls made, and not a
    /// [`Driver`](crate::Driver). The driver cannot know whether such a stream is alive. To get `unique_id`,
    /// call [`Driver::stream_ref`](crate::Driver::stream_ref).
    ///
    /// # Safety
    /// The stream stays alive for as long as this value, or a copy of it, is passed to calls.
    pub const unsafe fn foreign(handle: u64, unique_id: u64) -> Self {
        let stream = Self::from_raw_parts(handle, unique_id);
        if handle <= Self::PER_THREAD.handle {
            return stream;
        }
        Self { id: stream.id | FOREIGN_BIT, ..stream }
    }

    /// Returns whether the `StreamRef` was made with [`foreign`](Self::foreign). The caller of `foreign`
    /// guarantees that the stream is alive.
    pub const fn is_foreign(self) -> bool {
        self.id & FOREIGN_BIT != 0
    }

    /// Returns the raw handle (`CUstream` as a number).
    pub const fn handle(self) -> u64 {
        self.handle
    }

    /// Returns the identity of the stream. For [`StreamRef::PER_THREAD`], returns the identity of the calling
    /// thread's stream.
    #[inline]
    pub fn id(self) -> StreamId {
        if self.id & PER_THREAD_BIT != 0 { per_thread_id() } else { StreamId(self.id & !FOREIGN_BIT) }
    }

    /// Returns whether this is the legacy default stream.
    pub const fn is_legacy(self) -> bool {
        self.handle < 2
    }

    /// Returns whether this is the per-thread default stream.
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
    // After the thread's locals are destroyed, every call gets a new id.
    MINE.try_with(|id| *id)
        .unwrap_or_else(|_| StreamId(NEXT.fetch_add(1, Ordering::Relaxed) | PER_THREAD_BIT))
}

impl PartialEq for StreamRef {
    fn eq(&self, other: &Self) -> bool {
        (self.id ^ other.id) & !FOREIGN_BIT == 0
    }
}

impl Eq for StreamRef {}

impl std::hash::Hash for StreamRef {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.id & !FOREIGN_BIT).hash(state);
    }
}

impl fmt::Debug for StreamRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamRef({self})")
    }
}

/// Prints the stream as RMM's logs do: `0`, `0x1`, `0x2`, `0x55e8c0a1b2d0`.
impl fmt::Display for StreamRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.handle == 0 { f.write_str("0") } else { write!(f, "{:#x}", self.handle) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_vouches_for_a_stream_is_no_part_of_what_it_is() {
        let own = StreamRef::from_raw_parts(0x100, 7);
        // SAFETY: no driver is called with it.
        let foreign = unsafe { StreamRef::foreign(0x100, 7) };
        assert!(foreign.is_foreign() && !own.is_foreign());
        assert_eq!((own, own.id()), (foreign, foreign.id()));
        assert_ne!(own, StreamRef::from_raw_parts(0x100, 8));
        let set: std::collections::HashSet<_> = [own, foreign].into();
        assert_eq!(set.len(), 1);
        for handle in 0..3 {
            // SAFETY: the default streams are always alive.
            assert!(!unsafe { StreamRef::foreign(handle, 7) }.is_foreign());
        }
        let numbered = StreamRef::from_raw_parts(0x100, u64::MAX);
        assert!(!numbered.is_foreign(), "no number vouches");
    }

    #[test]
    fn new_ids_are_those_of_no_other_stream() {
        let [first, second] = [StreamRef::with_new_id(0x100), StreamRef::with_new_id(0x100)];
        let others = [StreamRef::LEGACY, StreamRef::PER_THREAD, StreamRef::from_raw_parts(0x100, 1)];
        assert!(first != second && !others.contains(&first) && !others.contains(&second));
        assert!(!first.is_foreign() && first.handle() == 0x100);
        assert_eq!([0, 1, 2].map(|handle| StreamRef::with_new_id(handle).id()), {
            [StreamRef::LEGACY, StreamRef::LEGACY, StreamRef::PER_THREAD].map(StreamRef::id)
        });
    }
}
