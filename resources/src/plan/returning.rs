//! Gives the memory of plans back to upstream: of dropped plans, and of all before memory is out.

use std::sync::atomic::Ordering;

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{DeviceMemoryResource, DevicePtr, Layout, Result, StreamRef};

use crate::driver_calls::ask;
use crate::plan::PlanMemoryResource;
use crate::plan::state::State;

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Gives back the memory of lanes without blocks that belongs to the caller's stream, once the plan is
    /// dropped.
    pub(crate) fn release_retired(&self, state: &mut State, stream: StreamRef) {
        let lanes = state.running.as_ref().filter(|running| running.is_retired);
        for lane in 0..lanes.map_or(0, |running| running.lanes.len()) {
            state.release(lane, stream, false);
        }
        self.note_end(state);
    }

    pub(crate) fn note_end(&self, state: &mut State) {
        if state.running.as_ref().is_some_and(|running| running.is_retired && running.bytes().0 == 0) {
            state.running = None;
        }
        if state.has_given_up && state.running.is_none() {
            self.is_bypassed.store(true, Ordering::Release);
        }
    }

    /// Waits for the device and gives back the memory of all lanes without blocks; returns its bytes. Does
    /// nothing where the device cannot be waited for.
    pub(crate) fn release_idle(&self, state: &mut State) -> u64 {
        let mut released = 0;
        if let Some(running) = &state.running
            && running.bytes().1 > 0
            && self.has_waited()
        {
            let lanes = 0..running.lanes.len();
            released = lanes.filter_map(|lane| state.release(lane, StreamRef::LEGACY, true)).sum();
        }
        self.note_end(state);
        released
    }

    /// Waits for all work of the device; returns whether memory may go back. Plain memory may in any case, as
    /// its free waits by itself.
    pub(crate) fn has_waited(&self) -> bool {
        let driver = &**self.upstream.driver();
        if driver.health().is_lost() {
            return false;
        }
        let _captures = CaptureModeGuard::relaxed(driver);
        ask(driver, |driver| driver.synchronize_beside_captures()) == Ok(true)
            || !(self.upstream.is_stream_ordered() || driver.health().is_lost())
    }

    /// Asks upstream. If memory is out, the plan's goes back and the plan ends.
    pub(crate) fn allocate_upstream(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        match self.upstream.allocate(layout, stream) {
            Err(error) if error.is_out_of_memory() => {
                let released = self.locked(|state| {
                    let released = self.release_idle(state);
                    if released > 0 {
                        self.drop_plan(state, "upstream is out of memory");
                    }
                    self.note_end(state);
                    released
                });
                if released == 0 { Err(error) } else { self.upstream.allocate(layout, stream) }
            }
            other => other,
        }
    }
}
