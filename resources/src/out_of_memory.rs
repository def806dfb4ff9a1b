//! The report of a resource that asks the driver for each block: what device and host have.

use millpond_core::driver::{Driver, DriverResult};
use millpond_core::{Accessibility, Error, MemoryInfo, OutOfMemoryReport};

/// Adds a report to an error that has none if memory is out. `takes` says whose memory was asked for.
#[cold]
pub(crate) fn reported(error: Error, driver: &dyn Driver, takes: Accessibility) -> Error {
    error.report_if_missing(|report| note_memory(report, driver, takes))
}

/// Adds what device and host have. If the driver does not answer, the report says less.
pub(crate) fn note_memory(report: &mut OutOfMemoryReport, driver: &dyn Driver, takes: Accessibility) {
    let known =
        |answer: DriverResult<MemoryInfo>| answer.inspect_err(|error| driver.health().note(error)).ok();
    if takes.host {
        report.host = known(driver.host_memory_info());
    }
    match takes {
        Accessibility::DEVICE => report.note_device(known(driver.mem_get_info())),
        // The device's free memory bounds nothing that moves between both.
        Accessibility::DEVICE_AND_HOST => report.device = known(driver.mem_get_info()),
        _ => {}
    }
}
