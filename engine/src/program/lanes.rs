//! The pairs of thread and stream in a log.

use rustc_hash::FxHashMap;

use crate::log::{Event, StreamKey};

/// The thread and the stream of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Lane {
    /// The number of the thread. Threads are counted from 0, in the order of their first rows.
    pub thread: u32,
    /// The number of the stream. Streams are counted from 0, in the order of their first rows. The per-thread
    /// default streams of two threads are two streams.
    pub stream: u32,
    /// The stream as the log names it.
    pub key: StreamKey,
}

/// Numbers the threads, the streams, and their pairs.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    threads: FxHashMap<u64, u32>,
    /// The number of each stream. The key of a per-thread stream includes its thread.
    streams: FxHashMap<(StreamKey, Option<u64>), u32>,
    lanes: Vec<Lane>,
    by_name: FxHashMap<(u64, StreamKey), u32>,
    /// The last lane. Most rows have the same lane as the previous row.
    last: Option<((u64, StreamKey), u32)>,
}

impl Lanes {
    #[inline]
    pub(super) fn of(&mut self, event: &Event) -> u32 {
        let name = (event.thread, event.stream);
        match self.last {
            Some((last, lane)) if last == name => lane,
            _ => {
                let lane = self.find_or_add(name);
                self.last = Some((name, lane));
                lane
            }
        }
    }

    fn find_or_add(&mut self, name: (u64, StreamKey)) -> u32 {
        if let Some(&lane) = self.by_name.get(&name) {
            return lane;
        }
        let (thread, key) = name;
        let next = self.threads.len() as u32;
        let thread_index = *self.threads.entry(thread).or_insert(next);
        let next = self.streams.len() as u32;
        let owner = (key == StreamKey::PerThread).then_some(thread);
        let stream = *self.streams.entry((key, owner)).or_insert(next);
        let lane = self.lanes.len() as u32;
        self.lanes.push(Lane { thread: thread_index, stream, key });
        self.by_name.insert(name, lane);
        lane
    }

    /// Returns the number of a lane's stream.
    #[inline]
    pub(super) fn stream(&self, lane: u32) -> usize {
        self.lanes[lane as usize].stream as usize
    }

    pub(super) fn thread_count(&self) -> usize {
        self.threads.len()
    }

    pub(super) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn into_vec(self) -> Vec<Lane> {
        self.lanes
    }
}
