//! The living streams that this driver made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use millpond_core::{StreamId, StreamRef};
use rustc_hash::FxBuildHasher;

/// Set while a stream is being destroyed, and afterwards.
const ENDING: u32 = 1 << 31;

/// How long destroying a stream waits for calls that use it. They take microseconds, unless code that CUDA
/// calls back, such as a profiler's, waits inside one of them.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long destroying a stream sleeps between two checks.
const NAP: Duration = Duration::from_micros(20);

/// The streams by handle. No lock is held during a CUDA call.
#[derive(Debug, Default)]
pub(super) struct LivingStreams(DashMap<u64, Arc<Living>, FxBuildHasher>);

#[derive(Debug)]
struct Living {
    stream: StreamRef,
    /// The number of calls that use the stream, and the flag `ENDING`.
    uses: AtomicU32,
}

/// A use of a stream. The stream cannot end until it is dropped.
pub(super) struct Use(Arc<Living>);

/// The outcome of a request to end a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End<T> {
    /// The result of the call that destroys the stream.
    Asked(T),
    /// The handle belongs to no stream that this driver made.
    Elsewhere,
    /// The stream has ended, or is ending.
    Gone,
    /// A call still uses the stream.
    InUse,
}

impl LivingStreams {
    /// Records a stream that was just created.
    pub(super) fn insert(&self, stream: StreamRef) {
        let living = Arc::new(Living { stream, uses: AtomicU32::new(0) });
        self.0.insert(stream.handle(), living);
    }

    fn known(&self, handle: u64) -> Option<Arc<Living>> {
        self.0.get(&handle).map(|living| Arc::clone(&living))
    }

    /// The identity of the living stream with this handle.
    pub(super) fn id(&self, handle: u64) -> Option<StreamId> {
        let living = self.0.get(&handle)?;
        (living.uses.load(Ordering::Acquire) & ENDING == 0).then_some(living.stream.id())
    }

    /// The living streams.
    pub(super) fn all(&self) -> Vec<StreamRef> {
        self.0.iter().map(|living| living.stream).collect()
    }

    /// Whether this driver made the stream and it is alive.
    pub(super) fn is_alive(&self, stream: StreamRef) -> bool {
        self.id(stream.handle()) == Some(stream.id())
    }

    /// Keeps the stream alive, if this driver made it and it is alive.
    pub(super) fn keep(&self, stream: StreamRef) -> Option<Use> {
        let living = self.known(stream.handle()).filter(|living| living.stream.id() == stream.id())?;
        let used = |uses: u32| (uses & ENDING == 0).then_some(uses + 1);
        living.uses.fetch_update(Ordering::AcqRel, Ordering::Acquire, used).ok()?;
        Some(Use(living))
    }

    /// Ends the stream with `destroy` when no call uses it. If `destroy` fails, the stream lives on.
    pub(super) fn end<E>(
        &self,
        stream: StreamRef,
        destroy: impl FnOnce() -> Result<(), E>,
    ) -> End<Result<(), E>> {
        let Some(living) = self.known(stream.handle()) else { return End::Elsewhere };
        let is_mine = || living.uses.fetch_or(ENDING, Ordering::AcqRel) & ENDING == 0;
        if living.stream.id() != stream.id() || !is_mine() {
            return End::Gone;
        }
        let begin = Instant::now();
        while living.uses.load(Ordering::Acquire) != ENDING {
            if begin.elapsed() > PATIENCE {
                living.uses.fetch_and(!ENDING, Ordering::AcqRel);
                return End::InUse;
            }
            thread::sleep(NAP);
        }
        let destroyed = destroy();
        if destroyed.is_ok() {
            // Another stream may already have the handle.
            self.0.remove_if(&stream.handle(), |_, known| Arc::ptr_eq(known, &living));
        } else {
            living.uses.fetch_and(!ENDING, Ordering::AcqRel);
        }
        End::Asked(destroyed)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn stream(handle: u64, id: u64) -> StreamRef {
        StreamRef::from_raw_parts(handle, id)
    }

    fn ended(streams: &LivingStreams, stream: StreamRef) -> End<Result<(), ()>> {
        streams.end(stream, || Ok(()))
    }

    #[test]
    fn a_stream_is_alive_until_it_is_destroyed() {
        let streams = LivingStreams::default();
        let [first, second] = [stream(64, 1), stream(64, 2)];
        assert!(!streams.is_alive(first) && ended(&streams, first) == End::Elsewhere);
        streams.insert(first);
        assert!(streams.is_alive(first) && streams.keep(first).is_some());
        assert!(!streams.is_alive(second) && streams.keep(second).is_none());
        assert_eq!(streams.end(first, || Err("refused")), End::Asked(Err("refused")));
        assert!(streams.is_alive(first), "it was not destroyed");
        assert_eq!(ended(&streams, second), End::Gone);
        // Another thread gets the handle before this one records the end.
        let destroy = || {
            assert!(!streams.is_alive(first) && streams.keep(first).is_none());
            assert_eq!(ended(&streams, first), End::Gone);
            streams.insert(second);
            Ok::<(), ()>(())
        };
        assert_eq!(streams.end(first, destroy), End::Asked(Ok(())));
        assert!(streams.is_alive(second) && streams.id(64) == Some(second.id()));
    }

    /// A callback from CUDA, such as a profiler's, waits for another thread that uses any other stream.
    #[test]
    fn issue_29_a_call_that_uses_a_stream_keeps_no_other_call_waiting() {
        let streams = Arc::new(LivingStreams::default());
        let all: Vec<StreamRef> = (1..500).map(|number| stream(number * 64, number)).collect();
        all.iter().for_each(|stream| streams.insert(*stream));
        let others = |streams: Arc<LivingStreams>| {
            let (done, is_done) = mpsc::channel();
            let all = all[1..].to_vec();
            thread::spawn(move || {
                for stream in all {
                    drop(streams.keep(stream).expect("it is alive"));
                    assert_eq!(ended(&streams, stream), End::Asked(Ok(())));
                    streams.insert(stream);
                }
                done.send(())
            });
            is_done.recv_timeout(Duration::from_secs(60)).expect("the other thread hangs");
        };
        let kept = streams.keep(all[0]).expect("it is alive");
        others(Arc::clone(&streams));
        drop(kept);
        let ended = streams.end(all[0], || {
            others(Arc::clone(&streams));
            Ok::<(), ()>(())
        });
        assert_eq!(ended, End::Asked(Ok(())));
    }

    #[test]
    fn a_stream_ends_after_the_calls_that_use_it() {
        let streams = LivingStreams::default();
        let it = stream(64, 1);
        streams.insert(it);
        thread::scope(|scope| {
            let kept = streams.keep(it).expect("it is alive");
            let end = scope.spawn(|| ended(&streams, it));
            while streams.is_alive(it) {
                thread::yield_now();
            }
            assert!(!end.is_finished() && streams.keep(it).is_none());
            drop(kept);
            assert_eq!(end.join().expect("it does not panic"), End::Asked(Ok(())));
        });
    }
}
