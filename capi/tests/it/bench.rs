//! A simulated device for the tests of the ABI.

use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Once};

use millpond_c::device::*;
use millpond_c::resource::*;
use millpond_c::status::*;
use millpond_core::{DeviceId, Driver, StreamRef};
use millpond_driver::sim::SimDevice;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn message() -> String {
    // SAFETY: the text belongs to this thread and is copied at once.
    unsafe { CStr::from_ptr(millpond_error_message()) }.to_string_lossy().into_owned()
}

/// The tables behind `millpond_malloc` belong to the process: every test sees the blocks that one test parks.
static ALONE: ReentrantMutex<()> = ReentrantMutex::new(());

/// A simulated device of its own and a handle to inspect it. Tests with a bench run one at a time.
pub(crate) struct Bench {
    pub(crate) device: *mut Device,
    pub(crate) sim: Arc<SimDevice>,
    _alone: ReentrantMutexGuard<'static, ()>,
}

// SAFETY: the library's functions may be called on any thread.
unsafe impl Sync for Bench {}

impl Bench {
    pub(crate) fn new() -> Self {
        let _alone = ALONE.lock();
        static HIDE_CUDA: Once = Once::new();
        // SAFETY: no other code of these tests writes variables, and CUDA reads them later.
        HIDE_CUDA.call_once(|| unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", "") });
        let mut device = null_mut();
        // SAFETY: the name is a string, and the result is valid for writes.
        let opened = unsafe { millpond_device_open(c"sim:64MiB".as_ptr(), &raw mut device) };
        assert_eq!(opened, Status::Ok);
        // SAFETY: the handle is new.
        let ordinal = unsafe { millpond_device_ordinal(device) };
        let sim = SimDevice::find(DeviceId::sim(ordinal as u32)).expect("the device is open");
        Self { device, sim, _alone }
    }

    pub(crate) fn resource(&self, stack: &str) -> *mut Resource {
        let (mut resource, stack) = (null_mut(), CString::new(stack).unwrap());
        // SAFETY: all arguments are valid.
        let made = unsafe { millpond_resource_new(self.device, stack.as_ptr(), &raw mut resource) };
        assert_eq!(made, Status::Ok, "{}", message());
        resource
    }

    pub(crate) fn stream(&self) -> *mut c_void {
        let mut stream = null_mut();
        // SAFETY: all arguments are valid.
        assert_eq!(unsafe { millpond_stream_create(self.device, true, &raw mut stream) }, Status::Ok);
        stream
    }

    /// The number by which `millpond_malloc` knows the device.
    pub(crate) fn number(&self) -> i32 {
        self.sim.device().ordinal() as i32
    }

    pub(crate) fn stream_ref(&self, stream: *mut c_void) -> StreamRef {
        // SAFETY: the stream is alive.
        unsafe { self.sim.stream_ref(stream.addr() as u64) }.expect("the stream is alive")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // SAFETY: the handle is not used again.
        unsafe { millpond_device_free(self.device) };
    }
}
