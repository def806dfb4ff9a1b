//! Tests how a report describes the memory that others hold on the device.

use super::*;

/// A region that ends within a page of the device takes the whole page, so the rest does not count as held by
/// others.
#[test]
fn the_rest_of_a_regions_last_page_is_not_what_others_hold() {
    for elsewhere in [PAGE, 2 * PAGE] {
        let setup = Setup { capacity: 160 * MIB + elsewhere, elsewhere, ..regions() };
        let filled = [36 * MIB, 36 * MIB, 36 * MIB, 36 * MIB, 6 * MIB, 9 * MIB / 2];
        // The last two blocks are in regions of 9 and 5 MiB: half the size that the pool would have taken
        // next.
        let full = story(setup, &[&filled.map(|bytes| take(bytes, 0))[..], &[take(7 * MIB / 2, 0)]].concat());
        let report = full.report();
        assert_eq!((report.held_bytes, report.device.unwrap().free), (158 * MIB, 0), "{report}");
        let held = report.remedies.iter().find_map(|remedy| match remedy.action {
            RemedyAction::FreeDeviceMemory { held_bytes, .. } => Some(held_bytes),
            _ => None,
        });
        // The request needs two pages.
        assert_eq!(held, (elsewhere >= 2 * PAGE).then_some(elsewhere), "{report}");
        full.check(&report).unwrap();
    }
}
