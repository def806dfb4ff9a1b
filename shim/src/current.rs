//! The device that CUDA's calls of a thread reach.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use millpond_core::driver::DriverResult;
use millpond_core::{Driver, DriverError, DriverHandle};
use millpond_driver::sim::SimDevice;

use crate::contexts::{self, ContextHandle};
use crate::error::refusal;

thread_local! {
    static ENTERED: RefCell<Option<DriverHandle>> = const { RefCell::new(None) };
    /// The thread's contexts; the last one is current.
    static STACK: RefCell<Vec<ContextHandle>> = const { RefCell::new(Vec::new()) };
}

/// Lets the calling thread's calls of CUDA reach one driver, until this value is dropped.
#[must_use = "the calls reach the driver until this is dropped"]
pub struct Entered {
    previous: Option<DriverHandle>,
    /// The driver is the thread's, so this value must not move to another thread.
    thread_bound: PhantomData<*const ()>,
}

impl Entered {
    /// Lets the calling thread's calls reach `driver`. Until this value is dropped, CUDA counts as
    /// initialised, and the driver's context is current.
    pub fn new(driver: &DriverHandle) -> Self {
        let driver = Some(driver.clone());
        Self { previous: ENTERED.replace(driver), thread_bound: PhantomData }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let ended = ENTERED.replace(self.previous.take());
        drop(ended); // after the cell is free again: the driver may be foreign code
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").finish_non_exhaustive()
    }
}

/// The driver that the thread entered. A thread that is ending has none.
fn entered() -> Option<DriverHandle> {
    ENTERED.try_with(|driver| driver.borrow().clone()).ok().flatten()
}

/// The simulated device of calls that a [`Driver`] does not have.
pub(crate) fn simulated(driver: &dyn Driver) -> DriverResult<Arc<SimDevice>> {
    SimDevice::find(driver.device()).ok_or_else(|| refusal(DriverError::NOT_SUPPORTED))
}

/// Whether the thread entered a driver, whose context then hides all others.
pub(crate) fn has_entered() -> bool {
    entered().is_some()
}

/// The driver of the calling thread's context: the driver that it entered, or else the driver
/// of its current context.
pub(crate) fn driver() -> DriverResult<DriverHandle> {
    if let Some(driver) = entered() {
        return Ok(driver);
    }
    let contexts = contexts::initialised()?;
    contexts.driver(top().ok_or_else(|| refusal(DriverError::INVALID_CONTEXT))?)
}

/// As [`driver`], for CUDA's runtime: a thread without a context gets the primary one.
pub(crate) fn driver_of_runtime() -> DriverResult<DriverHandle> {
    if let Some(driver) = entered() {
        return Ok(driver);
    }
    let contexts = contexts::initialise()?;
    match top() {
        Some(context) if context != contexts::PRIMARY => contexts.driver(context),
        current => {
            contexts.activate_primary();
            if current.is_none() {
                push(contexts::PRIMARY);
            }
            contexts.driver(contexts::PRIMARY)
        }
    }
}

/// The driver of the device, for calls that need no context.
pub(crate) fn device() -> DriverResult<DriverHandle> {
    match entered() {
        Some(driver) => Ok(driver),
        None => Ok(contexts::initialised()?.device()),
    }
}

/// The thread's current context.
pub(crate) fn top() -> Option<ContextHandle> {
    if has_entered() {
        return Some(contexts::ENTERED);
    }
    STACK.try_with(|stack| stack.borrow().last().copied()).ok().flatten()
}

/// Makes a context current, above the one that is current now.
pub(crate) fn push(context: ContextHandle) {
    STACK.try_with(|stack| stack.borrow_mut().push(context)).unwrap_or_default();
}

/// Ends the current context's turn.
pub(crate) fn pop() -> Option<ContextHandle> {
    STACK.try_with(|stack| stack.borrow_mut().pop()).ok().flatten()
}
