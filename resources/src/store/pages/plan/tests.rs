//! Tests plans: their sizes, their calls, and what remains of those that are aborted.

use millpond_core::Layout;
use millpond_core::driver::DriverError;
use millpond_driver::CallKind;
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};

use super::*;
use crate::store::Store;
use crate::tuning::Policy;

const MIB: u64 = 1 << 20;

/// A block begins in the free end of the address range, and only the rest of it is new memory.
#[test]
fn a_growth_continues_what_is_free_at_the_end() {
    let device = SimDevice::new(SimConfig::h200());
    let mut pages = Pages::new(2 * MIB, 1 << 30, u64::MAX, Policy::default());
    let mut reserve = pages.plan_reserve(4 * MIB, u64::MAX).expect("no maximum");
    reserve.work.make_calls(&*device).expect("the device has room");
    pages.add_handles(&reserve);
    let request = Request::new(Layout::new(10 * MIB)).expect("not too large");
    let mut plan = pages.plan_block(1, &request, false, 0, u64::MAX).expect("no maximum");
    assert_eq!(plan.work.new_bytes(), 6 * MIB);
    plan.work.make_calls(&*device).expect("the device has room");
    let (block, _) = pages.commit_block(plan);
    assert_eq!((pages.bytes_of(block), pages.totals().bytes_reserved), (10 * MIB, 10 * MIB));
    assert_eq!(pages.totals().mappings, 0, "nothing is stitched");
    pages.validate_all();
}

/// Large blocks are placed by address once the driver calls are spent, until more are earned.
#[test]
fn blocks_are_placed_by_address_while_no_call_is_left() {
    let policy = Policy { saved_calls: 10, ..Policy::default() };
    let mut pages = Pages::new(2 * MIB, 1 << 30, u64::MAX, policy);
    let mut by_address = |spent, operations| {
        pages.budget.spend(spent);
        pages.note_operations(operations);
        AddressRange::ALL.map(|range| pages.heap(range).by_address)
    };
    let large = AddressRange::ALL.map(|range| range == AddressRange::Large);
    for (spent, operations, expected) in [
        (0, 0, [false; 2]),
        (9, 0, [false; 2]),
        (1, 333, large),
        (0, 334, [false; 2]),
        (1, 335, large),
        (0, 667, [false; 2]),
    ] {
        assert_eq!(by_address(spent, operations), expected, "after {operations} operations");
    }
}

/// Each handle beyond the fewest that suffice costs its calls.
#[test]
fn more_and_smaller_handles_spend_their_calls() {
    let sizes_after = |operations| {
        let mut pages = Pages::new(2 * MIB, 1 << 40, u64::MAX, Policy::default());
        pages.note_live(1 << 30);
        pages.note_operations(operations);
        let before = pages.budget.available_later(&pages.policy);
        let (sizes, spent) = pages.sizes(AddressRange::Large, 96 * MIB, 96 * MIB);
        assert_eq!(before - pages.budget.available_later(&pages.policy), spent);
        assert_eq!(sizes.iter().sum::<u64>(), 96 * MIB, "after {operations} operations");
        (sizes.len() as u64, spent)
    };
    let (fewest, spent) = sizes_after(0);
    assert_eq!(spent, 0, "no call was earned");
    let (more, spent) = sizes_after(1_000_000);
    assert!(more > fewest + 1, "{more} handles, {fewest} suffice");
    assert_eq!(spent, (more - fewest) * CALLS_FOR_HANDLE);
}

/// An aborted plan spends no calls of the budget.
#[test]
fn a_plan_that_is_given_up_gives_its_calls_back() {
    let mut pages = Pages::new(2 * MIB, 1 << 40, u64::MAX, Policy::default());
    pages.note_live(1 << 30);
    pages.note_operations(1_000_000);
    let left = |pages: &Pages| pages.budget.available(&pages.policy);
    let before = left(&pages);
    let request = Request::new(Layout::new(300 * MIB)).expect("not too large");
    let plan = pages.plan_block(1, &request, false, 0, u64::MAX).expect("no maximum");
    assert!(left(&pages) < before, "small handles cost calls");
    pages.abort_plan(plan);
    assert_eq!(left(&pages), before);
}

/// Returns pages with two free blocks of 8 MiB that are not neighbours.
fn with_two_free_blocks(device: &SimDevice) -> Pages {
    let mut pages = Pages::new(2 * MIB, 1 << 30, u64::MAX, Policy::default());
    let request = Request::new(Layout::new(8 * MIB)).expect("not too large");
    let blocks = [(); 4].map(|()| {
        let mut plan = pages.plan_block(1, &request, false, 0, u64::MAX).expect("no maximum");
        plan.work.make_calls(device).expect("the device has room");
        pages.commit_block(plan).0
    });
    [blocks[0], blocks[2]].into_iter().for_each(|block| pages.free_block(block, 1, 0));
    pages
}

/// The addresses of an aborted plan serve again, unless something is still mapped there.
#[test]
fn the_addresses_of_an_aborted_plan_are_free_once_nothing_is_mapped_there() {
    let address = |plan: &Plan| match plan.alias {
        Some(_) => plan.work.alias_at(),
        None => plan.work.primaries_at(),
    };
    let refused = |kind| FaultPlan::nth_of(kind, 0, DriverError::INVALID_VALUE).persistent();
    for (is_stitched, is_undone) in [(false, false), (false, true), (true, false), (true, true)] {
        let device = SimDevice::new(SimConfig::h200());
        let mut pages = with_two_free_blocks(&device);
        let request = Request::new(Layout::new(if is_stitched { 12 } else { 64 } * MIB));
        let request = request.expect("not too large");
        let live = if is_stitched { 0 } else { 1 << 30 };
        let mut plan = pages.plan_block(1, &request, false, live, u64::MAX).expect("no maximum");
        assert_eq!(plan.alias.is_some(), is_stitched);
        let faults = refused(CallKind::MemSetAccess);
        device.set_faults(if is_undone { faults } else { faults.and(refused(CallKind::MemUnmap)) });
        plan.work.make_calls(&*device).expect_err("the driver refuses access");
        assert_eq!(plan.work.left.is_empty(), is_undone);
        let addr = address(&plan).expect("there are addresses by now");
        pages.abort_plan(plan);
        let next = pages.plan_block(1, &request, false, live, u64::MAX).expect("no maximum");
        assert_eq!(address(&next) == Some(addr), is_undone, "stitched: {is_stitched}");
        pages.abort_plan(next);
    }
}
