//! Models of recorded events: loom runs them in every order of threads.

use std::sync::Arc;

use loom::thread;

use crate::stream_order::streams::*;
use crate::sync::{Mutex, explore, explore_canary};

const STREAM: StreamRef = StreamRef::LEGACY;

/// A driver call on a stream; the driver orders such calls under its lock.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Submitted {
    Work,
    Record,
}

/// The driver's side of a stream, and the resource's side behind the resource's lock.
struct Setup {
    driver: Mutex<Vec<Submitted>>,
    slot: Mutex<Slot>,
    cell: Arc<StreamCell>,
}

impl Setup {
    fn new() -> Arc<Self> {
        let slot = Slot::new(STREAM, 1);
        Arc::new(Self { driver: Mutex::default(), cell: Arc::clone(&slot.cell), slot: Mutex::new(slot) })
    }

    fn submit(&self, what: Submitted) -> usize {
        let mut driver = self.driver.lock();
        driver.push(what);
        driver.len()
    }

    /// Uses a block and frees it without the resource's lock. Returns the place of its work in the driver's
    /// order, and the block's epoch.
    fn free(&self) -> (usize, Epoch) {
        let submitted = self.submit(Submitted::Work);
        (submitted, self.cell.epoch())
    }
}

/// Two frees race with a record: `record` returns its place in the driver's order and the epoch it covers.
fn frees_race_with(record: impl Fn(&Setup) -> (usize, Epoch)) {
    let setup = Setup::new();
    let freeing = {
        let setup = Arc::clone(&setup);
        thread::spawn(move || [setup.free(), setup.free()])
    };
    let (recorded, covered) = record(&setup);
    for (submitted, epoch) in freeing.join().expect("no assertion failed") {
        assert!(
            epoch > covered || submitted < recorded,
            "work {submitted} is not covered by event {recorded}"
        );
    }
}

#[test]
fn a_recorded_event_covers_every_free_of_its_epoch() {
    explore(|| {
        frees_race_with(|setup| {
            let pending_record = setup.slot.lock().pending_record();
            (setup.submit(Submitted::Record), pending_record.epoch)
        });
    });
}

#[test]
fn canary_an_event_recorded_before_its_epoch_ends() {
    explore_canary("is not covered by event", || {
        frees_race_with(|setup| {
            let recorded = setup.submit(Submitted::Record);
            (recorded, setup.slot.lock().pending_record().epoch)
        });
    });
}

/// A thread requests a record while two threads make calls on the stream. `takes_request` returns whether a
/// call records.
fn one_of_two_calls_records(takes_request: impl Fn(&Setup) -> bool + Clone + Send + 'static) {
    let setup = Setup::new();
    let calls = [(); 2].map(|()| {
        let (setup, takes_request) = (Arc::clone(&setup), takes_request.clone());
        thread::spawn(move || u32::from(takes_request(&setup)))
    });
    setup.slot.lock().set_record_requested(true);
    let recorded: u32 = calls.into_iter().map(|call| call.join().expect("no assertion failed")).sum();
    assert_eq!(
        recorded + u32::from(setup.cell.is_record_requested()),
        1,
        "not one call records, or still has to"
    );
}

#[test]
fn one_call_takes_a_requested_record() {
    explore(|| {
        one_of_two_calls_records(|setup| {
            // Like the pool: the flag makes a call skip the stream caches and take the lock.
            setup.cell.is_record_requested() && setup.slot.lock().take_requested_record().is_some()
        });
    });
}

#[test]
fn canary_a_request_taken_without_the_lock() {
    explore_canary("not one call records", || {
        one_of_two_calls_records(|setup| {
            let is_requested = setup.cell.is_record_requested();
            if is_requested {
                setup.cell.record_requested.store(false, Ordering::Relaxed);
            }
            is_requested
        });
    });
}
