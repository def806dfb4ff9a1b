//! The events that end a device's program early: a reset of its context, or a sticky error.

use millpond_core::{DeviceMemoryResource, Driver, DriverError, Layout, StreamRef};
use millpond_driver::sim::FaultPlan;

use super::FailureKind;
use super::broken::{Broken, Checks};
use super::execution::{Ending, Execution};

/// The size of a request that must fail.
const SMALL: u64 = 1000;

impl Execution {
    pub(super) fn reset_context(&mut self) -> Checks {
        self.leave();
        self.device.reset_context();
        self.summary.resets += 1;
        self.ending = Some(Ending::Reset);
        self.notice();
        Ok(())
    }

    pub(super) fn lose_device(&mut self) -> Checks {
        self.leave();
        self.device.set_faults(FaultPlan::nth_call(0, DriverError::ILLEGAL_ADDRESS).persistent());
        self.summary.losses += 1;
        self.notice();
        let is_noticed = self.device.health().is_lost();
        self.ending = Some(if is_noticed { Ending::Lost } else { Ending::Unnoticed });
        Ok(())
    }

    /// Makes calls that reach the driver, so that the resource notices the loss. A request served from a
    /// cache would not.
    fn notice(&self) {
        drop(self.resource.trim(0));
        let largest = Layout::new(self.config.largest_bytes);
        if let Ok(ptr) = self.resource.inner().allocate(largest, StreamRef::LEGACY) {
            // SAFETY: the block came from this resource with this layout, and nothing used it.
            unsafe { self.resource.inner().deallocate(ptr, largest, StreamRef::LEGACY) };
        }
    }

    fn leave(&self) {
        if let Some(guest) = &self.guest {
            guest.leave();
        }
    }

    /// Every call must fail and report the cause.
    fn must_say_so(&self, what: &str) -> Checks {
        let broken = |text: String| Err(Broken::new(FailureKind::Outlived, format!("{what}, and {text}")));
        match self.resource.inner().allocate(Layout::new(SMALL), StreamRef::LEGACY) {
            Ok(ptr) => return broken(format!("{ptr} is handed out")),
            Err(error) if !error.is_sticky() => return broken(format!("a request says: {error}")),
            Err(_) => {}
        }
        match self.resource.trim(0) {
            Err(error) if !error.is_sticky() => return broken(format!("trimming says: {error}")),
            _ => {}
        }
        let _ = self.resource.statistics();
        drop(self.resource.memory_info());
        drop(self.resource.to_string());
        Ok(())
    }

    /// Frees everything that is left after an early end. After a reset, the frees bypass the checks, because
    /// the device's blocks are gone. After an unnoticed loss, the host's memory must still be freed.
    pub(super) fn finish_early(&mut self) -> Checks {
        self.scopes.clear();
        let kept = self.guest.take().map(|guest| guest.take_kept()).unwrap_or_default();
        let own = self.blocks.drain().map(|(_, live)| (live.ptr, live.layout));
        let resource = &self.resource;
        for (ptr, layout) in own.chain(kept) {
            // SAFETY: the block came from this resource with this layout and is freed once; no work is left
            // on the device.
            unsafe {
                match self.ending {
                    Some(Ending::Reset) => resource.inner().deallocate(ptr, layout, StreamRef::LEGACY),
                    _ => resource.deallocate(ptr, layout, StreamRef::LEGACY),
                }
            }
        }
        self.live.clear();
        // While blocks are in use, a limit may refuse a request before it reaches the driver.
        match self.ending {
            Some(Ending::Reset) if self.device.health().is_lost() => {
                self.must_say_so("the context was reset")
            }
            Some(Ending::Lost) => self.must_say_so("the device is lost"),
            _ => Ok(()),
        }
    }
}
