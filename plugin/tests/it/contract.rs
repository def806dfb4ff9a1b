//! Runs every clause of the contract over every manager on the simulated device.

use std::sync::Arc;

use millpond_core::driver::{CaptureMode, StreamFlags};
use millpond_core::{Driver, DriverError, DriverHandle, ErrorKind};
use millpond_driver::CallKind;
use millpond_driver::sim::{Access, FaultPlan, SimConfig, SimDevice, SimMachine};
use millpond_plugin::{HostAllocFlags, IpcHandle};
use millpond_testkit::hooked::HookedDriver;

use crate::common::{self, Bench, MIB, pattern, read, write};
use crate::{cupy, cupy_pool};

/// Managers whose memory can be shared with other processes: over our pool, and over CuPy's.
const SHARING: [fn(DriverHandle) -> Bench; 2] =
    [|driver| Bench::stack(driver, "cuda+pool:initial=8MiB,pages=off"), cupy_pool::bench];

/// Runs every clause on a new device and checks that nothing is left on it.
fn check(bench: impl FnOnce(DriverHandle) -> Bench) {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    common::all(&bench(Arc::<SimDevice>::clone(&device)));
    assert_eq!(device.violations(), []);
    assert_eq!(device.live_allocations(), 0);
}

#[test]
fn plain_cuda_keeps_the_contract() {
    check(Bench::cuda);
}

#[test]
fn the_stack_cuda_keeps_the_contract() {
    check(|driver| Bench::stack(driver, "cuda"));
}

#[test]
fn a_pool_keeps_the_contract() {
    check(|driver| Bench::stack(driver, "cuda+pool:initial=8MiB,pages=off"));
}

#[test]
fn a_pool_under_adaptors_keeps_the_contract() {
    check(|driver| Bench::stack(driver, "cuda+pool:pages=off+statistics+thread_safe"));
}

#[test]
fn binning_keeps_the_contract() {
    check(|driver| Bench::stack(driver, "cuda+pool:pages=off+binning"));
}

#[test]
fn a_manager_over_cupys_pool_keeps_the_contract() {
    check(cupy_pool::bench);
}

/// The simulated device opens its own handles at another address, as another process would.
#[test]
fn shared_memory_is_opened_at_its_offset_and_closed_once() {
    SHARING.into_iter().for_each(shared_memory_is_opened);
}

fn shared_memory_is_opened(make: fn(DriverHandle) -> Bench) {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    let driver: DriverHandle = Arc::<SimDevice>::clone(&device);
    let bench = make(Arc::clone(&driver));
    let manager = bench.manager();
    drop(manager.memalloc(8 * MIB).unwrap()); // both blocks are cut from this memory
    let _before = manager.memalloc(MIB).unwrap();
    let memory = manager.memalloc(MIB).unwrap().view(1000..5000).unwrap();
    write(&driver, memory.device_pointer(), &pattern(4000, 1));

    let shared = manager.get_ipc_handle(&memory).unwrap();
    assert_eq!(shared.offset(), MIB + 1000);
    let bytes = shared.to_bytes();
    drop(shared);
    let mut handle = IpcHandle::from_bytes(&bytes).unwrap();
    let opened = handle.open(&driver).unwrap();
    assert_ne!(opened.device_pointer(), memory.device_pointer());
    assert_eq!(read(&driver, opened.device_pointer(), 4000), pattern(4000, 1));
    assert_eq!(handle.open(&driver).unwrap_err().kind(), ErrorKind::InvalidArgument);
    handle.close().unwrap();
    assert!(!opened.is_live() && handle.close().is_err());
    drop(opened);

    // If the handle was left open, the last reference closes it.
    let opened = handle.open(&driver).unwrap();
    drop(handle);
    assert_eq!(read(&driver, opened.device_pointer(), 4000), pattern(4000, 1));
    drop(opened);

    // A handle that claims bytes beyond its allocation is refused, and nothing stays open.
    let good = IpcHandle::from_bytes(&bytes).unwrap();
    let (_, size) = driver.mem_get_address_range(memory.device_pointer()).unwrap();
    for (bytes, offset) in [(4000, size - 3999), (size + 1, 0), (u64::MAX, 1)] {
        let mut forged = IpcHandle::new(None, *good.handle(), bytes, None, offset);
        assert_eq!(forged.open(&driver).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    drop((memory, _before, manager));
    assert_eq!(device.violations(), []);
    assert_eq!(device.live_allocations(), 0);
    assert!(IpcHandle::from_bytes(&bytes).unwrap().open(&driver).is_err(), "the memory is gone");
}

/// A device that cannot access the memory gets a copy in its own manager's memory.
#[test]
fn shared_memory_is_copied_to_another_device_and_the_mapping_ends() {
    SHARING.into_iter().for_each(shared_memory_is_copied);
}

fn shared_memory_is_copied(make: fn(DriverHandle) -> Bench) {
    let machine = SimMachine::new();
    let config = || SimConfig::with_capacity(256 * MIB);
    let first = machine.add_device(config().without_peer_access());
    let second = machine.add_device(config());
    let [driver, other]: [DriverHandle; 2] = [first.clone(), second.clone()];
    let bench = make(Arc::clone(&driver));
    let theirs = make(Arc::clone(&other));
    let (manager, copies) = (bench.manager(), theirs.manager());
    drop(manager.memalloc(8 * MIB).unwrap()); // a pool keeps this memory, and needs no more below
    let memory = manager.memalloc(MIB).unwrap().view(1000..5000).unwrap();
    write(&driver, memory.device_pointer(), &pattern(4000, 1));
    let bytes = manager.get_ipc_handle(&memory).unwrap().to_bytes();
    let open = || IpcHandle::from_bytes(&bytes).unwrap();

    assert!(IpcHandle::can_access_peer(&driver, &driver).unwrap());
    assert!(!IpcHandle::can_access_peer(&driver, &other).unwrap());
    for (to, manager) in [(&other, &copies), (&driver, &manager)] {
        let before = first.live_allocations();
        let mut handle = open();
        let copy = handle.open_staged(&driver, &**manager, to).unwrap();
        assert_eq!((copy.device(), copy.bytes()), (to.device(), 4000));
        assert_eq!(read(to, copy.device_pointer(), 4000), pattern(4000, 1));
        assert!(handle.close().is_err(), "the handle is closed");
        write(to, copy.device_pointer(), &pattern(4000, 2));
        assert_eq!(read(&driver, memory.device_pointer(), 4000), pattern(4000, 1), "the copy is separate");
        drop((copy, handle));
        assert_eq!(first.live_allocations(), before);
    }

    // If the copy fails, nothing stays open.
    let mut handle = IpcHandle::new(None, *open().handle(), 4000, None, 1000);
    second.set_faults(FaultPlan::nth_of(CallKind::Copy, 0, DriverError::NOT_PERMITTED));
    assert!(handle.open_staged(&driver, &*copies, &other).is_err());
    assert!(handle.close().is_err());
    drop((handle, memory, manager, copies, theirs, bench));
    assert_eq!((first.violations(), second.violations()), (vec![], vec![]));
    assert_eq!((first.live_allocations(), second.live_allocations()), (0, 0));
}

/// In `with_stream`, the copy gets a block that the stream may still write to, in the stream's order.
#[test]
fn a_staged_copy_comes_after_the_work_of_the_stream_that_it_is_for() {
    SHARING.into_iter().for_each(a_staged_copy_comes_after);
}

fn a_staged_copy_comes_after(make: fn(DriverHandle) -> Bench) {
    let machine = SimMachine::new();
    let [first, second] = [(); 2].map(|()| machine.add_device(SimConfig::with_capacity(256 * MIB)));
    let [driver, other]: [DriverHandle; 2] = [first.clone(), second.clone()];
    let bench = make(Arc::clone(&driver));
    let theirs = make(Arc::clone(&other));
    let (manager, copies) = (bench.manager(), theirs.manager());
    let memory = manager.memalloc(MIB).unwrap();
    write(&driver, memory.device_pointer(), &pattern(MIB as usize, 1));
    let bytes = manager.get_ipc_handle(&memory).unwrap().to_bytes();
    let stream = other.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    millpond_plugin::with_stream(stream, || {
        let used = copies.memalloc(MIB).unwrap();
        let at = used.device_pointer();
        second.launch_for(stream, &[Access::write(at, MIB, 9)], 1_000_000);
        drop(used);
        let mut handle = IpcHandle::from_bytes(&bytes).unwrap();
        assert!(!other.stream_query(stream).unwrap(), "the work runs");
        let copy = handle.open_staged(&driver, &*copies, &other).unwrap();
        assert_eq!(copy.device_pointer(), at, "the stream's own block");
        assert!(other.stream_query(stream).unwrap(), "the copy came after the work");
        assert_eq!(read(&other, at, MIB as usize), pattern(MIB as usize, 1));
    });
    assert_eq!(second.violations(), []);
}

/// Work on the legacy default stream would end the capture of a blocking stream.
#[test]
fn a_staged_copy_leaves_captures_alone() {
    let flags = [StreamFlags::default(), StreamFlags::NON_BLOCKING];
    for (make, flags) in SHARING.into_iter().flat_map(|make| flags.map(|flags| (make, flags))) {
        let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
        let driver: DriverHandle = device.clone();
        let bench = make(Arc::clone(&driver));
        let manager = bench.manager();
        let memory = manager.memalloc(4000).unwrap();
        write(&driver, memory.device_pointer(), &pattern(4000, 1));
        let bytes = manager.get_ipc_handle(&memory).unwrap().to_bytes();
        let stream = driver.stream_create(flags).unwrap();
        device.begin_capture(stream, CaptureMode::Global).unwrap();
        let mut handle = IpcHandle::from_bytes(&bytes).unwrap();
        let copy = handle.open_staged(&driver, &*manager, &driver).unwrap();
        device.end_capture(stream).expect("the capture went on");
        assert_eq!(read(&driver, copy.device_pointer(), 4000), pattern(4000, 1));
        drop((copy, memory));
        assert_eq!(device.violations(), []);
    }
}

#[test]
fn mapped_memory_is_refused_where_the_device_cannot_map_it() {
    for make in [Bench::cuda, cupy_pool::bench] {
        let driver = HookedDriver::new(SimDevice::new(SimConfig::with_capacity(256 * MIB)));
        let bench = make(driver.clone());
        let mapped = HostAllocFlags::default().mapped(true);
        drop(bench.manager().memhostalloc(4096, mapped).unwrap());
        driver.map_no_host_memory();
        let error = bench.manager().memhostalloc(4096, mapped).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("CAN_MAP_HOST_MEMORY"), "{error}");
        drop(bench.manager().memhostalloc(4096, HostAllocFlags::default()).unwrap());
    }
}

/// Managed memory cannot be shared. The advice fits the manager: only ours has a stack.
#[test]
fn memory_that_cannot_be_shared_says_so() {
    let managed = |driver: DriverHandle| {
        let pool = cupy_pool::StandIn::new(&driver, |driver, bytes| driver.mem_alloc_managed(bytes));
        cupy::bench(driver, pool)
    };
    for (make, has_stack) in
        [(managed as fn(_) -> _, false), (|driver| Bench::stack(driver, "managed"), true)]
    {
        let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
        let bench = make(Arc::<SimDevice>::clone(&device));
        let manager = bench.manager();
        let memory = manager.memalloc(MIB).unwrap();
        let error = manager.get_ipc_handle(&memory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("cuMemAlloc"), "{error}");
        assert_eq!(error.to_string().contains("pages=off"), has_stack, "{error}");
        assert_eq!(error.device(), Some(device.device()));
    }
}
