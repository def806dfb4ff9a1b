//! A CUDA device behind the library that makes calls fail (`tests/faulty_libcuda`).

use std::ffi::CStr;
use std::mem;
use std::sync::{Arc, Mutex};

use millpond::containers::DeviceGuard;
use millpond::driver::cuda::CudaDriver;
use millpond::driver::sim::Violation;
use millpond::driver::{CallCounts, CallKind, CountingDriver};
use millpond::{DevicePtr, Driver, DriverHandle, Layout, Result, StreamRef};
use millpond_core::driver::CaptureMode;
use millpond_testkit::faults::{FaultKind, FaultyDevice, Live, Stage};

use crate::soak::kernels::{Block, Kernels};

type Address = *mut libc::c_void;
type Plan = unsafe extern "C" fn(i64, i32, bool);
type Count = unsafe extern "C" fn() -> u64;
type Name = unsafe extern "C" fn() -> *const libc::c_char;
type CountOf = unsafe extern "C" fn(*const libc::c_char) -> u64;
type LiveOf = unsafe extern "C" fn(usize) -> i64;

/// The functions of the library.
#[derive(Debug)]
struct Faults {
    plan: Plan,
    calls: Count,
    failed: CountOf,
    name: Name,
    live: LiveOf,
}

impl Faults {
    /// Looks the functions up in the library that the process has loaded as CUDA's driver.
    fn of_loaded() -> Self {
        // SAFETY: the library is loaded, and stays so; each function has the type that its source says.
        unsafe {
            let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            let function = |name: &CStr| {
                let found = libc::dlsym(library, name.as_ptr());
                assert!(!library.is_null() && !found.is_null(), "the library in front of CUDA is not loaded");
                found
            };
            Self {
                plan: mem::transmute::<Address, Plan>(function(c"millpond_faults_plan")),
                calls: mem::transmute::<Address, Count>(function(c"millpond_faults_calls")),
                failed: mem::transmute::<Address, CountOf>(function(c"millpond_faults_failed")),
                name: mem::transmute::<Address, Name>(function(c"millpond_faults_name")),
                live: mem::transmute::<Address, LiveOf>(function(c"millpond_faults_live")),
            }
        }
    }
}

/// The first CUDA device, or its peer. The library counts the calls and objects of both; they are the first
/// one's here.
#[derive(Debug)]
struct FaultyCuda {
    driver: Arc<CudaDriver>,
    /// The same driver, with a count of the failed calls: one call may consist of several functions of CUDA.
    counting: Arc<CountingDriver>,
    at_plan: Mutex<CallCounts>,
    /// `None` for the peer.
    faults: Option<Faults>,
    /// `None` if the driver is a stand-in that runs no kernels.
    kernels: Option<Kernels>,
}

/// The function of CUDA that ends objects of this kind, or waits. The driver's own cleaning calls it too.
fn function_of(kind: CallKind) -> &'static CStr {
    match kind {
        CallKind::MemFree => c"cuMemFree_v2",
        CallKind::MemFreeAsync => c"cuMemFreeAsync",
        CallKind::MemFreeHost => c"cuMemFreeHost",
        CallKind::MemRelease => c"cuMemRelease",
        CallKind::MemUnmap => c"cuMemUnmap",
        CallKind::MemAddressFree => c"cuMemAddressFree",
        CallKind::MemHostRegister => c"cuMemHostUnregister",
        CallKind::Ipc => c"cuIpcCloseMemHandle",
        CallKind::MemPool => c"cuMemPoolDestroy",
        CallKind::StreamSynchronize => c"cuStreamSynchronize",
        CallKind::EventSynchronize => c"cuEventSynchronize",
        CallKind::Synchronize => c"cuCtxSynchronize",
        CallKind::EventDestroy => c"cuEventDestroy_v2",
        CallKind::StreamDestroy => c"cuStreamDestroy_v2",
        other => unreachable!("no failed {other} explains an object that is left"),
    }
}

impl FaultyDevice for FaultyCuda {
    fn driver(&self) -> DriverHandle {
        Arc::<CountingDriver>::clone(&self.counting)
    }

    fn set_fault(&self, fault: Option<(u64, FaultKind)>) {
        let (call, code, is_persistent) = match fault {
            Some((call, kind)) => {
                // The last one of them, if the process ends early.
                println!("failing call {call}: {kind}");
                (call as i64, kind.code, kind.persistent)
            }
            None => (-1, 0, false),
        };
        *self.at_plan.lock().expect("no thread panics") = self.counting.counts();
        if let Some(faults) = &self.faults {
            // SAFETY: the function only stores the numbers.
            unsafe { (faults.plan)(call, code, is_persistent) }
        }
    }

    fn calls(&self) -> u64 {
        // SAFETY: the function only reads a number.
        self.faults.as_ref().map_or(0, |faults| unsafe { (faults.calls)() })
    }

    fn failed_calls(&self, kind: CallKind) -> u64 {
        let counts = self.counting.counts().since(&self.at_plan.lock().expect("no thread panics"));
        // SAFETY: the names are C strings.
        let failed = |faults: &Faults, name: &CStr| unsafe { (faults.failed)(name.as_ptr()) };
        let of_library = self.faults.as_ref().map(|faults| failed(faults, function_of(kind)));
        of_library.unwrap_or_default().max(counts.get(kind).failures)
    }

    fn failed_name(&self) -> Option<String> {
        // SAFETY: the name is null, or a C string that lives as long as the library.
        let name = unsafe {
            let name = (self.faults.as_ref()?.name)();
            (!name.is_null()).then(|| CStr::from_ptr(name))
        };
        name.map(|name| name.to_string_lossy().into_owned())
    }

    /// The planned codes lose no device.
    fn is_lost(&self) -> bool {
        false
    }

    fn live(&self) -> Live {
        let Some(faults) = &self.faults else { return Live::default() };
        // SAFETY: the function only reads a number, and there are three kinds.
        let [allocations, events, streams] = [0, 1, 2].map(|kind| unsafe { (faults.live)(kind) });
        Live { allocations, events, streams }
    }

    /// Nothing watches a real device.
    fn take_violations(&self) -> Vec<Violation> {
        Vec::new()
    }

    fn make_current(&self) {
        mem::forget(DeviceGuard::new(self.driver.device()).expect("the device was opened"));
    }

    fn read(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        let block = Block { ptr, layout: Layout::new(bytes), tag: 0 };
        if let Some(kernels) = &self.kernels {
            // SAFETY: the operations read blocks that are live, on streams that may use them.
            unsafe { kernels.check_tags(&[block], stream) }.expect("a kernel can be launched");
        }
    }

    fn begin_capture(&self, stream: StreamRef) -> Result<()> {
        Ok(self.driver.begin_capture(stream, CaptureMode::Global)?)
    }

    fn end_capture(&self, stream: StreamRef) {
        drop(self.driver.end_capture(stream));
    }
}

/// Opens the first device; with `has_peer`, the second one, too. The first questions that a driver asks only
/// once are asked now, without faults.
pub(crate) fn stage(has_peer: bool) -> Stage {
    let open = |ordinal: u32| -> Arc<dyn FaultyDevice> {
        let driver = CudaDriver::open(ordinal).expect("a CUDA device");
        driver.frees_wait();
        let counting = CountingDriver::new(Arc::<CudaDriver>::clone(&driver));
        let faults = (ordinal == 0).then(Faults::of_loaded);
        // A stand-in refuses to load kernels.
        let kernels = Kernels::load(&driver).ok();
        Arc::new(FaultyCuda { driver, counting, at_plan: Mutex::default(), faults, kernels })
    };
    let devices = if has_peer { vec![open(0), open(1)] } else { vec![open(0)] };
    Stage::new(devices).expect("streams can be created")
}
