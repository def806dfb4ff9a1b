//! Reports the segments that a pool takes and returns, to those who watch.

use millpond_core::DevicePtr;
use millpond_core::segments::{SegmentAction, SegmentEvent, is_watched, report};

use crate::pool::central::CentralCore;
use crate::store::Task;

/// The regions of a task before its run, if anyone watches: base and bytes.
pub(crate) struct Before(Vec<(DevicePtr, u64)>);

impl CentralCore {
    /// Notes the regions that a task is to return.
    pub(crate) fn before(&self, task: &Task) -> Before {
        Before(if is_watched() { task.regions_left().to_vec() } else { Vec::new() })
    }

    /// Reports what a task's run took or returned. The caller holds no lock.
    pub(crate) fn report_segments(&self, before: Before, task: &Task) {
        if !is_watched() {
            return;
        }
        let left = task.regions_left();
        let returned = before.0.into_iter().filter(|region| !left.contains(region));
        let returned = returned.map(|(base, bytes)| (SegmentAction::Free, base.address(), bytes));
        for (action, address, bytes) in returned.chain(task.changes()) {
            report(&SegmentEvent::new(action, self.driver.device(), self.name.id, address, bytes));
        }
    }
}
