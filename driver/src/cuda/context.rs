use std::marker::PhantomData;

use millpond_core::driver::DriverResult;

use super::functions::Functions;

/// A device's primary context, which cudart, cudarc and PyTorch use too.
///
/// It is retained when the device is opened and never released: memory and streams in it outlive any use of
/// it here, and the driver ends it with the process.
#[derive(Clone, Copy)]
pub(super) struct PrimaryContext {
    pub(super) functions: &'static Functions,
    handle: u64,
}

impl PrimaryContext {
    pub(super) fn retain(functions: &'static Functions, device: i32) -> DriverResult<Self> {
        let mut handle = 0;
        // SAFETY: `handle` takes the result, and the driver gave `device`.
        unsafe { functions.device_primary_ctx_retain(&raw mut handle, device) }?;
        Ok(Self { functions, handle })
    }

    /// Makes the context current until the guard is dropped. The thread is asked each time what is current:
    /// others change it, so remembering would be wrong.
    pub(super) fn enter(self) -> DriverResult<ContextGuard> {
        let mut previous = 0;
        // SAFETY: `previous` takes the result.
        unsafe { self.functions.ctx_get_current(&raw mut previous) }?;
        if previous == self.handle {
            return Ok(ContextGuard { restore: None, thread_bound: PhantomData });
        }
        // SAFETY: the context is retained for the life of the process.
        unsafe { self.functions.ctx_set_current(self.handle) }?;
        Ok(ContextGuard { restore: Some((self.functions, previous)), thread_bound: PhantomData })
    }
}

/// Restores the caller's context, or its having none, when dropped.
#[must_use]
pub(super) struct ContextGuard {
    restore: Option<(&'static Functions, u64)>,
    /// What is current is a matter of the thread.
    thread_bound: PhantomData<*const ()>,
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        if let Some((functions, previous)) = self.restore {
            // SAFETY: the context was current on this thread when the guard was made. If its owner destroyed
            // it since, the driver refuses, and there is nothing to restore.
            let _ = unsafe { functions.ctx_set_current(previous) };
        }
    }
}
