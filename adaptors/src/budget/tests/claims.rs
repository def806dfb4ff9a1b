//! Tests what waiting requests keep from others, and from each other.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millpond_core::ByteSize;

use super::{House, MIB, free, take};
use crate::budget::BudgetLayer;
use crate::budget::node::Node;
use crate::budget::settings::Settings;

const LONG: Duration = Duration::from_secs(3600);

fn layer(name: &str) -> BudgetLayer {
    BudgetLayer::new(name, 10 * MIB).parent("job")
}

/// Two requests wait, and each of them is within the guarantee. Neither is refused for the other, or for its
/// own claim.
#[test]
fn requests_that_wait_do_not_refuse_each_other() {
    let house = House::new();
    let _job = house.budget(BudgetLayer::new("job", 10 * MIB));
    let (etl, train) =
        (house.tenant(layer("etl")), house.tenant(layer("train").guaranteed(6 * MIB).wait(LONG)));
    let block = take(&etl, 10 * MIB).unwrap();
    thread::scope(|scope| {
        let waits = [(); 2].map(|()| scope.spawn(|| take(&train, 4 * MIB)));
        while train.member.node.wanted_bytes() < 8 * MIB {
            thread::yield_now();
        }
        free(&etl, block, 10 * MIB);
        for wait in waits {
            wait.join().unwrap().expect("8 of 10 MiB fit");
        }
    });
    assert_eq!(etl.budget().parent().unwrap().used_bytes(), 8 * MIB);
    take(&etl, 2 * MIB).expect("nothing is kept after the requests were served");
}

#[test]
fn the_error_says_what_is_kept_for_a_request_that_waits() {
    let house = House::new();
    let _job = house.budget(BudgetLayer::new("job", 10 * MIB));
    let (etl, train) =
        (house.tenant(layer("etl")), house.tenant(layer("train").guaranteed(6 * MIB).wait(LONG)));
    let block = take(&etl, 8 * MIB).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| take(&train, 4 * MIB));
        while train.member.node.wanted_bytes() < 4 * MIB {
            thread::yield_now();
        }
        let error = take(&etl, MIB).unwrap_err().to_string();
        free(&etl, block, 8 * MIB);
        waits.join().unwrap().unwrap();
        let kept = "8MiB are in use by `etl` 8MiB, and 4MiB are kept for requests that wait; free blocks";
        assert!(error.contains(kept) && error.contains("3MiB more is needed"), "{error}");
    });
}

fn node(name: &str, guaranteed: u64, parent: Option<&Arc<Node<()>>>) -> Arc<Node<()>> {
    let settings = Settings::new(name.to_owned(), ByteSize::Bytes(100));
    Node::new(settings, 100, guaranteed, parent.cloned()).unwrap()
}

/// All claims together keep the rest of the guarantee, and no more.
#[test]
fn claims_keep_no_more_than_the_guarantee() {
    let job = node("job", 0, None);
    let group = node("group", 60, Some(&job));
    let member = node("member", 40, Some(&group));
    member.claim(30);
    member.claim(30);
    assert_eq!((group.room(), job.room()), (60, 60));
    group.claim(50);
    assert_eq!(job.room(), 40, "the member's claims are part of the group's guarantee");
    member.add(25);
    assert_eq!((job.charged(), job.room()), (25, 40), "the rest of the guarantee");
    group.add(20);
    assert_eq!((job.charged(), job.room()), (45, 40));
    member.claim(-60);
    assert_eq!((group.room(), job.room()), (40, 40));
    group.claim(-50);
    assert_eq!((group.room(), job.room()), (55, 55));
    member.add(-25);
    group.add(-20);
    assert_eq!((job.charged(), job.room()), (0, 100));
}
