//! The library as CUDA's driver: millpond's own driver of CUDA runs over it, and so do programs in C.

use std::ffi::{CString, OsStr, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

use libloading::os::unix::Library;
use millpond_core::DriverHandle;
use millpond_core::stack::LayerTable;
use millpond_driver::cuda::CudaDriver;
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_shim::{Entered, EntryPoints, Shim};
use millpond_testkit::conformance::{self, Refusals, Subject};
use millpond_testkit::own_process;
use tempfile::TempDir;

const CUDA: &EntryPoints = EntryPoints::OWN;

/// A folder in which the library has the name of CUDA's driver.
fn folder_of_driver() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let library = Shim::file_next_to_program().expect("cargo builds the library next to its tests");
    std::os::unix::fs::symlink(library, folder.path().join("libcuda.so.1")).expect("a link");
    folder
}

/// Runs a test's body in a process that finds the library as CUDA's driver.
fn run_over_the_library<F: FnOnce()>(body: F) {
    let folder = folder_of_driver();
    own_process::run_with(
        &[("LD_LIBRARY_PATH", folder.path().as_os_str()), ("MILLPOND_DEVICE", OsStr::new("sim:8GiB"))],
        body,
    );
}

fn driver() -> DriverHandle {
    CudaDriver::open(0).expect("the library offers a device")
}

#[test]
fn the_driver_of_cuda_keeps_its_contract_over_the_library() {
    run_over_the_library(|| {
        let report = conformance::driver::run(&driver());
        assert!(report.passed(), "{report}");
        println!("{report}");
    });
}

/// The driver watches a free while a function of the host runs.
#[test]
fn millpond_sees_that_a_free_waits() {
    run_over_the_library(|| assert!(CudaDriver::open(0).expect("a device").frees_wait()));
}

/// Pools that map pages and pools that do not.
#[test]
fn pools_keep_their_contract_over_the_library() {
    run_over_the_library(|| {
        let layers = LayerTable::new(millpond_resources::LAYERS.iter().copied());
        for text in ["cuda+pool:pages=on", "cuda+pool:pages=off", "cuda_async"] {
            let subject = Subject::from_text(text, &layers).refuses(Refusals::ALL);
            let report = conformance::run_on(&subject, &driver());
            assert!(report.passed(), "{report}");
            let skipped = report.skipped().count();
            assert!(skipped < report.bodies() / 2, "{skipped} of {} are skipped", report.bodies());
        }
    });
}

/// Compiles and runs a program in C, which finds the library as CUDA's driver.
fn run_in_c(arguments: &[&str]) {
    let folder = folder_of_driver();
    let program = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]).arg(source).arg("-o").arg(&program);
    let done = compiler.args(["-ldl", "-pthread"]).output().expect("a C compiler, as CONTRIBUTING.md says");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut run = Command::new(program);
    run.args(arguments).env("LD_LIBRARY_PATH", folder.path()).env("MILLPOND_DEVICE", "sim:8GiB");
    let done = run.output().expect("the program was compiled above");
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && text.starts_with("0 of "), "{}: {text}", done.status);
}

#[test]
fn a_program_that_looks_up_symbols_sees_the_codes_of_a_gpu() {
    run_in_c(&[]);
    run_in_c(&["crashes"]);
}

#[test]
fn a_program_that_asks_for_addresses_sees_the_codes_of_a_gpu() {
    run_in_c(&["address"]);
}

/// A program whose own library is the one that it finds as CUDA's driver.
#[test]
fn the_runtime_and_the_driver_share_the_primary_context() {
    run_over_the_library(|| {
        let (mut ptr, mut info) = (null_mut(), [0_usize; 2]);
        let [mut context, mut primary] = [null_mut(); 2];
        let [free, total] = &mut info;
        // SAFETY: the places are local values, and the block is live.
        unsafe {
            assert_eq!((CUDA.cuMemAlloc_v2)(&raw mut ptr, 8), 3, "the driver does not initialise itself");
            assert_eq!((CUDA.cudaMalloc)(&raw mut ptr, 1 << 20), 0, "the runtime does");
            assert_eq!((CUDA.cuCtxGetCurrent)(&raw mut context), 0);
            assert_eq!((CUDA.cuDevicePrimaryCtxRetain)(&raw mut primary, 0), 0);
            assert_eq!(context, primary);
            assert_eq!((CUDA.cuMemGetInfo_v2)(free, total), 0);
            assert_eq!(*total, 8 << 30, "the device that `MILLPOND_DEVICE` names");
            assert_eq!((CUDA.cuMemFree_v2)(ptr), 0);
            // The runtime begins again after a reset; the driver waits until the context is retained.
            assert_eq!((CUDA.cuDevicePrimaryCtxReset_v2)(0), 0);
            assert_eq!((CUDA.cuMemAlloc_v2)(&raw mut ptr, 8), 709);
            assert_eq!((CUDA.cudaMalloc)(&raw mut ptr, 8), 0);
            assert_eq!((CUDA.cuMemFree_v2)(ptr), 0);
        }
    });
}

#[test]
fn a_device_that_cannot_be_named_is_no_device() {
    own_process::run_with(&[("MILLPOND_DEVICE", OsStr::new("sim:many"))], || {
        // SAFETY: the call has no pointer.
        assert_eq!(unsafe { (EntryPoints::OWN.cuInit)(0) }, 100);
    });
}

/// An allocator under the judge may call the driver, too.
#[test]
fn a_driver_that_a_thread_entered_is_its_only_context() {
    own_process::run(|| {
        let device: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let (mut ptr, mut id) = (null_mut(), 0);
        let [mut current, mut primary] = [null_mut(); 2];
        let entered = Entered::new(&device);
        // SAFETY: the places are local values, and the block is live.
        unsafe {
            assert_eq!((CUDA.cuMemAlloc_v2)(&raw mut ptr, 1 << 20), 0, "no `cuInit` is needed");
            assert_eq!((CUDA.cuCtxGetCurrent)(&raw mut current), 0);
            assert_eq!((CUDA.cuDevicePrimaryCtxRetain)(&raw mut primary, 0), 0);
            assert!(current == primary && !current.is_null());
            assert_eq!([(CUDA.cuCtxSetCurrent)(null_mut()), (CUDA.cuCtxSetCurrent)(primary)], [0, 0]);
            assert_eq!((CUDA.cuCtxGetId)(null_mut(), &raw mut id), 0);
            assert_eq!((CUDA.cuDevicePrimaryCtxReset_v2)(0), 0);
            assert_eq!((CUDA.cuMemFree_v2)(ptr), 0, "the context does not end");
            drop(entered);
            assert_eq!((CUDA.cuCtxGetCurrent)(&raw mut current), 3, "it is initialised only while entered");
        }
    });
}

/// The functions that frameworks look up in the driver at their start: PyTorch 2.11 (`driver_api.h` and
/// `LazyNVRTC`), NCCL 2.28 (`cudawrap.cc`), Numba-CUDA (`drvapi.py`), CuPy (`driver.pyx`) and cuda-core.
const ASKED: &str = "
    cuCheckpointProcessLock cuCtxCreate cuCtxDestroy cuCtxFromGreenCtx cuCtxGetCurrent cuCtxGetDevice
    cuCtxGetLimit cuCtxPopCurrent cuCtxPushCurrent cuCtxSetCurrent cuCtxSetLimit cuCtxSynchronize
    cuDevResourceGenerateDesc cuDevSmResourceSplitByCount cuDeviceCanAccessPeer cuDeviceGet
    cuDeviceGetAttribute cuDeviceGetByPCIBusId cuDeviceGetCount cuDeviceGetDevResource cuDeviceGetName
    cuDeviceGetPCIBusId cuDeviceGetUuid cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRetain cuDriverGetVersion
    cuEventCreate cuEventElapsedTime cuEventQuery cuEventRecord cuFuncGetAttribute cuFuncSetAttribute
    cuFuncSetCacheConfig cuGetErrorName cuGetErrorString cuGetExportTable cuGraphAddNode cuGraphClone
    cuGraphInstantiate cuGraphLaunch cuGreenCtxCreate cuInit cuIpcGetMemHandle cuIpcOpenMemHandle
    cuKernelGetFunction cuLaunchCooperativeKernel cuLaunchHostFunc cuLaunchKernel cuLaunchKernelEx
    cuLibraryGetKernel cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload cuLinkAddData cuLinkAddFile
    cuLinkComplete cuLinkCreate cuLinkDestroy cuMemAddressFree cuMemAddressReserve cuMemAlloc cuMemAllocAsync
    cuMemCreate cuMemExportToShareableHandle cuMemFree cuMemGetAddressRange cuMemGetAllocationGranularity
    cuMemGetAllocationPropertiesFromHandle cuMemGetHandleForAddressRange cuMemGetInfo cuMemHostRegister
    cuMemImportFromShareableHandle cuMemMap cuMemRelease cuMemRetainAllocationHandle cuMemSetAccess
    cuMemUnmap cuMemcpy2DAsync cuMemcpyHtoD cuMemsetD32Async cuModuleGetFunction cuModuleGetGlobal
    cuModuleLoadData cuModuleLoadDataEx cuModuleUnload cuMulticastAddDevice cuMulticastBindAddr
    cuMulticastBindMem cuMulticastCreate cuMulticastGetGranularity cuMulticastUnbind
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveClusters
    cuOccupancyMaxPotentialBlockSize cuPointerGetAttribute cuPointerSetAttribute cuProfilerStart
    cuProfilerStop cuStreamAddCallback cuStreamBatchMemOp cuStreamCreate cuStreamGetCtx cuStreamWaitValue32
    cuStreamWriteValue32 cuStreamWriteValue64 cuTensorMapEncodeTiled cuTexObjectCreate";

#[test]
fn every_function_that_frameworks_ask_for_is_found() {
    let missing: Vec<&str> = ASKED.split_whitespace().filter(|name| address(name).is_null()).collect();
    assert_eq!(missing, [""; 0]);
    assert!(address("cuNoSuchFunction").is_null());
    // SAFETY: the function reads no arguments.
    let launch =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> i32>(address("cuLaunchKernel")) };
    assert_eq!(launch(), 801);
}

/// The address that `cuGetProcAddress` finds for CUDA 13.0.
fn address(name: &str) -> *mut c_void {
    let (name, mut found, mut status) = (CString::new(name).unwrap(), null_mut(), -1);
    // SAFETY: the name is a text, and the places are local.
    let code =
        unsafe { (CUDA.cuGetProcAddress_v2)(name.as_ptr(), &raw mut found, 13_000, 0, &raw mut status) };
    assert_eq!((code, status == 0), (0, !found.is_null()), "{name:?}");
    found
}

/// A function is missing here only if a program could do nothing with it.
#[test]
fn every_function_that_millpond_calls_is_exported() {
    let list = include_str!("../../../driver/src/cuda/functions.rs");
    let (_, list) = list.split_once("\nfunctions! {").expect("the list of functions has this start");
    // `method(arguments) = "name" "suffix";`
    let names = list.split(';').filter_map(|line| {
        let (_, names) = line.split_once(" = \"")?;
        Some(names.replace("\" \"", "").trim_end_matches('"').to_owned())
    });
    let names: Vec<String> = names.collect();
    assert!(names.len() > 90 && names.iter().all(|name| name.starts_with("cu")), "{names:?}");
    let file = Shim::file_next_to_program().expect("cargo builds the library next to its tests");
    // SAFETY: the library is built from this crate, and opening it runs no code of ours.
    let library = unsafe { Library::new(file) }.expect("a library");
    // SAFETY: the symbol is only looked up.
    let is_missing = |name: &&String| unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err();
    assert_eq!(names.iter().filter(is_missing).collect::<Vec<_>>(), [""; 0]);
}
