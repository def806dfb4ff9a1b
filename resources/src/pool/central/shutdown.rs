//! Returns all memory when a pool ends.

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{DeviceMemoryResource, StreamRef};

use crate::pool::central::Central;
use crate::process;
use crate::store::Task;

impl<R: DeviceMemoryResource> Drop for Central<R> {
    fn drop(&mut self) {
        if self.core.is_copy() {
            return process::leave(&self.core);
        }
        let _captures = CaptureModeGuard::relaxed(&*self.core.driver);
        // Decay and peer pools, which also hold the core, begin no call from here on.
        self.core.state.lock().is_closed = true;
        if !self.core.turns.wait_for_end() {
            tracing::warn!(
                target: "millpond::driver",
                "a pool was dropped inside of its own call, so it cannot free its memory; the driver keeps \
                 the memory"
            );
            return;
        }
        // A pool that asks this one for memory waits for the end, and then the device has the memory.
        let _turn = self.core.turns.enter();
        let was_reset = self.driver.was_reset();
        if self.health.is_lost() && !was_reset {
            return;
        }
        let mut state = self.core.state.lock();
        let shutdown = state.heaps.store.plan_shutdown();
        let events = if was_reset { Vec::new() } else { state.streams.drain_events() };
        drop(state);
        if shutdown.is_empty() && events.is_empty() {
            return;
        }
        if !was_reset && !self.wait_for_all_work(&shutdown) {
            return;
        }
        // Events were destroyed with a context that was reset.
        for event in events {
            // SAFETY: the event is this resource's own, and nothing waits for it any more.
            if let Err(error) = unsafe { self.driver.event_destroy(event) } {
                tracing::warn!(target: "millpond::driver", %error, "an event could not be destroyed");
            }
        }
        self.shut_down(shutdown, was_reset);
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Waits until all work on the pool's blocks is done, including work on blocks still in use and on
    /// destroyed streams. Returns whether the memory may be returned: if upstream synchronises itself, this
    /// wait need not succeed.
    fn wait_for_all_work(&self, shutdown: &Task) -> bool {
        let waited = self.driver.synchronize_beside_captures();
        if waited == Ok(true) {
            return true;
        }
        waited.as_ref().err().inspect(|error| self.health.note(error));
        // If the wait failed and upstream does not wait itself, the memory must stay.
        let upstream_waits = matches!(shutdown, Task::Return(_)) && !self.rules.upstream_is_ordered;
        let may_return = upstream_waits && !self.health.is_lost();
        if !may_return {
            tracing::warn!(
                target: "millpond::driver",
                ?waited,
                "a dropped pool cannot free its memory; the driver keeps the memory"
            );
        }
        may_return
    }

    /// Returns all memory. After a reset, this returns only memory that outlives the context: the physical
    /// memory that the pool mapped, and regions that upstream knows to outlive it.
    fn shut_down(&self, mut task: Task, was_reset: bool) {
        let before = self.before(&task);
        if let Task::Return(regions) = &mut task {
            // SAFETY: the regions came from upstream, and all work on the device is done.
            unsafe { self.below(StreamRef::LEGACY).take_back(regions) };
        }
        let outcome = task.make_calls(&*self.driver);
        self.report_segments(before, &task);
        match outcome {
            Err(error) => {
                tracing::warn!(
                    target: "millpond::driver",
                    %error,
                    "a dropped pool cannot free its memory; the driver keeps the memory"
                );
            }
            Ok(()) if was_reset && !matches!(task, Task::Return(_)) => {
                let bytes = task.released_bytes();
                tracing::debug!(target: "millpond::driver", bytes, "released the memory that outlived a \
                    reset of the context");
            }
            Ok(()) => {}
        }
        self.core.note_return();
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use millpond_core::DeviceMemoryResourceExt;
    use millpond_driver::sim::{SimConfig, SimDevice};
    use tracing::field::{Field, Visit};
    use tracing::{Event, Subscriber};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    use super::*;
    use crate::{CudaMemoryResource, PagesMode, PoolLayer};

    /// The bytes that dropped pools released after a reset, by their events.
    #[derive(Clone, Default)]
    struct Told(Arc<AtomicU64>);

    impl Visit for Told {
        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "bytes" {
                self.0.fetch_add(value, Ordering::Relaxed);
            }
        }

        fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
    }

    impl<S: Subscriber> Layer<S> for Told {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            if event.metadata().file() == Some(file!()) {
                event.record(&mut self.clone());
            }
        }
    }

    /// After a reset, a dropped pool tells how many bytes it released. Regions are lost with the context.
    #[test]
    fn only_after_a_reset_a_dropped_pool_tells_the_bytes_that_it_released() {
        const BYTES: u64 = 64 << 20;
        for (pages, is_reset, expected) in [
            (PagesMode::On, true, BYTES),
            (PagesMode::On, false, 0),
            (PagesMode::Off, true, 0),
            (PagesMode::Off, false, 0),
        ] {
            let told = Told::default();
            millpond_testkit::events::heard_by(tracing_subscriber::registry().with(told.clone()), || {
                let device = SimDevice::new(SimConfig::h200());
                let cuda = CudaMemoryResource::new(device.clone());
                let pool = cuda.layer(PoolLayer::new().pages(pages)).expect("an empty pool");
                pool.allocate_bytes(BYTES, StreamRef::LEGACY).expect("there is room");
                if is_reset {
                    device.reset_context();
                }
            });
            assert_eq!(told.0.load(Ordering::Relaxed), expected, "{pages}, reset: {is_reset}");
        }
    }
}
