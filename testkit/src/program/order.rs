//! What a careful caller knows of the order of its own work: a vector clock for each stream.

use super::op::{Event, MAX_EVENTS, MAX_STREAMS, Stream};

/// How far along each stream something is known to be.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Clock([u32; MAX_STREAMS]);

impl Clock {
    fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    fn covers(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(mine, theirs)| mine >= theirs)
    }

    /// The streams that `other` has gone further on.
    fn lacks(&self, other: &Self) -> Option<Stream> {
        self.0.iter().zip(&other.0).position(|(mine, theirs)| mine < theirs).map(|index| index as Stream)
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
        let time = &mut self.0[usize::from(point.stream)];
        *time = (*time).max(point.time);
    }
}

/// The clocks of the streams, the events and the host.
#[derive(Clone, Debug)]
pub(super) struct Order {
    streams: [Clock; MAX_STREAMS],
    events: [Option<Clock>; MAX_EVENTS],
    host: Clock,
}

impl Order {
    pub(super) fn new() -> Self {
        Self { streams: [Clock::default(); MAX_STREAMS], events: [None; MAX_EVENTS], host: Clock::default() }
    }

    /// Submits work to a stream.
    pub(super) fn submit(&mut self, stream: Stream) -> Point {
        let index = usize::from(stream);
        let clock = &mut self.streams[index];
        clock.join(&self.host);
        clock.0[index] += 1;
        Point { stream, time: clock.0[index] }
    }

    /// Whether work submitted to the stream now happens after all of `work`.
    pub(super) fn is_after(&self, stream: Stream, work: &Clock) -> bool {
        let mut clock = self.streams[usize::from(stream)];
        clock.join(&self.host);
        clock.covers(work)
    }

    /// A stream that must be waited for before `stream` may follow `work`.
    pub(super) fn missing(&self, stream: Stream, work: &Clock) -> Option<Stream> {
        let mut clock = self.streams[usize::from(stream)];
        clock.join(&self.host);
        clock.lacks(work)
    }

    pub(super) fn record(&mut self, event: Event, stream: Stream) {
        let mut clock = self.streams[usize::from(stream)];
        clock.join(&self.host);
        self.events[usize::from(event)] = Some(clock);
    }

    pub(super) fn is_recorded(&self, event: Event) -> bool {
        self.events[usize::from(event)].is_some()
    }

    pub(super) fn wait(&mut self, stream: Stream, event: Event) {
        if let Some(clock) = &self.events[usize::from(event)] {
            self.streams[usize::from(stream)].join(clock);
        }
    }

    /// The host knows that the event is done.
    pub(super) fn host_saw_event(&mut self, event: Event) {
        if let Some(clock) = &self.events[usize::from(event)] {
            self.host.join(clock);
        }
    }

    pub(super) fn host_saw_stream(&mut self, stream: Stream) {
        self.host.join(&self.streams[usize::from(stream)]);
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
