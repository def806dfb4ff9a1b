//! Models of threads that charge one tree. loom runs them in every order.
//!
//! The tree is `job` with a limit of 2 bytes. Each thread has an account of its own budget, and a part of its
//! own in each stock. The models keep their notes in atomics that loom does not see, so that the notes add no
//! order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as UnseenAtomic, Ordering as UnseenOrdering};
use std::time::Duration;

use loom::thread;
use millpond_core::ByteSize;

use super::account::{BudgetNode, Member};
use super::settings::Settings;
use crate::sync::{Mistake, explore, explore_canary, set_shard};

const LIMIT: u64 = 2;
const LOST: &str = "deadlock";

fn node(name: &str, guaranteed: u64, parent: Option<Arc<BudgetNode>>) -> Arc<BudgetNode> {
    let wait = Duration::from_secs(3600);
    let settings = Settings { wait, ..Settings::new(name.to_owned(), ByteSize::Bytes(LIMIT)) };
    BudgetNode::new(settings, LIMIT, guaranteed, parent).unwrap()
}

struct Scene {
    job: Arc<BudgetNode>,
    etl: Arc<Member>,
    train: Arc<Member>,
    /// The live bytes, and a mark for each free that is under way.
    live: Arc<UnseenAtomic>,
}

impl Scene {
    fn new(guaranteed: u64) -> Self {
        let job = node("job", 0, None);
        let [etl, train] = [("etl", 0), ("train", guaranteed)]
            .map(|(name, guaranteed)| Arc::new(Member::new(node(name, guaranteed, Some(Arc::clone(&job))))));
        Self { job, etl, train, live: Arc::default() }
    }

    /// Starts a thread with a part of its own.
    fn spawn(&self, shard: usize, body: impl FnOnce(&Self) + 'static) -> thread::JoinHandle<()> {
        let scene = Self {
            job: Arc::clone(&self.job),
            etl: Arc::clone(&self.etl),
            train: Arc::clone(&self.train),
            live: Arc::clone(&self.live),
        };
        thread::spawn(move || {
            set_shard(shard);
            body(&scene);
        })
    }

    fn charge(&self, member: &Member, bytes: u64) -> bool {
        let is_charged = member.charge(bytes, || false).is_ok();
        if is_charged {
            let live = self.live.fetch_add(bytes, UnseenOrdering::Relaxed) + bytes;
            assert!(live <= LIMIT, "{live} bytes are live");
        }
        is_charged
    }

    fn release(&self, member: &Member, bytes: u64) {
        self.live.fetch_sub(bytes, UnseenOrdering::Relaxed);
        member.release(bytes);
    }

    fn end(&self) {
        assert_eq!(self.job.used_and_room(), (0, LIMIT), "bytes are left");
    }
}

/// Two requests that fit together are both served, and none is served that does not fit.
#[test]
fn requests_of_two_budgets_share_the_room() {
    explore(|| {
        let scene = Scene::new(0);
        let other = scene.spawn(1, |scene| {
            assert!(scene.charge(&scene.etl, 1), "1 of 2 bytes was refused");
            scene.release(&scene.etl, 1);
        });
        assert!(scene.charge(&scene.train, 1), "1 of 2 bytes was refused");
        scene.release(&scene.train, 1);
        other.join().unwrap();
        scene.end();
    });
}

/// One byte is live at any time: the other byte is free for a request.
fn a_byte_moves() {
    let scene = Scene::new(0);
    assert!(scene.charge(&scene.etl, 1));
    let first = scene.spawn(1, |scene| {
        assert!(scene.charge(&scene.train, 1));
        scene.release(&scene.train, 1);
    });
    first.join().unwrap();
    let other = scene.spawn(1, |scene| {
        // The stock of `etl` gets a byte, and then `train` takes one from its own.
        scene.release(&scene.etl, 1);
        assert!(scene.charge(&scene.train, 1), "1 of 2 bytes was refused");
    });
    let third = Arc::new(Member::new(node("third", 0, Some(Arc::clone(&scene.job)))));
    assert!(scene.charge(&third, 1), "1 of 2 bytes was refused");
    other.join().unwrap();
    scene.release(&third, 1);
    scene.release(&scene.train, 1);
    scene.end();
}

#[test]
fn a_request_is_refused_only_if_it_does_not_fit_at_one_moment() {
    explore(a_byte_moves);
}

#[test]
fn a_decision_about_several_moments_is_found() {
    explore_canary(Mistake::LooksAtOneStockAtATime, "1 of 2 bytes was refused", a_byte_moves);
}

/// A request within its guarantee waits for a holder's frees.
fn a_wait_ends() {
    let scene = Scene::new(LIMIT);
    assert!(scene.charge(&scene.etl, LIMIT));
    let other = scene.spawn(1, |scene| {
        scene.release(&scene.etl, 1);
        scene.release(&scene.etl, 1);
    });
    assert!(scene.charge(&scene.train, LIMIT));
    other.join().unwrap();
    scene.release(&scene.train, LIMIT);
    scene.end();
}

#[test]
fn frees_end_a_wait() {
    explore(a_wait_ends);
}

#[test]
fn a_free_that_stays_in_a_stock_is_found() {
    explore_canary(Mistake::KeepsFrees, LOST, a_wait_ends);
}

/// A holder that frees, borrows and frees again does not stop a request.
#[test]
fn a_busy_holder_ends_a_wait() {
    explore(|| {
        let scene = Scene::new(LIMIT);
        assert!(scene.charge(&scene.etl, LIMIT));
        let other = scene.spawn(1, |scene| {
            scene.release(&scene.etl, LIMIT);
            if scene.charge(&scene.etl, 1) {
                scene.release(&scene.etl, 1);
            }
        });
        assert!(scene.charge(&scene.train, LIMIT));
        other.join().unwrap();
        scene.release(&scene.train, LIMIT);
        scene.end();
    });
}

/// The bytes of a request that is served do not count a second time as its claim.
#[test]
fn a_claim_ends_when_its_request_is_charged() {
    explore(|| {
        let scene = Scene::new(1);
        assert!(scene.charge(&scene.etl, LIMIT));
        let other = scene.spawn(1, |scene| {
            scene.release(&scene.etl, LIMIT);
            assert!(scene.charge(&scene.etl, 1), "a byte that no request needs was refused");
            scene.release(&scene.etl, 1);
        });
        assert!(scene.charge(&scene.train, 1));
        other.join().unwrap();
        scene.release(&scene.train, 1);
        scene.end();
    });
}

/// If the holder could borrow its freed byte again, the wait would never end.
fn a_greedy_holder() {
    let scene = Scene::new(LIMIT);
    assert!(scene.charge(&scene.etl, LIMIT));
    let other = scene.spawn(1, |scene| {
        if !scene.job.is_awaited() {
            return scene.release(&scene.etl, LIMIT);
        }
        scene.release(&scene.etl, 1);
        assert!(!scene.charge(&scene.etl, 1), "a claimed byte was borrowed");
        scene.release(&scene.etl, 1);
    });
    assert!(scene.charge(&scene.train, LIMIT));
    other.join().unwrap();
    scene.release(&scene.train, LIMIT);
    scene.end();
}

#[test]
fn claimed_bytes_are_not_borrowed() {
    explore(a_greedy_holder);
}

#[test]
fn a_budget_that_borrows_claimed_bytes_is_found() {
    explore_canary(Mistake::BorrowsClaimed, "a claimed byte was borrowed", a_greedy_holder);
}

/// The bytes of an adaptor that is dropped go to the request that waits for them.
#[test]
fn the_end_of_a_holder_ends_a_wait() {
    explore(|| {
        let Scene { job, etl, train, live } = Scene::new(LIMIT);
        assert!(etl.charge(LIMIT, || false).is_ok());
        let other = thread::spawn(move || drop(etl));
        assert!(train.charge(LIMIT, || false).is_ok());
        other.join().unwrap();
        train.release(LIMIT);
        assert_eq!((job.used_and_room(), live.load(UnseenOrdering::Relaxed)), ((0, LIMIT), 0));
    });
}
