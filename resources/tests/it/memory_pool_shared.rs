//! Tests driver pools between processes: file descriptors, fabric handles, blocks, and mistakes.

use std::os::fd::AsFd;
use std::sync::{Arc, Barrier};
use std::thread;

use millpond_core::driver::{FabricHandle, HandleTypes, MemPoolProps, MemPoolPtrData};
use millpond_core::{
    DeviceId, DeviceMemoryResourceExt, DevicePtr, Driver, DriverError, ErrorKind, StreamRef,
};
use millpond_driver::CallKind;
use millpond_driver::sim::{Access, FaultPlan, SimConfig, SimDevice};
use millpond_resources::CudaAsyncViewMemoryResource;
use millpond_resources::memory_pool::{ImporterToken, MemoryPool, PoolReuse, handshake};
use millpond_testkit::hooked::HookedDriver;

use crate::memory_pool::{MIB, device, options, pool, put, said, stream, view};

fn exportable(device: &Arc<SimDevice>) -> MemoryPool {
    pool(device, options().handles(HandleTypes::POSIX_FD))
}

/// Imports the pool, as another process does.
fn import(device: &Arc<SimDevice>, pool: &MemoryPool) -> MemoryPool {
    let driver = HookedDriver::in_another_process(device.clone(), DeviceId::sim(9_999));
    let fd = pool.export_fd().unwrap();
    // SAFETY: the tests free imported blocks first.
    unsafe { MemoryPool::import_fd(driver, fd.as_fd()) }.unwrap()
}

#[test]
fn a_block_is_used_in_another_process_and_freed_there_first() {
    let device = device();
    let [s, t] = [(); 2].map(|()| stream(&device));
    let pool = exportable(&device);
    let resource = view(&pool);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    device.launch(s, &[Access::write(ptr, MIB, 7)]);
    device.stream_synchronize(s).unwrap();
    let data = pool.export_pointer(ptr).unwrap();
    let (importers, token) = handshake().unwrap();
    // In the other process:
    let imported = import(&device, &pool);
    assert!(imported.is_imported() && imported.properties().unwrap().handles.is_none());
    let block = imported.import_pointer(&data).unwrap();
    assert_ne!(block.device_pointer(), ptr);
    device.launch(t, &[Access::check(block.device_pointer(), MIB, 7)]);
    block.free_on(t).unwrap();
    device.stream_synchronize(t).unwrap();
    drop(token);
    // And in the first:
    importers.wait().unwrap();
    put(&resource, ptr, MIB, s);
    drop((imported, resource, pool));
    assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0));
    assert_eq!(device.take_violations(), []);
}

/// A pool with both handles gives out each of them; a pool with fabric handles alone shares its blocks, too.
#[test]
fn a_fabric_handle_shares_a_pool() {
    let device = device();
    let s = stream(&device);
    for handles in [HandleTypes::FABRIC, HandleTypes::FABRIC | HandleTypes::POSIX_FD] {
        let pool = pool(&device, options().handles(handles));
        let resource = view(&pool);
        let ptr = resource.allocate_bytes(MIB, s).unwrap();
        device.launch(s, &[Access::write(ptr, MIB, 7)]);
        device.stream_synchronize(s).unwrap();
        let (data, handle) = (pool.export_pointer(ptr).unwrap(), pool.export_fabric().unwrap());
        assert_eq!(pool.export_fd().is_ok(), handles.contains(HandleTypes::POSIX_FD));
        let elsewhere = HookedDriver::in_another_process(device.clone(), DeviceId::sim(9_999));
        // SAFETY: the imported block is freed first.
        let imported = unsafe { MemoryPool::import_fabric(elsewhere, &handle) }.unwrap();
        let block = imported.import_pointer(&data).unwrap();
        device.launch(s, &[Access::check(block.device_pointer(), MIB, 7)]);
        block.free_on(s).unwrap();
        device.stream_synchronize(s).unwrap();
        let (kind, text) = said(imported.export_fabric());
        assert!(kind == ErrorKind::Unsupported && text.contains("an imported pool cannot be exported"));
        put(&resource, ptr, MIB, s);
    }
    assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0));
    assert_eq!(device.take_violations(), []);
}

#[test]
fn a_fabric_handle_that_names_no_pool() {
    let device = device();
    // SAFETY: it is refused.
    let refused = unsafe { MemoryPool::import_fabric(device.clone(), &FabricHandle([7; 64])) };
    let text = "invalid argument on DEVICE: the handle names no pool that this device can reach; pass the 64 \
                bytes that `export_fabric` returned, while the exporter's pool exists: driver error on \
                DEVICE: cuMemPoolImportFromShareableHandle: CUDA_ERROR_INVALID_VALUE (1): the handle does \
                not name a pool of DEVICE";
    assert_eq!(said(refused), (ErrorKind::InvalidArgument, text.to_owned()));
    assert_eq!(device.live_allocations(), 0);
}

/// A machine whose GPUs have fabric handles, but whose user may open no channel of IMEX; and an older GPU.
#[test]
fn fabric_handles_without_a_channel_of_imex() {
    const WHY: &str = "fabric handles need a GPU of compute capability 9.0 or later, and a channel of \
 IMEX that exporter and importer may open; create \
 /dev/nvidia-caps-imex-channels/channel0 as CUDA's documentation of \
 cuMemPoolCreate says, or make the pool with file descriptors alone (handles=fd)";
    let ampere = SimDevice::new(SimConfig::a100());
    let refused = said(MemoryPool::new(ampere.clone(), options().handles(HandleTypes::FABRIC)));
    assert_eq!(refused, (ErrorKind::Unsupported, format!("not supported on DEVICE: {WHY}")));
    let device = device();
    let fabric = options().handles(HandleTypes::FABRIC);
    let handle = pool(&device, fabric).export_fabric().unwrap();
    for (kind, call) in
        [(CallKind::MemPool, "cuMemPoolCreate"), (CallKind::Ipc, "cuMemPoolImportFromShareableHandle")]
    {
        device.set_faults(FaultPlan::nth_of(kind, 0, DriverError::NOT_PERMITTED));
        let refused = match kind {
            // SAFETY: it is refused.
            CallKind::Ipc => unsafe { MemoryPool::import_fabric(device.clone(), &handle) },
            _ => MemoryPool::new(device.clone(), fabric),
        };
        let (kind, text) = said(refused);
        let is_told = text.contains(WHY) && text.contains(call);
        assert!(kind == ErrorKind::Unsupported && is_told, "{text}");
    }
    device.set_faults(FaultPlan::none());
    assert_eq!(device.live_allocations(), 0);
}

/// Without a channel, an H100's driver (580) makes the pool, refuses each export of it, and does not return
/// from a second export.
#[test]
fn a_refused_export_is_not_tried_again() {
    let device = device();
    let s = stream(&device);
    let pool = pool(&device, options().handles(HandleTypes::FABRIC | HandleTypes::POSIX_FD));
    let resource = view(&pool);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    device.set_faults(FaultPlan::nth_of(CallKind::Ipc, 0, DriverError::NOT_PERMITTED));
    let first = said(pool.export_fd());
    device.set_faults(FaultPlan::none());
    let calls = device.driver_calls();
    let (again, fabric) = (said(pool.export_fd()), said(pool.export_fabric()));
    assert_eq!(device.driver_calls(), calls, "the driver is not asked again");
    for (kind, text) in [first, again, fabric] {
        let is_told = text.contains("make the pool with file descriptors alone (handles=fd)");
        assert!(kind == ErrorKind::Unsupported && is_told, "{text}");
    }
    put(&resource, ptr, MIB, s);
}

/// Two threads export at once, and the driver refuses the first. The other must not call the driver.
#[test]
fn a_refused_export_keeps_other_threads_from_the_driver() {
    for _ in 0..100 {
        let device = device();
        let pool = pool(&device, options().handles(HandleTypes::FABRIC | HandleTypes::POSIX_FD));
        device.set_faults(FaultPlan::nth_of(CallKind::Ipc, 0, DriverError::NOT_PERMITTED));
        let begin = Barrier::new(2);
        let export = || {
            begin.wait();
            said(pool.export_fd())
        };
        let answers =
            thread::scope(|scope| [(); 2].map(|()| scope.spawn(export)).map(|it| it.join().unwrap()));
        for (kind, text) in answers {
            assert!(kind == ErrorKind::Unsupported && text.contains("handles=fd"), "{text}");
        }
    }
}

/// The driver does not say which handles another library's pool has.
#[test]
fn a_foreign_pool_with_fabric_handles_alone_exports_its_blocks() {
    let (device, s) = (device(), StreamRef::LEGACY);
    let raw = device.mem_pool_create(MemPoolProps::default().handles(HandleTypes::FABRIC)).unwrap();
    // SAFETY: the pool outlives its value.
    let pool = unsafe { MemoryPool::from_raw(device.clone(), raw) };
    let resource = view(&pool);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    // The driver refuses blocks of a pool that was never exported.
    device.set_faults(FaultPlan::nth_of(CallKind::Ipc, 0, DriverError::INVALID_VALUE));
    pool.export_pointer(ptr).unwrap();
    put(&resource, ptr, MIB, s);
    drop((resource, pool));
    // SAFETY: nothing uses the pool any more.
    unsafe { device.mem_pool_destroy(raw) }.unwrap();
}

#[test]
fn a_dropped_block_is_freed_after_all_work() {
    let device = device();
    let [s, t] = [(); 2].map(|()| stream(&device));
    let pool = exportable(&device);
    let resource = view(&pool);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    device.stream_synchronize(s).unwrap();
    let imported = import(&device, &pool);
    let block = imported.import_pointer(&pool.export_pointer(ptr).unwrap()).unwrap();
    device.launch_for(t, &[Access::read(block.device_pointer(), MIB)], 1_000_000);
    drop(block);
    put(&resource, ptr, MIB, s);
    assert_eq!(device.take_violations(), []);
}

#[test]
fn a_dropped_block_is_freed_where_its_stream_cannot_be_made() {
    let device = device();
    let (pool, s) = (exportable(&device), stream(&device));
    let resource = view(&pool);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    device.stream_synchronize(s).unwrap();
    let block = import(&device, &pool).import_pointer(&pool.export_pointer(ptr).unwrap()).unwrap();
    device.set_faults(FaultPlan::nth_of(CallKind::StreamCreate, 0, DriverError::OUT_OF_MEMORY));
    drop(block);
    put(&resource, ptr, MIB, s);
    assert_eq!(device.take_violations(), [], "it was freed before the exporter's");
}

#[test]
fn an_exporter_waits_for_every_copy_of_the_token() {
    let (importers, token) = handshake().unwrap();
    let copy = ImporterToken::from(token.as_fd().try_clone_to_owned().unwrap());
    let waiting = std::thread::spawn(move || importers.wait());
    drop(token);
    assert!(!waiting.is_finished());
    drop(copy);
    waiting.join().unwrap().unwrap();
}

#[test]
fn what_an_imported_pool_cannot_do_is_said_before_the_driver_is_asked() {
    let device = device();
    let pool = exportable(&device);
    let imported = import(&device, &pool);
    let calls = device.driver_calls();
    for (what, answer) in [
        ("allocate", CudaAsyncViewMemoryResource::new(imported.clone()).map(drop)),
        ("count its memory", imported.used_bytes().map(drop)),
        ("count its memory", imported.reset_used_high()),
        ("count its memory", imported.reset_reserved_high()),
        ("have a release threshold", imported.set_release_threshold(0)),
        ("have a release threshold", imported.release_threshold().map(drop)),
        ("be trimmed", imported.trim(0).map(drop)),
        ("be a device's current pool", imported.set_current()),
        ("hand out freed memory", imported.set_reuse(PoolReuse::ALL)),
        ("hand out freed memory", imported.reuse().map(drop)),
        ("be exported", imported.export_pointer(DevicePtr::new(256)).map(drop)),
    ] {
        let text = format!(
            "not supported on DEVICE: an imported pool cannot {what}; do this in the process that made \
             the pool"
        );
        assert_eq!(said(answer), (ErrorKind::Unsupported, text));
    }
    assert_eq!(device.driver_calls(), calls);
}

#[test]
fn export_from_a_pool_without_handles() {
    let pool = pool(&device(), options());
    for (answer, why) in [
        (pool.export_fd().map(drop), "file descriptors; make it with handles=fd"),
        (pool.export_fabric().map(drop), "fabric handles; make it with handles=fabric"),
        (
            pool.export_pointer(DevicePtr::new(256)).map(drop),
            "handles for other processes; make it with handles=fd or handles=fabric",
        ),
    ] {
        let text = format!("invalid argument on DEVICE: the pool was made without {why}");
        assert_eq!(said(answer), (ErrorKind::InvalidArgument, text));
    }
}

#[test]
fn import_of_a_descriptor_that_is_no_pools() {
    let device = device();
    let file = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: it is refused.
    let refused = unsafe { MemoryPool::import_fd(device.clone(), file.as_fd()) };
    let (kind, text) = said(refused);
    assert_eq!(kind, ErrorKind::InvalidArgument);
    let start = "invalid argument on DEVICE: the descriptor names no pool of this device; pass a \
                 descriptor that `export_fd` returned: ";
    assert!(text.starts_with(start), "{text}");
    assert_eq!(device.live_allocations(), 0);
}

#[test]
fn export_of_a_pointer_of_another_pool() {
    let device = device();
    let (pool, other, s) = (exportable(&device), exportable(&device), stream(&device));
    let resource = view(&other);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    for wrong in [ptr, DevicePtr::new(4096), ptr.offset(1 << 40)] {
        let text = format!(
            "invalid argument on DEVICE: {wrong} is in no block of this pool; export the block from the \
             pool that allocated it"
        );
        assert_eq!(said(pool.export_pointer(wrong)), (ErrorKind::InvalidArgument, text));
    }
    let inside = other.export_pointer(ptr.offset(256)).unwrap_err();
    assert!(inside.to_string().contains("pass its first byte"), "{inside}");
    put(&resource, ptr, MIB, s);
}

#[test]
fn import_of_a_pointer_that_the_pool_does_not_have() {
    let device = device();
    let (pool, other, s) = (exportable(&device), exportable(&device), stream(&device));
    let imported = import(&device, &pool);
    let resources = [&pool, &other].map(view);
    let [own, strange] = [0, 1].map(|at: usize| resources[at].allocate_bytes(MIB, s).unwrap());
    let (data, strange_data) = (pool.export_pointer(own).unwrap(), other.export_pointer(strange).unwrap());
    let text = "invalid argument on DEVICE: this process made the pool; import blocks into a pool that \
                this process imported";
    assert_eq!(said(pool.import_pointer(&data)), (ErrorKind::InvalidArgument, text.to_owned()));
    put(&resources[0], own, MIB, s);
    put(&resources[1], strange, MIB, s);
    for wrong in [strange_data, data, MemPoolPtrData([0xa5; 64])] {
        let (kind, text) = said(imported.import_pointer(&wrong));
        let start = "invalid argument on DEVICE: the data describes no live block of the imported pool";
        assert!(kind == ErrorKind::InvalidArgument && text.starts_with(start), "{text}");
    }
}
