//! The driver of one CUDA device.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::sync::{Arc, OnceLock};

use millpond_core::driver::{Driver, DriverError, DriverResult, Event, Health};
use millpond_core::{DeviceId, DevicePtr, Error, ErrorKind, Result, StreamId, StreamRef};
use parking_lot::Mutex;

use super::context::{ContextGuard, LazyContext};
use super::functions::Functions;
use super::living::LivingStreams;
use super::{library, unavailable};

/// One CUDA device, used through its primary context.
///
/// A process has one driver for each device. The driver lives until the process ends. [`open`](Self::open)
/// returns the same driver each time, until the device's context is reset (`cuDevicePrimaryCtxReset`). After
/// a reset, the calls of the old driver fail, and `open` returns a new driver.
///
/// [`find`](Self::find) returns the driver without creating the device's primary context. The first call that
/// needs the context creates it. The driver keeps the context until the process ends. Queries of the name, of
/// an attribute and of the peers need no context.
///
/// Every call makes the primary context current. At its end, the call restores the context that was current
/// before. So any thread may make calls, whichever context is current on the thread.
///
/// ```
/// use millpond_core::{Driver, Result};
/// use millpond_driver::cuda::CudaDriver;
///
/// fn free_bytes() -> Result<u64> {
///     Ok(CudaDriver::open(0)?.mem_get_info()?.free)
/// }
/// # let _ = free_bytes();
/// ```
pub struct CudaDriver {
    pub(super) ordinal: u32,
    pub(super) device: i32,
    pub(super) name: String,
    pub(super) context: LazyContext,
    pub(super) health: Arc<Health>,
    /// The living streams that this driver made, by handle.
    pub(super) streams: LivingStreams,
    /// The other devices that can use this one's memory, once queried.
    pub(super) reachable_by: OnceLock<Vec<(DeviceId, i32)>>,
    /// Whether freeing pinned memory was seen to wait for the device.
    pub(super) frees_wait: OnceLock<bool>,
}

static OPEN: Mutex<BTreeMap<u32, Arc<CudaDriver>>> = Mutex::new(BTreeMap::new());

impl CudaDriver {
    /// Returns the driver of the CUDA device with this ordinal. Each call returns the same driver, until the
    /// device's context is reset. After a reset, the next call returns a new driver.
    ///
    /// The call creates the device's primary context, which uses some hundred megabytes of the device's
    /// memory. After that, pools of other devices can give this device access to their memory.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`] if CUDA cannot be used, or has no such device. The driver's error if the
    /// driver refuses to create the primary context.
    pub fn open(ordinal: u32) -> Result<Arc<Self>> {
        let driver = Self::find(ordinal)?;
        driver.context.get().map_err(|error| Error::from(error).on_device(driver.device()))?;
        Ok(driver)
    }

    /// Returns the same driver as [`open`](Self::open), without creating the device's context. The first call
    /// that works on the device creates the context. Use this function if a program names devices that it may
    /// never use.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`] if CUDA cannot be used or has no such device.
    pub fn find(ordinal: u32) -> Result<Arc<Self>> {
        let id = DeviceId::cuda(ordinal);
        let cuda = library::cuda().map_err(|error| unavailable(error).on_device(id))?;
        if ordinal >= cuda.device_count {
            let message = match cuda.device_count {
                1 => "this machine has one CUDA device; use cuda:0".to_owned(),
                count => {
                    format!("this machine has {count} CUDA devices; use one of cuda:0 to cuda:{}", count - 1)
                }
            };
            return Err(Error::new(ErrorKind::NoDevice, message).on_device(id));
        }
        // No lock is held while the driver is called. If two threads open a device, both get the first one's
        // driver.
        let known = || OPEN.lock().get(&ordinal).cloned();
        let lost = match known() {
            Some(driver) if driver.was_reset() => Some(driver),
            Some(driver) => return Ok(driver),
            None => None,
        };
        let fresh = Arc::new(Self::new(&cuda.functions, ordinal).map_err(|e| Error::from(e).on_device(id))?);
        let mut open = OPEN.lock();
        match open.get(&ordinal) {
            Some(now) if !lost.is_some_and(|lost| Arc::ptr_eq(&lost, now)) => return Ok(Arc::clone(now)),
            _ => {
                let before = open.insert(ordinal, Arc::clone(&fresh));
                drop(open);
                drop(before);
            }
        }
        Ok(fresh)
    }

    fn new(functions: &'static Functions, ordinal: u32) -> DriverResult<Self> {
        let mut device = 0;
        let number = i32::try_from(ordinal)
            .map_err(|_| DriverError::new(DriverError::INVALID_DEVICE, "cuDeviceGet"))?;
        // SAFETY: `device` takes the result; the driver checks the ordinal.
        unsafe { functions.device_get(&raw mut device, number) }?;
        let name = device_name(functions, device)?;
        tracing::debug!(ordinal, name, "opened a CUDA device");
        Ok(Self {
            ordinal,
            device,
            name,
            context: LazyContext::new(functions, device),
            health: Arc::default(),
            streams: LivingStreams::default(),
            reachable_by: OnceLock::new(),
            frees_wait: OnceLock::new(),
        })
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.context.functions
    }

    /// Refuses a stream of this driver that was destroyed or never existed, because CUDA would dereference
    /// the handle. This does not catch a caller that destroys a stream while another thread uses it.
    pub(super) fn check_alive(&self, stream: StreamRef) -> DriverResult<()> {
        let is_vouched_for = stream.is_legacy() || stream.is_per_thread() || stream.is_foreign();
        if is_vouched_for || self.streams.is_alive(stream) {
            return Ok(());
        }
        let why = "the stream was destroyed, or another library made it and the call did not declare it as a \
                   foreign stream";
        Err(DriverError::new(DriverError::INVALID_HANDLE, "cuStreamGetId").with_detail(why))
    }

    /// Makes this device's context current while the guard lives.
    pub(crate) fn enter(&self) -> DriverResult<ContextGuard> {
        self.context.get()?.enter()
    }

    /// Does the same for calls on objects that outlive the context. Returns `None` after a reset, when such
    /// calls need no context.
    pub(super) fn enter_if_there(&self) -> DriverResult<Option<ContextGuard>> {
        match self.enter() {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.code() == DriverError::CONTEXT_IS_DESTROYED => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frees a pool's block after its context was reset. The driver does that only while no context is
    /// current.
    ///
    /// # Safety
    /// The block was handed out and is not freed elsewhere.
    pub(super) unsafe fn free_after_reset(&self, ptr: DevicePtr) -> DriverResult<()> {
        let _none = ContextGuard::of(self.functions(), 0)?;
        // SAFETY: the caller's promise. The context's streams are gone, and so is their work.
        unsafe { self.functions().mem_free(ptr.address()) }
    }

    /// The identity of a stream that this driver has just made, or that was made elsewhere.
    ///
    /// Drivers before CUDA 12.0 do not number streams, and CUDA reuses handles. So each call returns a new
    /// number, and only copies of one `StreamRef` match. `known` is the number of a living stream that this
    /// driver made.
    pub(super) fn identify(&self, handle: u64, known: Option<StreamId>) -> DriverResult<u64> {
        let mut id = 0;
        // SAFETY: the caller names a living stream; `id` takes the result.
        match unsafe { self.functions().stream_get_id(handle, &raw mut id) } {
            Ok(()) => Ok(id),
            Err(error) if error.is_unsupported() => {
                Ok(known.unwrap_or_else(|| StreamRef::with_new_id(handle).id()).get())
            }
            Err(error) => Err(error),
        }
    }
}

fn device_name(functions: &Functions, device: i32) -> DriverResult<String> {
    let mut name = [0_u8; 256];
    // SAFETY: the driver writes at most the stated length, which leaves one byte for the NUL.
    unsafe { functions.device_get_name(name.as_mut_ptr().cast::<c_char>(), name.len() as i32 - 1, device) }?;
    let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("device", &DeviceId::cuda(self.ordinal))
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl CudaDriver {
    /// A pointer's attribute that CUDA returns as 32 bits; `None` for unknown memory.
    pub(super) fn pointer_attribute(&self, attribute: u32, ptr: DevicePtr) -> DriverResult<Option<u32>> {
        let mut value = 0_u32;
        // SAFETY: `value` takes the result, and the attributes queried here are 32 bits wide. Any address is
        // allowed.
        let answer = unsafe {
            self.functions().pointer_get_attribute((&raw mut value).cast(), attribute, ptr.address())
        };
        match answer {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.code() == DriverError::INVALID_VALUE => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl CudaDriver {
    /// [`Driver::stream_is_capturing`] for a stream that was already looked up.
    pub(super) fn living_stream_is_capturing(&self, stream: StreamRef) -> DriverResult<bool> {
        let _context = self.enter()?;
        let mut status = 0;
        // SAFETY: the results go to locals; the stream is alive.
        unsafe { self.functions().stream_is_capturing(stream.handle(), &raw mut status) }?;
        Ok(status != 0) // an invalidated capture must still be ended
    }

    /// The stream with this handle and id.
    ///
    /// # Safety
    /// If the stream was not made here, it is alive, as for [`StreamRef::foreign`].
    pub(super) unsafe fn named(&self, handle: u64, id: u64) -> StreamRef {
        let own = StreamRef::from_raw_parts(handle, id);
        if self.streams.is_alive(own) {
            return own;
        }
        // SAFETY: if the stream was not made here, the caller vouches for it.
        unsafe { StreamRef::foreign(handle, id) }
    }

    /// [`Driver::event_record`] for a stream that was already looked up.
    pub(super) fn record_on_living(&self, event: Event, stream: StreamRef) -> DriverResult<()> {
        let _context = self.enter()?;
        // SAFETY: the stream is alive. Only unsafe code could have ended the event.
        unsafe { self.functions().event_record(event.0, stream.handle()) }
    }
}
