//! Whether a device is lost, shared by everything that uses it.

use std::sync::atomic::{AtomicU8, Ordering};

use super::DriverError;
use crate::Error;

/// Whether a device is lost: after a [sticky](DriverError::is_sticky) error for this process, or with its
/// context, which somebody reset, for everything that was made before.
///
/// Everything that is built on one opening of a device shares it, so that the first to see the error stops
/// all others from calling a driver that can only fail. A device that is opened after a reset has a new one.
#[derive(Debug, Default)]
pub struct Health {
    state: AtomicU8,
}

const WELL: u8 = 0;
const LOST: u8 = 1;
const RESET: u8 = 2;

impl Health {
    /// Whether the device is lost. It does not come back.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.state.load(Ordering::Relaxed) != WELL
    }

    /// Whether it is lost because its context was reset.
    #[inline]
    pub fn is_reset(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RESET
    }

    /// Looks at an error that the driver returned, and notes if it means that the device is lost.
    pub fn note(&self, error: &DriverError) {
        if error.code() == DriverError::CONTEXT_IS_DESTROYED {
            self.note_reset();
        } else if error.is_sticky()
            && self.state.compare_exchange(WELL, LOST, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            tracing::error!(target: "millpond::driver", %error, "the device is lost for this process");
        }
    }

    /// Notes that the device's context was reset.
    pub fn note_reset(&self) {
        if self.state.swap(RESET, Ordering::Relaxed) != RESET {
            tracing::warn!(
                target: "millpond::driver",
                "the device's context was reset; what was made before is lost with it"
            );
        }
    }

    /// The error of a call on a device that is lost: it says why, and what to do.
    pub fn error(&self) -> Error {
        if self.is_reset() { Error::context_reset() } else { Error::poisoned() }
    }
}
