//! Tests the contract on a real GPU. The tests run one at a time, because they check the GPU's free memory.

use std::process::Command;
use std::sync::Arc;

use millpond_core::{DeviceId, Driver, DriverHandle, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_plugin::IpcHandle;
use parking_lot::Mutex;

use crate::common::{self, Bench, MIB, pattern, read, write};

/// Passes a handle to the child process, in hexadecimal digits.
const HANDLE_VARIABLE: &str = "MILLPOND_TEST_IPC_HANDLE";
const CHILD: &str = "gpu::ipc_child";
/// The value that the child writes over the shared memory.
const ANSWER: u8 = 0xA5;

fn gpu() -> DriverHandle {
    millpond_driver::open(DeviceId::cuda(0)).expect("these tests need a CUDA GPU")
}

/// Runs `test` on a bench while no other test runs.
fn alone(bench: impl FnOnce(DriverHandle) -> Bench, test: fn(&Bench)) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    test(&bench(gpu()));
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn plain_cuda_keeps_the_contract() {
    alone(Bench::cuda, common::all);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn the_stack_cuda_keeps_the_contract() {
    alone(|gpu| Bench::stack(gpu, "cuda"), common::all);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_pool_keeps_the_contract() {
    alone(|gpu| Bench::stack(gpu, "cuda+pool:initial=64MiB,pages=off"), common::all);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_pool_under_adaptors_keeps_the_contract() {
    alone(|gpu| Bench::stack(gpu, "cuda+pool:initial=64MiB,pages=off+statistics+thread_safe"), common::all);
}

/// Shares memory with a child process. The child reads the memory and writes its answer.
fn share_with_a_child(bench: &Bench) {
    let manager = bench.manager();
    let _before = manager.memalloc(3 * MIB).unwrap();
    let whole = manager.memalloc(2 * MIB).unwrap();
    let memory = whole.view(4096..4096 + 10_000).unwrap();
    write(&bench.driver, whole.device_pointer(), &pattern(2 << 20, 9));
    write(&bench.driver, memory.device_pointer(), &pattern(10_000, 10));
    let handle = manager.get_ipc_handle(&memory).unwrap();
    assert!(handle.offset() >= 4096);

    let hex: String = handle.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", CHILD, "--nocapture"])
        .env(HANDLE_VARIABLE, hex)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the child failed:\n{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "the child did not run:\n{stdout}");

    assert_eq!(read(&bench.driver, memory.device_pointer(), 10_000), [ANSWER; 10_000]);
    let around = pattern(2 << 20, 9);
    assert_eq!(read(&bench.driver, whole.device_pointer(), 4096), around[..4096]);
    let behind = whole.view(4096 + 10_000..2 * MIB).unwrap();
    assert_eq!(read(&bench.driver, behind.device_pointer(), 4096), around[14_096..18_192]);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn plain_cuda_shares_memory_with_another_process() {
    alone(Bench::cuda, share_with_a_child);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_pool_shares_memory_with_another_process() {
    alone(|gpu| Bench::stack(gpu, "cuda+pool:initial=64MiB,pages=off"), share_with_a_child);
}

/// The other process of the tests above, which start it. Alone it does nothing.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn ipc_child() {
    let Ok(hex) = std::env::var(HANDLE_VARIABLE) else { return };
    let digits: Vec<char> = hex.chars().collect();
    let bytes: Vec<u8> = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
        .collect();
    let driver = gpu();
    let mut handle = IpcHandle::from_bytes(&bytes).unwrap();
    assert_eq!(handle.source_info().unwrap().name, driver.name());
    let memory = handle.open(&driver).unwrap();
    assert_eq!(memory.bytes(), 10_000);
    assert!(handle.open(&driver).is_err(), "the handle is already open");
    assert_eq!(read(&driver, memory.device_pointer(), 10_000), pattern(10_000, 10));
    // SAFETY: the parent keeps the memory and does not touch it until this process is done.
    unsafe { driver.memset_d8_async(memory.device_pointer(), ANSWER, 10_000, StreamRef::LEGACY).unwrap() };
    driver.synchronize().unwrap();
    handle.close().unwrap();
    assert!(!memory.is_live() && handle.close().is_err());

    // If the handle is opened again, the last pointer closes it.
    let again = handle.open(&driver).unwrap();
    assert_eq!(read(&driver, again.device_pointer(), 16), [ANSWER; 16]);
    drop((again, handle));

    if millpond_driver::cuda::device_count() > 1 {
        let second = millpond_driver::open(DeviceId::cuda(1)).unwrap();
        let theirs = Bench::cuda(Arc::clone(&second));
        let mut handle = IpcHandle::from_bytes(&bytes).unwrap();
        let copy = handle.open_staged(&driver, &*theirs.manager(), &second).unwrap();
        assert_eq!(read(&second, copy.device_pointer(), 10_000), [ANSWER; 10_000]);
        assert!(handle.close().is_err(), "the handle is closed");
    }
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn the_processs_manager_is_found_for_the_gpu() {
    alone(Bench::cuda, |bench| {
        let device = bench.driver.device();
        let manager = millpond_plugin::get_memory_manager(device).unwrap();
        assert_eq!(manager.memalloc(MIB).unwrap().device(), device);
        let simulated = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let other = millpond_plugin::get_memory_manager(simulated.device()).unwrap();
        assert_eq!(other.memalloc(MIB).unwrap().device(), simulated.device());
    });
}
