//! The stream on which a thread allocates.

use std::cell::Cell;
use std::marker::PhantomData;

use millpond_core::StreamRef;

thread_local! {
    static CURRENT: Cell<Option<StreamRef>> = const { Cell::new(None) };
}

/// Runs `body` with `stream` as the stream on which this thread's `memalloc` allocates.
///
/// NBEP 7 names no stream. So [`MillpondMemoryManager`](crate::MillpondMemoryManager) uses the legacy default
/// stream, which is correct for every blocking stream. Inside `with_stream`, memory is ready for use on
/// `stream` instead. If memory is dropped inside, and only `stream` uses it, the memory is freed in the order
/// of `stream`. If other streams use it, announce this with
/// [`record_stream`](crate::MillpondMemoryManager::record_stream). Calls nest. The stream must be alive until
/// `body` returns.
///
/// ```
/// use millpond_core::StreamRef;
/// use millpond_plugin::{current_stream, with_stream};
/// assert!(current_stream().is_legacy());
/// with_stream(StreamRef::PER_THREAD, || assert!(current_stream().is_per_thread()));
/// assert!(current_stream().is_legacy());
/// ```
pub fn with_stream<T>(stream: StreamRef, body: impl FnOnce() -> T) -> T {
    let _scope = StreamScope::enter(stream);
    body()
}

/// Returns the stream on which this thread's `memalloc` allocates; see [`with_stream`].
pub fn current_stream() -> StreamRef {
    // At the end of a thread, after its thread-local values are destroyed, late finalizers run outside of
    // every scope.
    CURRENT.try_with(Cell::get).ok().flatten().unwrap_or(StreamRef::LEGACY)
}

/// Works like [`with_stream`], as a guard, for callers that cannot pass a closure. Scopes end in reverse
/// order.
#[derive(Debug)]
#[must_use = "the stream is in use only while the guard lives"]
pub struct StreamScope {
    previous: Option<StreamRef>,
    /// The guard must stay on its thread.
    _not_send: PhantomData<*const ()>,
}

impl StreamScope {
    /// Makes `stream` this thread's stream until the guard is dropped.
    pub fn enter(stream: StreamRef) -> Self {
        let previous = CURRENT.try_with(|current| current.replace(Some(stream))).ok().flatten();
        Self { previous, _not_send: PhantomData }
    }
}

impl Drop for StreamScope {
    fn drop(&mut self) {
        // This fails only at the end of the thread, when the scope is no longer in use.
        let _ = CURRENT.try_with(|current| current.set(self.previous));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamRef = StreamRef::from_raw_parts(0x100, 11);
    const B: StreamRef = StreamRef::from_raw_parts(0x200, 12);

    #[test]
    fn scopes_nest_and_end_in_a_panic() {
        with_stream(A, || {
            let unwound = std::panic::catch_unwind(|| with_stream(B, || panic!("expected")));
            assert!(unwound.is_err());
            assert_eq!(current_stream(), A);
            with_stream(B, || assert_eq!(current_stream(), B));
            assert_eq!(current_stream(), A);
        });
        assert_eq!(current_stream(), StreamRef::LEGACY);
    }

    #[test]
    fn a_scope_is_its_threads_own() {
        with_stream(A, || {
            let other = std::thread::spawn(current_stream).join().unwrap();
            assert_eq!(other, StreamRef::LEGACY);
        });
    }
}
