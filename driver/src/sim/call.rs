//! Begins and ends a driver call of a simulated device.

use std::sync::atomic::Ordering;

use millpond_core::driver::DriverResult;
use millpond_core::{DeviceId, DriverError};

use super::device::SimDevice;
use super::model::answer::{Answer, Refusal};
use super::model::capture::About;
use super::state::State;
use crate::CallKind;

impl SimDevice {
    /// Makes one driver call: takes the lock, counts the call, adds its cost, and fails it if the fault plan
    /// says so.
    #[inline]
    pub(super) fn call<T>(
        &self,
        kind: CallKind,
        name: &'static str,
        call: impl FnOnce(&mut State) -> Answer<T>,
    ) -> DriverResult<T> {
        self.call_about(About::Nothing, kind, name, call)
    }

    /// Does the same for a call about streams or events, which a capture may refuse for that reason.
    #[inline]
    pub(super) fn call_about<T>(
        &self,
        about: About,
        kind: CallKind,
        name: &'static str,
        call: impl FnOnce(&mut State) -> Answer<T>,
    ) -> DriverResult<T> {
        self.observe(name);
        let mut state = self.lock();
        if state.generation != self.generation {
            return Err(after_reset(name));
        }
        let begun = state.begin_call(kind).and_then(|()| state.check_captures(name, about));
        let answer = begun.and_then(|()| call(&mut state)).map_err(|refusal| refusal.named(name));
        let violations = state.effects.log.take_unreported();
        drop(state);
        for violation in violations {
            tracing::debug!(%violation, "the simulated device saw a violation");
        }
        answer
    }

    /// Does the same for a call on an object that outlives the context.
    pub(super) fn call_in_any_context<T>(
        &self,
        kind: CallKind,
        name: &'static str,
        call: impl FnOnce(&mut State) -> Answer<T>,
    ) -> DriverResult<T> {
        self.observe(name);
        let mut state = self.lock();
        state.begin_call(kind).and_then(|()| call(&mut state)).map_err(|refusal| refusal.named(name))
    }

    /// Tells the observer about the next call. The observer is the program's code, so no lock is held.
    #[inline]
    fn observe(&self, name: &'static str) {
        if self.shared.is_observed.load(Ordering::Relaxed) {
            let observer = self.shared.observer.read().clone();
            observer.into_iter().for_each(|observer| observer(name));
        }
    }

    /// Refuses devices that cannot use this device's memory.
    pub(super) fn stranger(&self, devices: impl IntoIterator<Item = DeviceId>) -> Answer<()> {
        let me = self.shared.id;
        match devices.into_iter().find(|device| *device != me && !self.can_reach_from(*device)) {
            Some(device) => {
                let detail = format!("{device} cannot use memory of {me}");
                Err(Refusal::new(DriverError::INVALID_DEVICE, detail))
            }
            None => Ok(()),
        }
    }
}

/// The error of a call on an object from before a reset.
pub(super) fn after_reset(call: &'static str) -> DriverError {
    DriverError::new(DriverError::CONTEXT_IS_DESTROYED, call)
}
