//! Functions of the host run in stream order, and block nothing but what waits for them.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use millpond_core::{Driver, DriverError, DriverHandle};
use millpond_driver::CallKind;
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};
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

/// A byte that a copy fills, and what `look` saw there.
struct Look {
    byte: *const u8,
    seen: AtomicU8,
}

unsafe extern "C" fn look(at: *mut c_void) {
    // SAFETY: the value and its byte live until the stream is synchronised, and the copy into it is done.
    let at = unsafe { &*at.cast::<Look>() };
    // SAFETY: as before.
    at.seen.store(unsafe { at.byte.read_volatile() }, Ordering::SeqCst);
}

/// A stream of these flags: 0 is blocking, and 1 is not.
fn stream_of(flags: u32) -> *mut c_void {
    let mut stream = null_mut();
    // SAFETY: the place is a local value.
    assert_eq!(unsafe { (CUDA.cudaStreamCreateWithFlags)(&raw mut stream, flags) }, 0);
    stream
}

fn stream() -> *mut c_void {
    stream_of(1)
}

/// The handle 1 (`cudaStreamLegacy`) or 2 (`cudaStreamPerThread`).
const fn default_stream(handle: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(handle)
}

/// The codes of `cudaStreamQuery`: 0, or 600 if a function or work is left.
fn queries<const N: usize>(streams: [*mut c_void; N]) -> [i32; N] {
    // SAFETY: the streams are alive.
    streams.map(|stream| unsafe { (CUDA.cudaStreamQuery)(stream) })
}

/// Lets a function return, and waits until it has.
fn finish(release: Sender<()>, stream: *mut c_void) {
    drop(release);
    // SAFETY: the stream is alive.
    assert_eq!(unsafe { (CUDA.cudaStreamSynchronize)(stream) }, 0);
}

#[test]
fn a_function_of_the_host_runs_after_the_work_of_its_stream() {
    // The function's thread takes none of the planned faults.
    let faults = FaultPlan::nth_of(CallKind::EventSynchronize, 0, DriverError::NOT_SUPPORTED).persistent();
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30).faults(faults));
    let driver: DriverHandle = device.clone();
    let _entered = Entered::new(&driver);
    let (stream, mut ptr, mut byte) = (stream(), null_mut(), null_mut());
    // SAFETY: the stream is alive.
    let named = unsafe { device.stream_ref(stream.addr() as u64) }.expect("a stream");
    // SAFETY: the places are local values, and the blocks and the stream are live.
    unsafe {
        assert_eq!((CUDA.cudaMalloc)(&raw mut ptr, 1 << 20), 0);
        assert_eq!((CUDA.cudaMallocHost)(&raw mut byte, 1), 0);
        byte.cast::<u8>().write(0);
        let at = Look { byte: byte.cast(), seen: AtomicU8::new(0) };
        // An hour of work.
        device.launch_for(named, &[], 3_600_000_000_000);
        assert_eq!((CUDA.cudaMemsetAsync)(ptr, 7, 1 << 20, stream), 0);
        assert_eq!((CUDA.cudaMemcpyAsync)(byte, ptr, 1, 2, stream), 0);
        assert_eq!((CUDA.cudaLaunchHostFunc)(stream, Some(look), (&raw const at).cast_mut().cast()), 0);
        assert_eq!((CUDA.cudaStreamSynchronize)(stream), 0);
        assert_eq!(at.seen.load(Ordering::SeqCst), 7);
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

/// So the numbers of planned faults do not depend on the threads.
#[test]
fn a_function_of_the_host_makes_no_driver_calls() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let driver: DriverHandle = device.clone();
    let _entered = Entered::new(&driver);
    let stream = stream();
    let before = device.driver_calls();
    let (has_begun, release) = launch(stream);
    has_begun.recv().expect("the function runs");
    let launched = device.driver_calls();
    let mut status = 0;
    // SAFETY: the place is a local value, and the stream is alive.
    assert_eq!(unsafe { (CUDA.cudaStreamIsCapturing)(stream, &raw mut status) }, 0);
    // A launch, too, asks whether the stream captures.
    assert_eq!(launched - before, device.driver_calls() - launched);
    finish(release, stream);
    // SAFETY: the stream is alive.
    assert_eq!(unsafe { (CUDA.cudaStreamDestroy)(stream) }, 0);
}

/// A per-thread stream has the same handle on each thread, and the legacy default stream has two.
#[test]
fn a_function_of_the_host_belongs_to_a_stream_and_not_to_a_handle() {
    let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let _entered = Entered::new(&device);
    let [legacy, per_thread] = [1, 2].map(default_stream);
    let (other_begun, other) = std::thread::scope(|scope| {
        let launched = scope.spawn(|| {
            let _entered = Entered::new(&device);
            launch(default_stream(2))
        });
        launched.join().expect("a launch")
    });
    other_begun.recv().expect("the function runs");
    let (begun, release) = launch(null_mut());
    assert!(begun.try_recv().is_err(), "it runs after the other thread's stream");
    // The other thread's stream is not this thread's, but both are ordered with the legacy stream.
    assert_eq!(queries([null_mut(), legacy]), [600; 2]);
    drop(other);
    begun.recv().expect("the function runs");
    assert_eq!(queries([null_mut(), legacy, per_thread]), [600; 3]);
    finish(release, legacy);
    assert_eq!(queries([null_mut(), legacy, per_thread]), [0; 3]);
    let (begun, release) = launch(per_thread);
    begun.recv().expect("the function runs");
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            let _entered = Entered::new(&device);
            queries([default_stream(2), default_stream(1)])
        });
        assert_eq!(elsewhere.join().expect("queries"), [0, 600]);
    });
    finish(release, per_thread);
}

#[test]
fn only_blocking_streams_are_ordered_with_the_legacy_default_stream() {
    let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let _entered = Entered::new(&device);
    let [blocking, other, free] = [0, 0, 1].map(stream_of);
    let all = [null_mut(), default_stream(1), blocking, other, free];
    let left = [null_mut(), blocking, free].map(|on| {
        let (begun, release) = launch(on);
        begun.recv().expect("the function runs");
        let left = queries(all);
        finish(release, on);
        left
    });
    assert_eq!(left, [[600, 600, 600, 600, 0], [600, 600, 600, 0, 0], [0, 0, 0, 0, 600]]);
    for stream in [blocking, other, free] {
        // SAFETY: the stream is alive.
        assert_eq!(unsafe { (CUDA.cudaStreamDestroy)(stream) }, 0);
    }
}

/// An allocator asks such questions under its mutex, which the function may need.
#[test]
fn questions_about_a_stream_do_not_wait_for_its_functions() {
    let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let _entered = Entered::new(&device);
    let stream = stream();
    let (begun, release) = launch(stream);
    begun.recv().expect("the function runs");
    let (mut status, mut id, mut context) = ([1; 3], [0; 3], null_mut());
    let (graph, dependencies, count) = (null_mut(), null_mut(), null_mut());
    // SAFETY: the places are local values or null, and the stream is alive.
    let codes = unsafe {
        [
            (CUDA.cudaStreamIsCapturing)(stream, &raw mut status[0]),
            (CUDA.cuStreamGetCaptureInfo)(stream, &raw mut status[1], &raw mut id[0]),
            (CUDA.cuStreamGetCaptureInfo_v2)(
                stream,
                &raw mut status[2],
                &raw mut id[1],
                graph,
                dependencies,
                count,
            ),
            (CUDA.cudaStreamGetId)(stream, &raw mut id[2]),
            (CUDA.cuStreamGetCtx)(stream, &raw mut context),
        ]
    };
    assert_eq!((codes, status), ([0; 5], [0; 3]));
    assert_eq!(queries([stream]), [600], "the function still runs");
    finish(release, stream);
    // SAFETY: the stream is alive.
    assert_eq!(unsafe { (CUDA.cudaStreamDestroy)(stream) }, 0);
}

unsafe extern "C" fn return_late(returns: *mut c_void) {
    // A fill that does not wait would be done by then.
    std::thread::sleep(std::time::Duration::from_millis(50));
    // SAFETY: the flag lives until the fill has waited for this function.
    unsafe { &*returns.cast::<AtomicU8>() }.store(1, Ordering::SeqCst);
}

#[test]
fn a_fill_of_rows_waits_for_functions_of_the_host() {
    let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let _entered = Entered::new(&device);
    let (returned, mut ptr) = (AtomicU8::new(0), null_mut());
    // SAFETY: the places are local values, the block is live, and the function takes the flag.
    unsafe {
        assert_eq!((CUDA.cudaMalloc)(&raw mut ptr, 1 << 20), 0);
        let flag = (&raw const returned).cast_mut().cast();
        assert_eq!((CUDA.cudaLaunchHostFunc)(null_mut(), Some(return_late), flag), 0);
        assert_eq!((CUDA.cuMemsetD2D8_v2)(ptr, 1024, 7, 512, 2), 0);
        let has_waited = returned.load(Ordering::SeqCst);
        assert_eq!((CUDA.cudaFree)(ptr), 0);
        assert_eq!(has_waited, 1);
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
