//! Functions of the host run in stream order, and block nothing but what waits for them.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use millpond_core::DriverHandle;
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_shim::{Entered, EntryPoints};

const CUDA: &EntryPoints = EntryPoints::OWN;

/// What a function of the host gets: it tells that it runs, and then waits until it may return.
struct Gate {
    runs: Sender<()>,
    may_return: Receiver<()>,
}

unsafe extern "C" fn pass(gate: *mut c_void) {
    // SAFETY: `pass_on` leaked the gate for this call.
    let Gate { runs, may_return } = *unsafe { Box::from_raw(gate.cast::<Gate>()) };
    let _gone = runs.send(());
    let _gone = may_return.recv();
}

/// Launches a function that returns when the sender is used or dropped; the receiver tells that it runs.
fn launch(stream: *mut c_void) -> (Receiver<()>, Sender<()>) {
    let ((runs, has_begun), (release, may_return)) = (channel(), channel());
    let gate = Box::into_raw(Box::new(Gate { runs, may_return }));
    // SAFETY: the function takes the gate, and the stream is alive.
    assert_eq!(unsafe { (CUDA.cudaLaunchHostFunc)(stream, Some(pass), gate.cast()) }, 0);
    (has_begun, release)
}

/// The byte that `look` saw.
static SEEN: AtomicU8 = AtomicU8::new(0);

unsafe extern "C" fn look(byte: *mut c_void) {
    // SAFETY: the byte lives until the stream is synchronised, and the copy into it is done.
    SEEN.store(unsafe { byte.cast::<u8>().read_volatile() }, Ordering::SeqCst);
}

fn stream() -> *mut c_void {
    let mut stream = null_mut();
    // SAFETY: the place is a local value.
    assert_eq!(unsafe { (CUDA.cudaStreamCreateWithFlags)(&raw mut stream, 1) }, 0);
    stream
}

#[test]
fn a_function_of_the_host_runs_after_the_work_of_its_stream() {
    let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let _entered = Entered::new(&device);
    let (stream, mut ptr, mut byte) = (stream(), null_mut(), null_mut());
    // SAFETY: the places are local values, and the blocks and the stream are live.
    unsafe {
        assert_eq!((CUDA.cudaMalloc)(&raw mut ptr, 1 << 20), 0);
        assert_eq!((CUDA.cudaMallocHost)(&raw mut byte, 1), 0);
        assert_eq!((CUDA.cudaMemsetAsync)(ptr, 7, 1 << 20, stream), 0);
        assert_eq!((CUDA.cudaMemcpyAsync)(byte, ptr, 1, 2, stream), 0);
        assert_eq!((CUDA.cudaLaunchHostFunc)(stream, Some(look), byte), 0);
        assert_eq!((CUDA.cudaStreamSynchronize)(stream), 0);
        assert_eq!(SEEN.load(Ordering::SeqCst), 7);
        assert_eq!((CUDA.cudaLaunchHostFunc)(stream, None, null_mut()), 1);
        assert_eq!((CUDA.cudaFreeHost)(byte), 0);
        assert_eq!((CUDA.cudaFree)(ptr), 0);
        assert_eq!((CUDA.cudaStreamDestroy)(stream), 0);
    }
}

#[test]
fn only_calls_that_wait_in_cuda_wait_for_a_function_of_the_host() {
    let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let _entered = Entered::new(&device);
    let ([first, other], mut ptr) = ([stream(), stream()], null_mut());
    let (has_begun, release) = launch(first);
    has_begun.recv().expect("the function runs");
    let (second_begun, second) = launch(first);
    // SAFETY: the places are local values, and the blocks and the streams are live.
    unsafe {
        assert_eq!((CUDA.cudaStreamQuery)(first), 600);
        assert_eq!([(CUDA.cudaStreamQuery)(other), (CUDA.cudaStreamSynchronize)(other)], [0, 0]);
        assert_eq!((CUDA.cudaMalloc)(&raw mut ptr, 1 << 20), 0);
        assert_eq!((CUDA.cudaMemsetAsync)(ptr, 7, 1 << 20, other), 0);
        assert!(second_begun.try_recv().is_err(), "the functions of a stream run one after another");
        drop(release);
        second_begun.recv().expect("the second function runs");
        drop(second);
        // A free waits for the whole device.
        assert_eq!((CUDA.cudaFree)(ptr), 0);
        assert_eq!((CUDA.cudaStreamQuery)(first), 0);
        for stream in [first, other] {
            assert_eq!((CUDA.cudaStreamDestroy)(stream), 0);
        }
    }
}

/// A simulated capture keeps no function, because no graph runs it.
#[test]
fn a_capture_refuses_functions_of_the_host() {
    let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let _entered = Entered::new(&device);
    let (stream, mut graph) = (stream(), null_mut());
    // SAFETY: the place is a local value, the stream is live, and the function gets no argument.
    unsafe {
        assert_eq!((CUDA.cudaStreamBeginCapture)(stream, 0), 0);
        assert_eq!((CUDA.cudaLaunchHostFunc)(stream, Some(look), null_mut()), 801);
        assert_eq!((CUDA.cudaStreamEndCapture)(stream, &raw mut graph), 0);
        assert_eq!((CUDA.cudaGraphDestroy)(graph), 0);
        assert_eq!((CUDA.cudaStreamDestroy)(stream), 0);
    }
}

/// NVML's codes differ from CUDA's.
#[test]
fn nvml_knows_the_device_and_this_process() {
    let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let _entered = Entered::new(&device);
    let (mut found, mut version, mut count) = (null_mut(), 0, 1);
    let mut process = [0_u64; 2];
    // The state is at byte 28.
    let mut fabric = [u32::MAX; 16];
    // SAFETY: the places are local values, and have the sizes of NVML's structures.
    unsafe {
        assert_eq!((CUDA.nvmlInit_v2)(), 0);
        let find = CUDA.nvmlDeviceGetHandleByPciBusId_v2;
        assert_eq!(find(c"00000000:07:00.0".as_ptr(), &raw mut found), 6);
        assert_eq!(find(c"a device".as_ptr(), &raw mut found), 6);
        assert_eq!(find(c"00000000:00:00.0".as_ptr(), &raw mut found), 0);
        assert_eq!((CUDA.nvmlSystemGetCudaDriverVersion_v2)(&raw mut version), 0);
        let place = (&raw mut process).cast();
        assert_eq!((CUDA.nvmlDeviceGetComputeRunningProcesses)(found, &raw mut count, place), 0);
        let place = (&raw mut fabric).cast();
        assert_eq!((CUDA.nvmlDeviceGetGpuFabricInfoV)(found, place), 0);
        assert_eq!((CUDA.nvmlDeviceGetNvLinkRemoteDeviceType)(found, 0, null_mut()), 3);
        count = 0;
        assert_eq!((CUDA.nvmlDeviceGetComputeRunningProcesses)(found, &raw mut count, null_mut()), 7);
    }
    assert_eq!((version, count), (13_000, 1));
    assert_eq!(process[0] as u32, std::process::id());
    assert_eq!(fabric[7].to_le_bytes()[0], 0);
}
