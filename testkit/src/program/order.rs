//! The order of a careful caller's own work: a vector clock for each stream.

use smallvec::SmallVec;

use super::op::{Event, MAX_EVENTS, Stream};

/// The known ticks of each stream; 0 for the streams behind the last.
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

    fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Whether this clock, or the host's, includes all of `other`.
    fn covers(&self, host: &Self, other: &Self) -> bool {
        self.lacks(host, other).is_none()
    }

    /// A stream on which `other` is ahead of this clock and the host's.
    fn lacks(&self, host: &Self, other: &Self) -> Option<Stream> {
        let known = |stream: usize| self.time(stream).max(host.time(stream));
        (0..).zip(&other.0).position(|(stream, theirs)| known(stream) < *theirs).map(|index| index as Stream)
    }
}

/// A point in the work of one stream.
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
        match self.streams.get(usize::from(stream)) {
            Some(clock) => clock.covers(&self.host, work),
            None => self.host.covers(&self.host, work),
        }
    }

    /// A stream that must be waited for before `stream` may follow `work`.
    pub(super) fn missing(&self, stream: Stream, work: &Clock) -> Option<Stream> {
        match self.streams.get(usize::from(stream)) {
            Some(clock) => clock.lacks(&self.host, work),
            None => self.host.lacks(&self.host, work),
        }
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

    /// Adds to the host's knowledge that the event is done.
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
        assert!(order.is_after(5, &second), "the host submits after what it has seen");
        let third = work(&[order.submit(5), order.submit(6)]);
        order.host_saw_device();
        assert!(order.is_after(0, &third));
    }
}
