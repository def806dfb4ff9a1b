//! The order of the work of a careful caller: a vector clock for each stream.
//!
//! A capturing stream has two clocks. Its work becomes a part of the graph and does not run, so captured
//! order holds only for the graph. The clock of the capture tracks this order. The other clock tracks the
//! work outside the capture that runs before the stream's work. After the capture, it becomes the stream's
//! clock again.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::op::{Event, MAX_EVENTS, Stream};

/// The known ticks of each stream; 0 for streams beyond the end.
#[derive(Clone, Default, Debug)]
pub(super) struct Clock(SmallVec<[u32; 24]>);

impl Clock {
    fn time(&self, stream: usize) -> u32 {
        self.0.get(stream).copied().unwrap_or(0)
    }

    fn time_mut(&mut self, stream: usize) -> &mut u32 {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        &mut self.0[stream]
    }

    pub(super) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// A stream on which this clock is ahead of all `others`.
    fn ahead_of(&self, others: &[&Self]) -> Option<Stream> {
        let is_ahead = |(stream, time): (usize, &u32)| others.iter().all(|other| other.time(stream) < *time);
        (0..).zip(&self.0).position(is_ahead).map(|stream| stream as Stream)
    }
}

/// A point in one stream's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    stream: Stream,
    time: u32,
}

impl Clock {
    pub(super) fn add(&mut self, point: Point) {
        let time = self.time_mut(usize::from(point.stream));
        *time = (*time).max(point.time);
    }
}

/// The clocks of the streams, the events and the host.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    streams: Vec<Clock>,
    /// For capturing streams, their clocks outside the captures.
    outside: FxHashMap<Stream, Clock>,
    events: [Option<Clock>; MAX_EVENTS],
    host: Clock,
}

impl Order {
    pub(super) fn new() -> Self {
        Self::default()
    }

    fn stream(&mut self, stream: Stream) -> &mut Clock {
        let index = usize::from(stream);
        if self.streams.len() <= index {
            self.streams.resize_with(index + 1, Clock::default);
        }
        &mut self.streams[index]
    }

    /// Submits work to a stream.
    pub(super) fn submit(&mut self, stream: Stream) -> Point {
        let mut clock = std::mem::take(self.stream(stream));
        clock.join(&self.host);
        let time = clock.time_mut(usize::from(stream));
        *time += 1;
        let point = Point { stream, time: *time };
        *self.stream(stream) = clock;
        point
    }

    /// Whether work submitted to the stream now happens after all of `work`.
    pub(super) fn is_after(&self, stream: Stream, work: &Clock) -> bool {
        self.missing(stream, work).is_none()
    }

    /// A stream that `stream` must wait for before it may follow `work`.
    pub(super) fn missing(&self, stream: Stream, work: &Clock) -> Option<Stream> {
        let known = self.streams.get(usize::from(stream)).unwrap_or(&self.host);
        work.ahead_of(&[known, &self.host])
    }

    /// The order in which the stream's work really runs, without the order inside its capture.
    pub(super) fn outside(&self, stream: Stream) -> &Clock {
        let known = self.outside.get(&stream).or_else(|| self.streams.get(usize::from(stream)));
        known.unwrap_or(&self.host)
    }

    /// Whether all of `work` happens before the next work on one of these streams, by an order outside of
    /// captures.
    pub(super) fn runs_before(&self, work: &Clock, streams: &[Stream]) -> bool {
        let outside = streams.iter().map(|stream| self.outside(*stream));
        let known: SmallVec<[&Clock; 4]> = outside.chain([&self.host]).collect();
        work.ahead_of(&known).is_none()
    }

    /// The stream joins a capture.
    pub(super) fn join_capture(&mut self, stream: Stream) {
        let clock = self.stream(stream).clone();
        self.outside.insert(stream, clock);
    }

    /// The stream's capture ends, and the stream forgets the captured order. Its ticks continue.
    pub(super) fn leave_capture(&mut self, stream: Stream) {
        let Some(mut clock) = self.outside.remove(&stream) else { return };
        let known = self.stream(stream);
        *clock.time_mut(usize::from(stream)) = known.time(usize::from(stream));
        *known = clock;
    }

    pub(super) fn record(&mut self, event: Event, stream: Stream) {
        let mut clock = self.stream(stream).clone();
        clock.join(&self.host);
        self.events[usize::from(event)] = Some(clock);
    }

    pub(super) fn is_recorded(&self, event: Event) -> bool {
        self.events[usize::from(event)].is_some()
    }

    pub(super) fn wait(&mut self, stream: Stream, event: Event) {
        if let Some(clock) = self.events[usize::from(event)].take() {
            self.stream(stream).join(&clock);
            self.events[usize::from(event)] = Some(clock);
        }
    }

    /// The host learns that the event is done.
    pub(super) fn host_saw_event(&mut self, event: Event) {
        if let Some(clock) = &self.events[usize::from(event)] {
            self.host.join(clock);
        }
    }

    pub(super) fn host_saw_stream(&mut self, stream: Stream) {
        if let Some(clock) = self.streams.get(usize::from(stream)) {
            self.host.join(clock);
        }
    }

    pub(super) fn host_saw_device(&mut self) {
        for clock in &self.streams {
            self.host.join(clock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(points: &[Point]) -> Clock {
        let mut clock = Clock::default();
        points.iter().for_each(|&point| clock.add(point));
        clock
    }

    #[test]
    fn order_passes_through_events_and_the_host() {
        let mut order = Order::new();
        let first = work(&[order.submit(2)]);
        assert!(order.is_after(2, &first) && !order.is_after(3, &first));
        assert_eq!(order.missing(3, &first), Some(2));
        order.record(0, 2);
        let second = work(&[order.submit(2)]);
        order.wait(3, 0);
        assert!(order.is_after(3, &first) && !order.is_after(3, &second), "recorded before the second");
        order.record(1, 3);
        order.wait(4, 1);
        assert!(order.is_after(4, &first), "order is transitive");
        order.host_saw_stream(2);
        assert!(order.is_after(5, &second), "the host submits after the work that it has seen");
        let third = work(&[order.submit(5), order.submit(6)]);
        order.host_saw_device();
        assert!(order.is_after(0, &third));
    }

    #[test]
    fn a_captured_order_holds_for_the_graph_alone() {
        let mut order = Order::new();
        let before = work(&[order.submit(2)]);
        order.join_capture(2);
        order.record(0, 2);
        order.join_capture(3);
        order.wait(3, 0);
        let captured = work(&[order.submit(3)]);
        assert!(order.is_after(3, &before), "in the graph");
        assert!(!order.runs_before(&before, &[3]) && order.runs_before(&before, &[3, 2]));
        order.record(1, 3);
        order.wait(2, 1);
        assert!(order.is_after(2, &captured), "in the graph");
        [2, 3].into_iter().for_each(|stream| order.leave_capture(stream));
        assert!(order.is_after(2, &before) && !order.is_after(3, &before) && !order.is_after(2, &captured));
        let after = work(&[order.submit(3)]);
        order.record(0, 3);
        order.wait(2, 0);
        assert!(order.is_after(2, &after), "the ticks continue");
    }
}
