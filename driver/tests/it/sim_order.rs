//! Tests the happens-before rules of the simulated device: each rule kept, and each rule broken.

use millpond_core::driver::{Driver, Event, EventFlags, StreamFlags};
use millpond_core::{DevicePtr, StreamRef};
use millpond_driver::sim::{Access, Schedule, SimConfig, SimDevice, ViolationKind};
use std::sync::Arc;

const BLOCK: u64 = 4096;

/// A device with streams and one allocation. Work finishes only when it must.
struct Bench {
    device: Arc<SimDevice>,
    block: DevicePtr,
}

impl Bench {
    fn new() -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let block = device.mem_alloc(1 << 20).unwrap();
        Self { device, block }
    }

    fn stream(&self) -> StreamRef {
        self.device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
    }

    fn blocking(&self) -> StreamRef {
        self.device.stream_create(StreamFlags::BLOCKING).unwrap()
    }

    fn recorded(&self, stream: StreamRef) -> Event {
        let event = self.device.event_create(EventFlags::default()).unwrap();
        self.device.event_record(event, stream).unwrap();
        event
    }

    fn wait(&self, stream: StreamRef, event: Event) {
        self.device.stream_wait_event(stream, event).unwrap();
    }

    /// Acts as one owner: takes the block, writes to it and gives it back, all on one stream.
    fn own(&self, stream: StreamRef) {
        self.device.lend(self.block, BLOCK, stream);
        self.device.launch(stream, &[Access::write(self.block, BLOCK, stream.handle())]);
        self.device.launch(stream, &[Access::check(self.block, BLOCK, stream.handle())]);
        self.device.give_back(self.block, BLOCK, stream);
    }

    fn work(&self, stream: StreamRef) {
        self.device.launch(stream, &[]);
    }

    /// The violations since the last call.
    fn kinds(&self) -> Vec<ViolationKind> {
        self.device.take_violations().into_iter().map(|violation| violation.kind).collect()
    }

    /// Hands the block to a stream and returns whether that was in order.
    fn may_have(&self, stream: StreamRef) -> bool {
        assert_eq!(self.kinds(), [], "before");
        self.own(stream);
        let kinds = self.kinds();
        assert!(kinds.is_empty() || kinds == [ViolationKind::StreamOrder], "{kinds:?}");
        kinds.is_empty()
    }
}

#[test]
fn the_same_stream_may_have_it_again() {
    let b = Bench::new();
    let s = b.stream();
    b.own(s);
    assert!(b.may_have(s));
}

#[test]
fn another_stream_may_not() {
    let b = Bench::new();
    let (s, t) = (b.stream(), b.stream());
    b.own(s);
    assert!(!b.may_have(t));
}

#[test]
fn a_stream_without_work_leaves_nothing_to_wait_for() {
    let b = Bench::new();
    let (s, t) = (b.stream(), b.stream());
    b.device.lend(b.block, BLOCK, s);
    b.device.give_back(b.block, BLOCK, s);
    assert!(b.may_have(t));
}

#[test]
fn an_event_recorded_after_the_release_orders() {
    let b = Bench::new();
    let (s, t) = (b.stream(), b.stream());
    b.own(s);
    b.wait(t, b.recorded(s));
    assert!(b.may_have(t));
}

#[test]
fn an_event_recorded_after_the_last_work_orders_even_before_the_release() {
    let b = Bench::new();
    let (s, t) = (b.stream(), b.stream());
    b.device.lend(b.block, BLOCK, s);
    b.work(s);
    let event = b.recorded(s);
    b.device.give_back(b.block, BLOCK, s);
    b.wait(t, event);
    assert!(b.may_have(t));
}

#[test]
fn an_event_recorded_before_the_last_work_does_not() {
    let b = Bench::new();
    let (s, t) = (b.stream(), b.stream());
    b.work(s);
    let event = b.recorded(s);
    b.own(s);
    b.wait(t, event);
    assert!(!b.may_have(t));
}

/// A small version of RMM's issue 2489: the order that the freeing stream waited for must not be lost.
#[test]
fn an_event_recorded_before_a_wait_of_its_stream_does_not() {
    let b = Bench::new();
    let (user, freer, next) = (b.stream(), b.stream(), b.stream());
    b.device.lend(b.block, BLOCK, user);
    b.device.launch(user, &[Access::write(b.block, BLOCK, 1)]);
    let early = b.recorded(freer);
    b.wait(freer, b.recorded(user));
    b.device.give_back(b.block, BLOCK, freer);
    b.wait(next, early);
    assert!(!b.may_have(next));
}

#[test]
fn order_is_transitive() {
    let b = Bench::new();
    let streams: Vec<_> = (0..20).map(|_| b.stream()).collect();
    b.own(streams[0]);
    for pair in streams.windows(2) {
        b.wait(pair[1], b.recorded(pair[0]));
    }
    assert!(b.may_have(streams[19]));
}

#[test]
fn a_wait_concerns_later_work_only_and_one_direction() {
    let b = Bench::new();
    let (s, t) = (b.stream(), b.stream());
    b.work(s);
    b.wait(t, b.recorded(s));
    b.own(t);
    assert!(!b.may_have(s));
}

#[test]
fn an_event_that_is_recorded_again_stands_for_the_last_record() {
    let b = Bench::new();
    let (s, t, u) = (b.stream(), b.stream(), b.stream());
    b.own(s);
    let event = b.recorded(s);
    b.work(u);
    b.device.event_record(event, u).unwrap();
    b.wait(t, event);
    assert!(!b.may_have(t));
}

#[test]
fn what_the_host_learned_orders_all_streams() {
    let learn: [fn(&Bench, StreamRef, Event); 4] = [
        |b, s, _| b.device.stream_synchronize(s).unwrap(),
        |b, _, e| b.device.event_synchronize(e).unwrap(),
        |b, _, _| b.device.synchronize().unwrap(),
        |b, _, _| {
            let other = b.device.mem_alloc(256).unwrap();
            // SAFETY: `other` is live and unused.
            unsafe { b.device.mem_free(other) }.unwrap();
        },
    ];
    for (index, learn) in learn.iter().enumerate() {
        let b = Bench::new();
        let (s, t) = (b.stream(), b.stream());
        b.own(s);
        let event = b.recorded(s);
        learn(&b, s, event);
        assert!(b.may_have(t), "way {index}");
    }
}

#[test]
fn a_query_orders_if_and_only_if_it_says_yes() {
    let b = Bench::new();
    let (s, t) = (b.stream(), b.stream());
    b.own(s);
    let event = b.recorded(s);
    assert!(!b.device.event_query(event).unwrap() && !b.device.stream_query(s).unwrap());
    assert!(!b.may_have(t));
    let event = b.recorded(t);
    b.device.advance(1_000_000); // the work is done, but was not queried
    assert!(!b.may_have(s));
    b.own(s);
    b.device.advance(1_000_000);
    assert!(b.device.stream_query(s).unwrap() && b.device.event_query(event).unwrap());
    assert!(b.may_have(t));
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let b = Bench::new();
    let (s, t) = (b.blocking(), b.blocking());
    b.own(s);
    assert!(b.may_have(StreamRef::LEGACY));
    assert!(b.may_have(t));
    assert!(b.may_have(StreamRef::from_raw_parts(1, 0)), "handle 1 is the legacy stream too");
}

#[test]
fn the_legacy_stream_and_non_blocking_streams_do_not_wait() {
    let b = Bench::new();
    let s = b.stream();
    b.own(s);
    assert!(!b.may_have(StreamRef::LEGACY));
    assert!(!b.may_have(s));
}

#[test]
fn only_work_on_the_legacy_stream_orders_blocking_streams_among_themselves() {
    let b = Bench::new();
    let (s, t) = (b.blocking(), b.blocking());
    b.own(s);
    assert!(!b.may_have(t), "two blocking streams are not ordered by themselves");
    b.work(StreamRef::LEGACY);
    assert!(b.may_have(s));
    // A block that returns on the legacy stream, without work on it, orders nothing.
    let (u, v) = (b.blocking(), b.blocking());
    b.device.synchronize().unwrap();
    b.device.lend(b.block, BLOCK, u);
    b.device.launch(u, &[Access::write(b.block, BLOCK, 1)]);
    b.device.give_back(b.block, BLOCK, StreamRef::LEGACY);
    assert!(!b.may_have(v));
}

#[test]
fn recording_an_event_on_the_legacy_stream_counts_as_work_on_it() {
    let b = Bench::new();
    let (blocking, later, other) = (b.blocking(), b.blocking(), b.stream());
    b.own(blocking);
    b.wait(other, b.recorded(StreamRef::LEGACY));
    assert!(b.may_have(other));
    b.device.synchronize().unwrap();
    b.own(blocking);
    b.recorded(StreamRef::LEGACY);
    assert!(b.may_have(later));
}

#[test]
fn the_legacy_stream_waits_for_destroyed_blocking_streams() {
    let b = Bench::new();
    let s = b.blocking();
    b.own(s);
    // SAFETY: `s` is not used again.
    unsafe { b.device.stream_destroy(s) }.unwrap();
    assert!(b.may_have(StreamRef::LEGACY));
}

#[test]
fn what_forgotten_blocking_streams_waited_for_still_orders_the_legacy_stream() {
    let b = Bench::new();
    let (user, middle) = (b.stream(), b.blocking());
    b.own(user);
    b.wait(middle, b.recorded(user));
    b.device.advance(1_000_000); // all work is done, but was not queried
    // SAFETY: the stream is not used again.
    unsafe { b.device.stream_destroy(middle) }.unwrap();
    for _ in 0..200 {
        let stream = b.blocking();
        // SAFETY: the stream is not used again.
        unsafe { b.device.stream_destroy(stream) }.unwrap();
    }
    let other = b.blocking();
    b.device.lend(b.block, BLOCK, other);
    assert_eq!(b.kinds(), [ViolationKind::StreamOrder], "no call waited for `user` here");
    b.device.give_back(b.block, BLOCK, user);
    assert!(b.may_have(StreamRef::LEGACY));
}

#[test]
fn a_new_stream_is_not_taken_for_the_forgotten_one_that_a_block_was_lent_to() {
    let b = Bench::new();
    let (user, lessee) = (b.stream(), b.stream());
    b.own(user);
    b.wait(lessee, b.recorded(user));
    b.device.lend(b.block, BLOCK, lessee);
    b.device.advance(1_000_000); // all work is done, but was not queried
    let others: Vec<_> = (0..100).map(|_| b.stream()).collect();
    for stream in others.into_iter().chain([lessee]) {
        // SAFETY: the stream is not used again.
        unsafe { b.device.stream_destroy(stream) }.unwrap();
    }
    b.device.launch(b.stream(), &[Access::read(b.block, BLOCK)]);
    assert_eq!(b.kinds(), [ViolationKind::StreamOrder]);
}

#[test]
fn the_per_thread_stream_is_a_blocking_stream_of_each_thread() {
    let b = Bench::new();
    b.own(StreamRef::PER_THREAD);
    assert!(b.may_have(StreamRef::PER_THREAD));
    let other =
        || std::thread::scope(|scope| scope.spawn(|| b.may_have(StreamRef::PER_THREAD)).join().unwrap());
    assert!(!other());
    assert!(b.may_have(StreamRef::LEGACY));
    assert!(other());
}

#[test]
fn a_reused_handle_is_another_stream() {
    let b = Bench::new();
    let s = b.stream();
    b.own(s);
    // SAFETY: `s` is used below only to show that the device refuses it.
    unsafe { b.device.stream_destroy(s) }.unwrap();
    let t = b.stream();
    assert_eq!(s.handle(), t.handle());
    assert_ne!(s.id(), t.id());
    assert!(!b.may_have(t), "the old stream's work may still run");
    b.device.lend(b.block, BLOCK, s);
    b.device.launch(s, &[]);
    assert!(b.device.event_record(b.recorded(t), s).is_err());
    assert_eq!(b.kinds(), [ViolationKind::DeadHandle; 3]);
    // SAFETY: the stream is alive.
    assert_eq!(unsafe { b.device.stream_ref(t.handle()) }.unwrap(), t);
}

#[test]
fn use_by_the_owner_on_other_streams_must_be_ordered_before_the_release() {
    let b = Bench::new();
    let (s, helper) = (b.stream(), b.stream());
    // Ordered: the helper waits for the owner's stream, and the owner's stream waits for the helper.
    b.device.lend(b.block, BLOCK, s);
    b.wait(helper, b.recorded(s));
    b.device.launch(helper, &[Access::write(b.block, BLOCK, 1)]);
    b.wait(s, b.recorded(helper));
    b.device.give_back(b.block, BLOCK, s);
    assert!(b.may_have(s));
    // The owner forgot: the next owner races with the helper.
    b.device.synchronize().unwrap();
    b.device.lend(b.block, BLOCK, s);
    b.device.launch(helper, &[Access::read(b.block, BLOCK)]);
    b.device.give_back(b.block, BLOCK, s);
    assert!(!b.may_have(s));
}

#[test]
fn use_on_a_stream_that_is_not_ordered_after_earlier_owners_is_a_race() {
    let b = Bench::new();
    let (s, t) = (b.stream(), b.stream());
    b.own(s);
    b.device.lend(b.block, BLOCK, s);
    b.device.launch(t, &[Access::read(b.block, 256)]);
    assert_eq!(b.kinds(), [ViolationKind::StreamOrder]);
}

#[test]
fn parts_keep_their_own_history() {
    let b = Bench::new();
    let (s, t, u) = (b.stream(), b.stream(), b.stream());
    let at = |index: u64| b.block.offset(index * BLOCK);
    for (index, stream) in [(0, s), (1, t)] {
        b.device.lend(at(index), BLOCK, stream);
        b.device.launch(stream, &[Access::write(at(index), BLOCK, index)]);
        b.device.give_back(at(index), BLOCK, stream);
    }
    // Merged for a stream that is ordered after only one of them: RMM's issue 2489 itself.
    b.wait(u, b.recorded(s));
    b.device.lend(at(0), 2 * BLOCK, u);
    assert_eq!(b.kinds(), [ViolationKind::StreamOrder]);
    b.device.give_back(at(0), 2 * BLOCK, u);
    // Split again: the second part's history was reported and has ended; the first part's history is on `u`.
    b.device.lend(at(0), 256, u);
    b.device.lend(at(1), 256, u);
    assert_eq!(b.kinds(), []);
}

#[test]
fn blocks_that_overlap_are_reported() {
    let b = Bench::new();
    let s = b.stream();
    b.device.lend(b.block, BLOCK, s);
    b.device.lend(b.block.offset(BLOCK), BLOCK, s);
    assert_eq!(b.kinds(), []);
    b.device.lend(b.block.offset(BLOCK - 256), 512, s);
    assert_eq!(b.kinds(), [ViolationKind::Overlap]);
    b.device.lend(b.block, BLOCK, s);
    assert_eq!(b.kinds()[0], ViolationKind::Overlap);
    b.device.give_back(b.block, 2 * BLOCK, s);
    assert_eq!(b.kinds(), [ViolationKind::Overlap], "the size differs from the lent one");
    b.device.give_back(b.block, BLOCK, s);
    assert_eq!(b.kinds(), [ViolationKind::UnknownPointer], "twice");
}

#[test]
fn blocks_out_of_bounds_misaligned_or_null_are_reported() {
    let b = Bench::new();
    let s = b.stream();
    let end = b.block.offset(1 << 20);
    b.device.lend(DevicePtr::NULL, 0, s);
    b.device.give_back(DevicePtr::NULL, 0, s);
    b.device.lend(end.offset(0u64.wrapping_sub(256)), 256, s);
    assert_eq!(b.kinds(), []);
    let wrong =
        [(DevicePtr::NULL, 256), (b.block, 0), (b.block.offset(128), 256), (end, 256), (b.block, 2 << 20)];
    for (ptr, bytes) in wrong {
        b.device.lend(ptr, bytes, s);
        assert_eq!(b.kinds(), [ViolationKind::OutOfBounds], "{bytes} at {ptr}");
        b.device.give_back(ptr, bytes, s);
    }
    b.device.launch(s, &[Access::read(end, 1)]);
    assert_eq!(b.kinds(), [ViolationKind::OutOfBounds]);
}

#[test]
fn a_wait_on_an_event_never_recorded_is_reported() {
    let b = Bench::new();
    let s = b.stream();
    let event = b.device.event_create(EventFlags::default()).unwrap();
    assert!(b.device.event_query(event).unwrap(), "as in CUDA");
    b.device.event_synchronize(event).unwrap();
    assert_eq!(b.kinds(), []);
    b.wait(s, event);
    assert_eq!(b.kinds(), [ViolationKind::UnrecordedEvent]);
}

#[test]
fn calls_on_destroyed_events_are_reported_and_handles_used_again() {
    let b = Bench::new();
    let s = b.stream();
    let event = b.recorded(s);
    // SAFETY: the event is used below only to show that the device refuses it.
    unsafe { b.device.event_destroy(event) }.unwrap();
    assert!(b.device.event_query(event).is_err());
    assert!(b.device.event_record(event, s).is_err());
    assert!(b.device.stream_wait_event(s, event).is_err());
    // SAFETY: the device refuses it.
    assert!(unsafe { b.device.event_destroy(event) }.is_err());
    assert_eq!(b.kinds(), [ViolationKind::DeadHandle; 4]);
    assert_eq!(b.device.event_create(EventFlags::default()).unwrap(), event);
    b.wait(s, event);
    assert_eq!(b.kinds(), [ViolationKind::UnrecordedEvent], "a new event, although it has the old handle");
}

#[test]
fn an_event_is_recorded_only_where_its_stream_is_alive() {
    let b = Bench::new();
    let (s, event) = (b.stream(), b.device.event_create(EventFlags::default()).unwrap());
    let calls = b.device.driver_calls();
    assert!(b.device.event_record_if_alive(event, s).unwrap());
    assert!(b.device.event_record_if_alive(event, StreamRef::LEGACY).unwrap());
    assert_eq!(b.device.driver_calls(), calls + 2);
    assert!(!b.device.event_record_if_alive(event, StreamRef::PER_THREAD).unwrap());
    // SAFETY: the stream is used again only to query whether it is alive.
    unsafe { b.device.stream_destroy(s) }.unwrap();
    assert!(!b.device.event_record_if_alive(event, s).unwrap());
    let reused = b.stream();
    assert_eq!(reused.handle(), s.handle());
    assert!(!b.device.event_record_if_alive(event, s).unwrap(), "the handle lives, the stream does not");
    assert!(b.device.event_record_if_alive(event, reused).unwrap());
    assert_eq!(b.device.driver_calls(), calls + 5, "a refusal makes no driver call");
    assert_eq!(b.kinds(), []);
}

#[test]
fn a_wrong_order_shows_in_the_data_under_some_schedule() {
    let wrong = (0..100).filter(|seed| {
        let config = SimConfig::with_capacity(1 << 30).schedule(Schedule::Seeded(*seed));
        let device = SimDevice::new(config);
        let block = device.mem_alloc(BLOCK).unwrap();
        let [s, t] = [0, 1].map(|_| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
        for (stream, tag) in [(s, 1), (t, 2)] {
            device.lend(block, BLOCK, stream);
            device.launch(stream, &[Access::write(block, BLOCK, tag)]);
            device.launch(stream, &[Access::check(block, BLOCK, tag)]);
            device.give_back(block, BLOCK, stream);
        }
        device.synchronize().unwrap();
        let kinds: Vec<_> = device.violations().iter().map(|violation| violation.kind).collect();
        assert_eq!(kinds[0], ViolationKind::StreamOrder);
        kinds.contains(&ViolationKind::TagMismatch)
    });
    let wrong = wrong.count();
    assert!((10..90).contains(&wrong), "{wrong} of 100 schedules");
}
