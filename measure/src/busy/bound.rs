//! Computes the least memory with which no stream has to wait for another stream.

use std::collections::VecDeque;

use super::host::Host;
use super::plan::{Plan, Step};

/// How many launches of a stream may be unfinished. With more, the next launch waits, as in CUDA.
const DEEPEST_QUEUE: usize = 1024;

/// Returns the fewest bytes that an allocator needs if it never makes a stream wait for another stream. The
/// host takes `host_ns` nanoseconds for an allocation and its launch, and no other time.
///
/// At each moment, the host knows which operations of each stream the device has finished. If a stream held
/// memory after the last of these operations, no other stream can use this memory yet. So each stream needs
/// the peak of its live memory since then. The bound is the largest sum of these peaks over all streams. If a
/// block is freed on another stream, it moves to that stream, where it only counts as live memory. The sum
/// never falls below the live memory.
pub(super) fn least_bytes_without_waits(plan: &Plan, host: Host, host_ns: u64) -> u64 {
    let mut model = Model {
        now_ns: 0,
        host,
        host_ns,
        streams: plan.streams().iter().map(|_| Stream::default()).collect(),
        held: 0,
    };
    let most = plan.steps().iter().map(|step| model.step(step)).max().unwrap_or(0);
    most.max(plan.peak_live_bytes())
}

/// Models the host and the device in virtual time.
struct Model {
    now_ns: u64,
    host: Host,
    host_ns: u64,
    streams: Vec<Stream>,
    /// The sum over all streams of the most bytes that each stream held since its last finished operation.
    held: u64,
}

/// A stream, whose operations are counted from 0.
#[derive(Default)]
struct Stream {
    /// The virtual time at which the stream's last kernel ends.
    ready_ns: u64,
    /// The unfinished kernels. Each entry has the time at which the kernel ends, and the kernel's operation.
    unfinished: VecDeque<(u64, u64)>,
    operations: u64,
    live: u64,
    /// The operations since the last finished one, each with the live bytes after it. An operation is removed
    /// when a later operation has as many live bytes.
    highs: VecDeque<(u64, u64)>,
}

impl Model {
    /// Runs the step on the host. Returns the bytes that are held after the step.
    fn step(&mut self, step: &Step) -> u64 {
        if step.allocates() {
            self.launch(step.stream as usize, step.kernel_ns.into());
        }
        let stream = &mut self.streams[step.stream as usize];
        let before = stream.held();
        if step.stays {
            stream.live = if step.allocates() { stream.live + step.bytes } else { stream.live - step.bytes };
        }
        stream.note();
        self.held = self.held - before + stream.held();
        if self.host == Host::Sync && step.allocates() {
            self.now_ns = self.now_ns.max(self.streams[step.stream as usize].ready_ns);
        }
        for stream in &mut self.streams {
            let before = stream.held();
            stream.pass(self.now_ns);
            self.held = self.held - before + stream.held();
        }
        self.held
    }

    fn launch(&mut self, stream: usize, kernel_ns: u64) {
        let stream = &mut self.streams[stream];
        if self.host == Host::Level {
            self.now_ns = self.now_ns.max(stream.room_at(Host::LEVEL_KERNELS));
        }
        self.now_ns = (self.now_ns + self.host_ns).max(stream.room_at(DEEPEST_QUEUE));
        stream.ready_ns = self.now_ns.max(stream.ready_ns) + kernel_ns;
        stream.unfinished.push_back((stream.ready_ns, stream.operations));
    }
}

impl Stream {
    /// Returns the time at which fewer than `most` kernels will be unfinished.
    fn room_at(&self, most: usize) -> u64 {
        let last = self.unfinished.len().checked_sub(most);
        last.map_or(0, |last| self.unfinished[last].0)
    }

    /// Records an operation.
    fn note(&mut self) {
        while self.highs.back().is_some_and(|(_, live)| *live <= self.live) {
            self.highs.pop_back();
        }
        self.highs.push_back((self.operations, self.live));
        self.operations += 1;
    }

    /// Advances to `now_ns`, and removes finished kernels. If memory was live only before the operation that
    /// precedes the first unfinished one, it is now free for all streams.
    fn pass(&mut self, now_ns: u64) {
        while self.unfinished.front().is_some_and(|(end_ns, _)| *end_ns <= now_ns) {
            self.unfinished.pop_front();
        }
        let first = self.unfinished.front().map_or(self.operations, |(_, operation)| *operation);
        while self.highs.len() > 1 && self.highs[0].0 + 1 < first {
            self.highs.pop_front();
        }
    }

    fn held(&self) -> u64 {
        self.highs.front().map_or(0, |(_, live)| *live)
    }
}
