//! The device that CUDA's calls of a thread reach.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;

use millpond_core::driver::DriverResult;
use millpond_core::{DriverError, DriverHandle};

thread_local! {
    static DRIVER: RefCell<Option<DriverHandle>> = const { RefCell::new(None) };
}

/// Lets the calling thread's calls of CUDA reach one driver, until this value is dropped.
#[must_use = "the calls reach the driver until this is dropped"]
pub struct Entered {
    previous: Option<DriverHandle>,
    /// The driver is the thread's, so this value must not move to another thread.
    thread_bound: PhantomData<*const ()>,
}

impl Entered {
    /// Lets the calling thread's calls reach `driver`.
    pub fn new(driver: &DriverHandle) -> Self {
        let driver = Some(driver.clone());
        Self { previous: DRIVER.replace(driver), thread_bound: PhantomData }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let ended = DRIVER.replace(self.previous.take());
        drop(ended); // after the cell is free again: the driver may be foreign code
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").finish_non_exhaustive()
    }
}

/// The calling thread's driver: the one that it entered, or else its current device. A thread that is ending
/// has none.
pub(crate) fn driver() -> DriverResult<DriverHandle> {
    if let Ok(Some(driver)) = DRIVER.try_with(|driver| driver.borrow().clone()) {
        return Ok(driver);
    }
    millpond_driver::current().map_err(|error| match error.driver_error() {
        Some(error) => error.clone(),
        None => DriverError::new(DriverError::NO_DEVICE, "cuInit"),
    })
}
