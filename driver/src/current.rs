//! Sets a thread's current device for a scope.

use std::fmt;
use std::marker::PhantomData;

use millpond_core::{DeviceId, Result};

use crate::cuda::{ContextGuard, CudaDriver};
use crate::{registry, thread_device};

/// Makes a device the calling thread's current device until this guard is dropped.
///
/// For a CUDA device, the guard makes the device's primary context current. So CUDA's own calls use that
/// device, too.
///
/// ```
/// use millpond_core::Driver;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_driver::{CurrentDeviceGuard, current_device};
///
/// let [one, other] = [SimDevice::new(SimConfig::h200()), SimDevice::new(SimConfig::h200())];
/// let _one = CurrentDeviceGuard::new(one.device())?;
/// {
///     let _other = CurrentDeviceGuard::new(other.device())?;
///     assert_eq!(current_device()?, other.device());
/// }
/// assert_eq!(current_device()?, one.device());
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[must_use = "the device is current until the guard is dropped"]
pub struct CurrentDeviceGuard {
    device: DeviceId,
    previous: Option<DeviceId>,
    /// Restores CUDA's current context.
    _context: Option<ContextGuard>,
    /// The current device belongs to the thread, so the guard must not move to another one.
    thread_bound: PhantomData<*const ()>,
}

impl CurrentDeviceGuard {
    /// Makes `device` the current device of the calling thread.
    ///
    /// # Errors
    /// The errors of [`open`](crate::open).
    pub fn new(device: DeviceId) -> Result<Self> {
        let (chosen, context) = if !device.is_cuda() {
            registry::open(device)?;
            (Some(device), None)
        } else {
            // CUDA's current context selects the device.
            (None, Some(CudaDriver::open(device.ordinal())?.enter()?))
        };
        let previous = thread_device::replace(chosen);
        Ok(Self { device, previous, _context: context, thread_bound: PhantomData })
    }

    /// Returns the device that is current while the guard lives.
    pub fn device(&self) -> DeviceId {
        self.device
    }
}

impl Drop for CurrentDeviceGuard {
    fn drop(&mut self) {
        thread_device::replace(self.previous);
    }
}

impl fmt::Debug for CurrentDeviceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentDeviceGuard").field("device", &self.device).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::Driver;

    use super::*;
    use crate::sim::{SimConfig, SimDevice};
    use crate::{cuda, current_device};

    #[test]
    fn guards_restore_what_was_current_also_in_a_panic() {
        let [one, other] = [SimDevice::new(SimConfig::h200()), SimDevice::new(SimConfig::h200())];
        let outer = CurrentDeviceGuard::new(one.device()).unwrap();
        let id = other.device();
        let panicked = std::panic::catch_unwind(|| {
            let guard = CurrentDeviceGuard::new(id).unwrap();
            assert_eq!((guard.device(), current_device().unwrap()), (id, id));
            panic!("on purpose");
        });
        assert!(panicked.is_err());
        assert_eq!(current_device().unwrap(), one.device());
        drop(outer);
        assert_ne!(current_device().ok(), Some(other.device()));
    }

    #[test]
    fn a_device_that_is_not_there_changes_nothing() {
        let device = SimDevice::new(SimConfig::h200());
        let _guard = CurrentDeviceGuard::new(device.device()).unwrap();
        for missing in [DeviceId::cuda(1000), DeviceId::sim(1 << 29)] {
            assert!(CurrentDeviceGuard::new(missing).unwrap_err().is_no_device());
            assert_eq!(current_device().unwrap(), device.device());
        }
    }

    /// Like CUDA's device 0, all threads that chose no device share it.
    #[test]
    fn issue_9_without_a_gpu_a_simulated_device_is_current_on_every_thread() {
        if cuda::availability().is_ok() {
            return;
        }
        let device = SimDevice::new(SimConfig::h200());
        let elsewhere = || std::thread::spawn(current_device).join().unwrap().unwrap();
        assert!(elsewhere().is_sim() && elsewhere() <= device.device());
        device.make_current();
        assert_eq!(current_device().unwrap(), device.device(), "each thread has its own choice");
    }
}
