//! A flag, shared by all users of a device, that tells whether the device is lost.

use std::sync::atomic::{AtomicU8, Ordering};

use super::DriverError;
use crate::Error;
use crate::process::Origin;

/// Records whether a device is lost. There are two cases. After a [sticky](DriverError::is_sticky) error,
/// this process cannot use the device any more. After a reset of the device's context, everything that was
/// made before the reset is lost. In a forked child of the process that opened the device, the device is
/// lost, too; [`process`](crate::process) has the rule.
///
/// All resources on one opened device share one `Health`. After the device is lost, the resources skip driver
/// calls that can only fail. If a program opens the device again after a reset, the new driver has a new
/// `Health`.
#[derive(Debug, Default)]
pub struct Health {
    state: AtomicU8,
    origin: Origin,
}

const WELL: u8 = 0;
const LOST: u8 = 1;
const RESET: u8 = 2;

impl Health {
    /// Returns whether the device is lost. A lost device stays lost.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.state.load(Ordering::Relaxed) != WELL || self.origin.is_elsewhere()
    }

    /// Returns whether the device is lost because its context was reset.
    #[inline]
    pub fn is_reset(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RESET && !self.origin.is_elsewhere()
    }

    /// Returns whether this process is a forked child of the process that opened the device.
    #[inline]
    pub fn is_elsewhere(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Records that the device is lost, if `error` means this. Otherwise does nothing.
    pub fn note(&self, error: &DriverError) {
        if error.code() == DriverError::CONTEXT_IS_DESTROYED {
            self.note_reset();
        } else if error.is_sticky()
            && self.state.compare_exchange(WELL, LOST, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            tracing::error!(
                target: "millpond::driver",
                %error,
                "this process can no longer use the device; restart the process"
            );
        }
    }

    /// Records that the device's context was reset.
    pub fn note_reset(&self) {
        if self.state.swap(RESET, Ordering::Relaxed) != RESET {
            tracing::warn!(
                target: "millpond::driver",
                "the device's context was reset; everything made before the reset is lost"
            );
        }
    }

    /// Returns the error that a call on the lost device returns. The error names the reason for the loss and
    /// the remedy.
    pub fn error(&self) -> Error {
        if self.origin.is_elsewhere() {
            Error::forked()
        } else if self.is_reset() {
            Error::context_reset()
        } else {
            Error::poisoned()
        }
    }
}
