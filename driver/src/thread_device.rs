//! The device that the calling thread chose.

use std::cell::Cell;

use millpond_core::DeviceId;

thread_local! {
    static CURRENT: Cell<Option<DeviceId>> = const { Cell::new(None) };
}

/// The device that the calling thread chose, if any.
pub(crate) fn get() -> Option<DeviceId> {
    CURRENT.get()
}

/// Makes a device the calling thread's current one; `None` leaves the choice to CUDA again. Returns the
/// previous choice.
pub(crate) fn replace(device: Option<DeviceId>) -> Option<DeviceId> {
    CURRENT.replace(device)
}
