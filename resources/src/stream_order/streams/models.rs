use std::sync::Arc;

use loom::thread;

use crate::stream_order::streams::*;
use crate::sync::{Mutex, explore, explore_canary};

const STREAM: StreamRef = StreamRef::LEGACY;

/// What the driver was given for a stream, in order, under its own lock.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Submitted {
    Work,
    Record,
}

/// A stream: the driver's side of it, and the resource's, which is behind the resource's lock.
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

    /// Uses a block and gives it back, past the resource's lock; says when, for the driver, and of which
    /// epoch the block is.
    fn free(&self) -> (usize, Epoch) {
        let submitted = self.submit(Submitted::Work);
        (submitted, self.cell.epoch())
    }
}

/// Frees race with a record: `record` says when it was for the driver, and up to which epoch it counts.
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
            "work {submitted} is not covered by point {recorded}"
        );
    }
}

#[test]
fn a_point_covers_every_free_of_its_epoch() {
    explore(|| {
        frees_race_with(|setup| {
            let pending_record = setup.slot.lock().pending_record();
            (setup.submit(Submitted::Record), pending_record.epoch)
        });
    });
}

#[test]
fn canary_a_point_recorded_before_its_epoch_ends() {
    explore_canary("is not covered by point", || {
        frees_race_with(|setup| {
            let recorded = setup.submit(Submitted::Record);
            (recorded, setup.slot.lock().pending_record().epoch)
        });
    });
}

/// Somebody wants a stream's blocks while two threads make calls on the stream: `pending_record` says whether
/// a call is to record.
fn somebody_wants_a_point(pending_record: impl Fn(&Setup) -> bool + Clone + Send + 'static) {
    let setup = Setup::new();
    let calls = [(); 2].map(|()| {
        let (setup, pending_record) = (Arc::clone(&setup), pending_record.clone());
        thread::spawn(move || u32::from(pending_record(&setup)))
    });
    setup.slot.lock().set_record_requested(true);
    let taken: u32 = calls.into_iter().map(|call| call.join().expect("no assertion failed")).sum();
    assert_eq!(
        taken + u32::from(setup.cell.is_record_requested()),
        1,
        "one call records, or one still has to"
    );
}

#[test]
fn one_call_records_the_point_that_is_wanted() {
    explore(|| {
        somebody_wants_a_point(|setup| {
            // As the pool does: the flag sends a call past the stream caches, where the lock is.
            setup.cell.is_record_requested() && setup.slot.lock().take_requested_record().is_some()
        });
    });
}

#[test]
fn canary_the_flag_is_taken_without_the_lock() {
    explore_canary("one call records", || {
        somebody_wants_a_point(|setup| {
            let wanted = setup.cell.is_record_requested();
            if wanted {
                setup.cell.wanted.store(false, Ordering::Relaxed);
            }
            wanted
        });
    });
}
