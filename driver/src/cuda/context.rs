//! The primary context of a device, and the guard that makes it current.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

use millpond_core::driver::{CaptureMode, DriverError, DriverResult};

use super::capture_mode::exchange_mode;
use super::functions::Functions;

/// A device's primary context, which the first call that needs it retains.
///
/// A context takes half a gigabyte of its device, so a driver that only names a device retains none.
pub(super) struct LazyContext {
    pub(super) functions: &'static Functions,
    device: i32,
    context: OnceLock<PrimaryContext>,
}

impl LazyContext {
    pub(super) const fn new(functions: &'static Functions, device: i32) -> Self {
        Self { functions, device, context: OnceLock::new() }
    }

    /// Returns the context, retaining it on the first call.
    pub(super) fn get(&self) -> DriverResult<PrimaryContext> {
        if let Some(context) = self.context.get() {
            return Ok(*context);
        }
        // Creating the context must not end captures that other threads run in other contexts. No lock is
        // held: two threads that arrive first retain the same context twice, which costs nothing.
        let mode = exchange_mode(self.functions, CaptureMode::Relaxed);
        let context = PrimaryContext::retain(self.functions, self.device);
        if let Ok(mode) = mode {
            exchange_mode(self.functions, mode)?;
        }
        let context = context?;
        tracing::debug!(device = self.device, "retained the primary context of a CUDA device");
        Ok(*self.context.get_or_init(|| context))
    }

    /// Whether the context was reset after it was retained; `false` if it is not retained yet.
    pub(super) fn was_reset(&self) -> bool {
        self.context.get().is_some_and(|context| context.was_reset())
    }
}

/// A device's primary context, which cudart, cudarc and PyTorch use too.
///
/// It is never released: memory and streams in it outlive any use here. The driver destroys it with the
/// process.
///
/// Another library may reset it (`cuDevicePrimaryCtxReset`). The next retain then gets a new context under
/// the **same handle**. A call there with an event of the old context crashes the process, and an old pointer
/// may already belong to another allocation. So each use first compares the context's id, which is never
/// reused.
#[derive(Clone, Copy)]
pub(super) struct PrimaryContext {
    pub(super) functions: &'static Functions,
    device: i32,
    handle: u64,
    /// `None` for a driver older than CUDA 12.0, which does not number contexts.
    id: Option<u64>,
}

thread_local! {
    /// Whether the thread's last query found a device's primary context current.
    static HAD_CONTEXT: Cell<bool> = const { Cell::new(false) };
}

/// The id of a context; `None` if the driver does not number contexts. A handle of 0 names the current one.
fn id_of(functions: &Functions, handle: u64) -> DriverResult<Option<u64>> {
    let mut id = 0;
    // SAFETY: `id` takes the result; a primary context's handle stays valid, and 0 is allowed.
    match unsafe { functions.ctx_get_id(handle, &raw mut id) } {
        Ok(()) => Ok(Some(id)),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(error),
    }
}

impl PrimaryContext {
    pub(super) fn retain(functions: &'static Functions, device: i32) -> DriverResult<Self> {
        let mut handle = 0;
        // SAFETY: `handle` takes the result, and the driver gave `device`.
        unsafe { functions.device_primary_ctx_retain(&raw mut handle, device) }?;
        let id = id_of(functions, handle)?;
        Ok(Self { functions, device, handle, id })
    }

    /// The context's handle, for calls that involve several devices.
    pub(super) const fn handle(self) -> u64 {
        self.handle
    }

    /// Whether the context was reset after it was retained. If the driver does not number contexts, a reset
    /// is visible only until the context is retained again.
    pub(super) fn was_reset(self) -> bool {
        if self.is_current_with_its_id() {
            return false;
        }
        let (mut flags, mut active) = (0, 1);
        // SAFETY: both take results, and the driver gave `device`.
        let state = unsafe {
            self.functions.device_primary_ctx_get_state(self.device, &raw mut flags, &raw mut active)
        };
        let is_inactive = state.is_ok() && active == 0;
        is_inactive || (self.id.is_some() && id_of(self.functions, self.handle).ok().flatten() != self.id)
    }

    /// Whether the context is the calling thread's current one and was not reset after it was retained.
    /// Queries only the thread's own state.
    fn is_current_with_its_id(self) -> bool {
        if self.id.is_none() {
            return false;
        }
        let has_its_id = || matches!(id_of(self.functions, 0), Ok(id) if id == self.id);
        // Every context has a unique id, so the current context's id suffices. Querying it without a current
        // context takes 1.5 µs, so this happens only if one was current at the last call or is current now.
        if HAD_CONTEXT.get() && has_its_id() {
            return true;
        }
        let mut current = 0;
        // SAFETY: `current` takes the result.
        let known = unsafe { self.functions.ctx_get_current(&raw mut current) };
        let is_current = known.is_ok() && current == self.handle && has_its_id();
        HAD_CONTEXT.set(is_current);
        is_current
    }

    /// Makes the context current until the guard is dropped. Queries the current context each time, because
    /// other libraries change it.
    ///
    /// # Errors
    /// [`DriverError::CONTEXT_IS_DESTROYED`] if the context was reset.
    pub(super) fn enter(self) -> DriverResult<ContextGuard> {
        let mut previous = 0;
        // SAFETY: `previous` takes the result.
        unsafe { self.functions.ctx_get_current(&raw mut previous) }?;
        let is_current = previous == self.handle;
        // The current context's id is queried only if there is one; otherwise the query takes 1.5 µs.
        if is_current && matches!(id_of(self.functions, 0), Ok(current) if current == self.id) {
            return Ok(ContextGuard { restore: None, thread_bound: PhantomData });
        }
        if self.id.is_some() && self.was_reset() {
            return Err(DriverError::new(DriverError::CONTEXT_IS_DESTROYED, "cuCtxGetId"));
        }
        if is_current {
            return Ok(ContextGuard { restore: None, thread_bound: PhantomData });
        }
        // SAFETY: the context is retained for the life of the process.
        unsafe { self.functions.ctx_set_current(self.handle) }?;
        Ok(ContextGuard { restore: Some((self.functions, previous)), thread_bound: PhantomData })
    }
}

/// Restores the caller's context, or the absence of one, on drop.
#[must_use]
pub(crate) struct ContextGuard {
    restore: Option<(&'static Functions, u64)>,
    /// The current context belongs to the thread.
    thread_bound: PhantomData<*const ()>,
}

impl ContextGuard {
    /// Makes an existing context current until the guard is dropped; 0 means no context.
    pub(super) fn of(functions: &'static Functions, context: u64) -> DriverResult<Self> {
        let mut previous = 0;
        // SAFETY: `previous` takes the result.
        unsafe { functions.ctx_get_current(&raw mut previous) }?;
        let restore = (previous != context).then_some((functions, previous));
        if restore.is_some() {
            // SAFETY: the caller got the context from the driver.
            unsafe { functions.ctx_set_current(context) }?;
        }
        Ok(Self { restore, thread_bound: PhantomData })
    }
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        if let Some((functions, previous)) = self.restore {
            // SAFETY: the context was current on this thread when the guard was created. If its owner has
            // destroyed it, the driver refuses the call, and there is nothing to restore.
            let _ = unsafe { functions.ctx_set_current(previous) };
        }
    }
}
