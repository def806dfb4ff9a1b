//! Tests that the suite finds a mistake about each duty of the contract.

use std::sync::Arc;

use millpond::stack::StackSpec;
use millpond_testkit::canary::{self, CanaryLayer, CanaryPool, WrongLayer, WrongWork};
use millpond_testkit::conformance::{self, Refusals, Report, Subject};

use super::wrong::{Mistake, Wrong};
use crate::subjects;

/// Returns the test bodies that fail over a layer with a mistake.
fn failed(mistake: Mistake) -> Vec<&'static str> {
    let subject = Subject::new("cuda+pool+wrong", move |driver| {
        let upstream = "cuda+pool".parse::<StackSpec>()?.build(&millpond::layers(), driver)?;
        Ok(Arc::new(Wrong::new(upstream, mistake)))
    });
    bodies(&conformance::run(&subject.refuses(Refusals::ALL)))
}

/// Covers one error kind per size, a report in each error, and counts that follow accepted frees.
#[test]
fn the_suite_finds_mistakes_about_memory_that_is_out() {
    assert_eq!(failed(Mistake::None), [""; 0]);
    for (mistake, bodies) in [
        (
            Mistake::NoReport,
            &[
                "more_than_the_device_is_out_of_memory",
                "two_to_the_63_is_refused",
                "the_largest_number_is_refused",
                "a_huge_request_is_out_of_memory_at_any_alignment",
                "full_device_recovers",
                "driver_out_of_memory_from_now_on",
            ][..],
        ),
        (
            Mistake::InvalidArgument,
            &[
                "more_than_the_device_is_out_of_memory",
                "two_to_the_63_is_refused",
                "the_largest_number_is_refused",
            ],
        ),
        (Mistake::CountsRefusedFrees, &["misuse_changes_nothing"]),
    ] {
        let found = failed(mistake);
        let missing: Vec<_> = bodies.iter().filter(|body| !found.contains(body)).collect();
        assert!(missing.is_empty(), "{mistake:?} is not found by {missing:?}");
    }
}

/// Each mistake of a layer that submits work is found by the body of its duty, over every kind of upstream.
#[test]
fn the_suite_finds_each_mistake_of_a_layer_that_submits_work() {
    let table = subjects::layers();
    let mut missed = Vec::new();
    for below in ["cuda", "cuda+pool", "cuda+arena"] {
        let failed = |wrong: Option<WrongWork>| -> Vec<&'static str> {
            let layer = wrong.map_or("zeroing".to_owned(), |wrong| format!("zeroing:wrong={}", wrong.name()));
            let subject = Subject::from_text(&format!("{below}+{layer}"), &table).largest_bytes(8 << 20);
            let subject = if below == "cuda" { subject.hands_on() } else { subject };
            bodies(&conformance::run(&subject))
        };
        assert_eq!(failed(None), [""; 0], "{below}");
        for &wrong in WrongWork::ALL {
            let body = match wrong {
                // Pools are stream-ordered themselves, so the answer is right over them.
                WrongWork::SaysReady if below != "cuda" => continue,
                // Over a pool, only a thread that gets the block in between could tell.
                WrongWork::AfterPassingOn if below != "cuda" => continue,
                WrongWork::SaysReady => "a_block_is_ready_where_the_resource_says",
                WrongWork::AllocatesInCaptures => "a_captured_allocate_adds_no_work",
                WrongWork::FreesInCaptures => "a_captured_deallocate_adds_no_work",
                WrongWork::KeepsFailed => "a_failed_call_of_allocate_keeps_no_memory",
                WrongWork::LosesFailed => "a_failed_call_of_deallocate_keeps_no_memory",
                WrongWork::NamesNoStack => "errors_of_driver_calls_name_everything",
                // The next call of plain memory notices the loss.
                WrongWork::HidesLoss if below == "cuda" => continue,
                WrongWork::HidesLoss => "a_lost_device_is_noticed_in_any_call",
                _ => "pending_work_is_not_overtaken",
            };
            let found = failed(Some(wrong));
            if !found.contains(&body) {
                missed.push(format!("{wrong:?} over {below} is not found by {body}, but by {found:?}"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

fn bodies(report: &Report) -> Vec<&'static str> {
    report.failures().map(|(body, _)| body).collect()
}

/// Returns the report about a pool of the testkit with a mistake.
fn pool(wrong: Option<canary::Wrong>) -> Report {
    conformance::run(&Subject::new("canary", move |driver| CanaryPool::build(driver, wrong)))
}

/// Returns the report about a layer of the testkit with a mistake.
fn layer(wrong: WrongLayer) -> Report {
    conformance::run(&Subject::new("cuda+pool+canary", move |driver| {
        let upstream = "cuda+pool".parse::<StackSpec>()?.build(&millpond::layers(), driver)?;
        CanaryLayer::build(upstream, Some(wrong))
    }))
}

/// Each mistake is found by the body of its duty. Duty 14 and parts of duties 12 and 13 bind only callers.
#[test]
fn the_suite_finds_a_mistake_about_each_duty() {
    let of_layer = [
        ("duty 1", Mistake::Misaligns, "sizes_from_one_byte_up"),
        ("duty 2", Mistake::ServesZeroBytes, "zero_bytes_are_null"),
        ("duty 4", Mistake::TrimsAlways, "an_impossible_request_frees_nothing"),
        ("duty 6", Mistake::HidesMisuse, "a_foreign_pointer_is_refused"),
        ("duty 9", Mistake::ChangesDevice, "the_current_device_stays"),
        ("duty 11", Mistake::PrintsAlone, "the_upstream_prints_a_beginning"),
        ("is_equal", Mistake::EqualsAll, "not_equal_to_something_else"),
        ("memory_info", Mistake::InventsFree, "memory_info_is_sane"),
        ("statistics", Mistake::HidesStatistics, "statistics_come_from_the_nearest_layer"),
        ("no wait", Mistake::Waits, "a_free_block_needs_no_wait"),
    ];
    let of_pool = [
        ("duty 1", Some(canary::Wrong::HandsOutTwice), "pending_work_is_not_overtaken"),
        ("duty 3", Some(canary::Wrong::GivesUpEarly), "full_device_serves_another_stream"),
        ("duty 5", Some(canary::Wrong::ReturnsEarly), "two_blocks_differ"),
        ("duty 5", Some(canary::Wrong::TrimsLent), "contents_survive_trim"),
        ("duty 7", None, "sticky_error_poisons"),
        ("duty 8", Some(canary::Wrong::LeaksRegion), "null_is_given_back_to_nothing"),
        ("duty 13", Some(canary::Wrong::RecordsLazily), "stream_destroyed_after_its_frees"),
        ("order", Some(canary::Wrong::StealWithoutWait), "pending_work_is_not_overtaken"),
    ];
    let of_canary = [
        ("duty 3", WrongLayer::BlursErrors, "another_driver_error_once"),
        ("duty 7", WrongLayer::WaitsWhenLost, "poisoned_deallocate_and_drop_call_no_driver"),
        ("duty 10", WrongLayer::BlursErrors, "errors_of_driver_calls_name_everything"),
        ("duty 12", WrongLayer::FreesAgain, "mixed_allocations_and_frees"),
        ("duty 12", WrongLayer::LosesFree, "full_device_recovers"),
        ("captures", WrongLayer::EndsCaptures, "calls_on_other_streams_leave_captures_valid"),
        ("captures", WrongLayer::EndsCaptures, "calls_on_other_threads_leave_captures_valid"),
    ];
    let found = of_layer
        .into_iter()
        .map(|(duty, wrong, body)| (duty, format!("{wrong:?}"), body, failed(wrong)))
        .chain(of_pool.map(|(duty, wrong, body)| (duty, format!("{wrong:?}"), body, bodies(&pool(wrong)))))
        .chain(
            of_canary.map(|(duty, wrong, body)| (duty, format!("{wrong:?}"), body, bodies(&layer(wrong)))),
        );
    let missed: Vec<_> = found.filter(|(_, _, body, found)| !found.contains(body)).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}
