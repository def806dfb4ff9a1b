//! The out-of-memory report of resources that call the driver for each block: the memory of device and host.

use millpond_core::driver::{Driver, DriverResult};
use millpond_core::{Accessibility, Error, MemoryInfo, OutOfMemoryReport};

/// Adds a report to an out-of-memory error that has none. `takes` says whose memory was requested.
#[cold]
pub(crate) fn reported(error: Error, driver: &dyn Driver, takes: Accessibility) -> Error {
    error.report_if_missing(|report| note_memory(report, driver, takes))
}

/// Adds the memory of device and host. If the driver does not answer, the report has less.
pub(crate) fn note_memory(report: &mut OutOfMemoryReport, driver: &dyn Driver, takes: Accessibility) {
    let known =
        |answer: DriverResult<MemoryInfo>| answer.inspect_err(|error| driver.health().note(error)).ok();
    if takes.host {
        report.host = known(driver.host_memory_info());
    }
    match takes {
        Accessibility::DEVICE => report.note_device(known(driver.mem_get_info())),
        // Memory that moves between both is not bounded by the device's free memory.
        Accessibility::DEVICE_AND_HOST => report.device = known(driver.mem_get_info()),
        _ => {}
    }
}
