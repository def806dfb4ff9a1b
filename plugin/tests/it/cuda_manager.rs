//! Tests when the default manager runs pending deallocations.

use std::sync::Arc;

use millpond_core::driver::HostPtr;
use millpond_core::{Driver, DriverError, DriverHandle, ErrorKind};
use millpond_driver::CallKind;
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};
use millpond_plugin::{CudaMemoryManager, DeferredOptions, HostAllocFlags, MemoryManager, MemoryPointer};

use crate::common::MIB;

const CAPACITY: u64 = 100 * MIB;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(CAPACITY))
}

fn manager(device: &Arc<SimDevice>, options: DeferredOptions) -> CudaMemoryManager {
    let manager =
        CudaMemoryManager::with_options(Some(Arc::<SimDevice>::clone(device) as DriverHandle), options);
    manager.initialize().unwrap();
    manager
}

/// Keeps all deallocations pending until memory is short.
fn hoard() -> DeferredOptions {
    DeferredOptions::default().max_count(usize::MAX).max_ratio(1.0)
}

#[test]
fn ten_wait_and_the_eleventh_frees_them_all() {
    let device = device();
    let manager = manager(&device, DeferredOptions::default());
    for waiting in 1..=10 {
        drop(manager.memalloc(64).unwrap());
        assert_eq!((manager.pending(), device.live_allocations()), (waiting, waiting));
    }
    drop(manager.memalloc(64).unwrap());
    assert_eq!((manager.pending(), device.live_allocations()), (0, 0));
}

#[test]
fn a_fifth_of_the_memory_waits_and_one_byte_more_frees_all() {
    let device = device();
    let manager = manager(&device, DeferredOptions::default());
    drop(manager.memalloc(10 * MIB).unwrap());
    drop(manager.memalloc(10 * MIB).unwrap());
    assert_eq!(manager.pending(), 2);
    drop(manager.memalloc(1).unwrap());
    assert_eq!((manager.pending(), device.live_allocations()), (0, 0));
}

#[test]
fn mapped_memory_counts_by_size_and_pinned_memory_by_number() {
    let device = device();
    let manager = manager(&device, DeferredOptions::default());
    let pinned = HostAllocFlags::default();
    let mapped = pinned.mapped(true);
    drop(manager.memhostalloc(21 * MIB, pinned).unwrap());
    assert_eq!(manager.pending(), 1);
    drop(manager.memhostalloc(21 * MIB, mapped).unwrap());
    assert_eq!(manager.pending(), 0);
}

#[test]
fn when_memory_is_short_what_waits_is_freed_and_the_call_tried_again() {
    let device = device();
    let manager = manager(&device, hoard());
    for _ in 0..3 {
        drop(manager.memalloc(30 * MIB).unwrap());
    }
    assert_eq!(manager.pending(), 3);
    let memory = manager.memalloc(90 * MIB).unwrap();
    assert_eq!((manager.pending(), device.live_allocations()), (0, 1));
    let error = manager.memalloc(20 * MIB).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(error.requested_bytes(), Some(20 * MIB));
    assert_eq!(error.device(), Some(device.device()));
    drop(memory);
}

#[test]
fn a_deferral_holds_even_when_memory_is_short() {
    let device = device();
    let manager = manager(&device, hoard());
    let guard = manager.defer_cleanup();
    drop(manager.memalloc(80 * MIB).unwrap());
    assert!(manager.memalloc(80 * MIB).unwrap_err().is_out_of_memory());
    assert_eq!(manager.flush(), 0);
    drop(guard);
    assert!(manager.memalloc(80 * MIB).unwrap().is_live());
}

#[test]
fn other_errors_are_not_tried_again() {
    let device = device();
    let manager = manager(&device, hoard());
    drop(manager.memalloc(64).unwrap());
    device.set_faults(FaultPlan::nth_of(CallKind::MemAlloc, 0, DriverError::INVALID_VALUE));
    let error = manager.memalloc(64).unwrap_err();
    assert_eq!(error.driver_error().map(DriverError::code), Some(DriverError::INVALID_VALUE));
    assert_eq!(manager.pending(), 1);
}

#[test]
fn before_initialize_nothing_waits() {
    let device = device();
    let manager = CudaMemoryManager::new(Some(Arc::<SimDevice>::clone(&device)));
    drop(manager.memalloc(64).unwrap());
    assert_eq!((manager.pending(), device.live_allocations()), (0, 0));
}

#[test]
fn late_finalizers_bear_a_device_that_is_lost() {
    let device = device();
    let manager = manager(&device, DeferredOptions::default());
    let pointers: Vec<MemoryPointer> = (0..20).map(|_| manager.memalloc(64).unwrap()).collect();
    let host = manager.memhostalloc(64, HostAllocFlags::default()).unwrap();
    device.set_faults(FaultPlan::nth_call(0, DriverError::DEINITIALIZED).persistent());
    drop((pointers, host));
    assert_eq!(manager.memalloc(64).unwrap_err().kind(), ErrorKind::Poisoned);
    manager.reset();
    assert_eq!(manager.pending(), 0);
}

#[test]
fn a_device_that_is_lost_is_called_no_more() {
    let device = device();
    let manager = manager(&device, hoard());
    let mapped = HostAllocFlags::default().mapped(true);
    let pages = vec![0_u8; 8192];
    let ptr = HostPtr(pages.as_ptr().expose_provenance());
    // SAFETY: `pages` outlives the pin.
    let pin = unsafe { manager.mempin(Box::new(()), ptr, 8192, false) }.unwrap();
    let host = manager.memhostalloc(64, mapped).unwrap();
    let memory = manager.memalloc(64).unwrap();
    drop(manager.memalloc(64).unwrap());
    device.set_faults(FaultPlan::nth_call(0, DriverError::ILLEGAL_ADDRESS));
    assert!(manager.memalloc(64).unwrap_err().is_sticky());
    assert!(device.health().is_lost(), "the error was noted");
    let calls = device.driver_calls();

    let errors = [
        manager.memalloc(64).unwrap_err(),
        manager.memhostalloc(64, mapped).unwrap_err(),
        manager.memallocmanaged(64, true).unwrap_err(),
        manager.memallocmanaged(64, false).unwrap_err(),
        manager.get_memory_info().unwrap_err(),
        manager.get_ipc_handle(&memory).unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.kind(), error.device()), (ErrorKind::Poisoned, Some(device.device())), "{error}");
    }
    drop((pin, host, memory));
    manager.flush();
    manager.reset();
    drop(manager);
    assert_eq!(device.driver_calls(), calls);
}

#[test]
fn host_memory_that_cannot_be_mapped_is_ended() {
    let device = device();
    let manager = manager(&device, DeferredOptions::default());
    let mapped = HostAllocFlags::default().mapped(true);
    let fail = || device.set_faults(FaultPlan::nth_of(CallKind::PointerQuery, 0, DriverError::INVALID_VALUE));

    fail();
    assert!(manager.memhostalloc(4096, mapped).is_err());

    let pages = vec![0_u8; 8192];
    let ptr = HostPtr(pages.as_ptr().expose_provenance());
    fail();
    // SAFETY: `pages` outlives the pins.
    assert!(unsafe { manager.mempin(Box::new(()), ptr, 8192, true) }.is_err());
    // SAFETY: as above.
    let pinned = unsafe { manager.mempin(Box::new(()), ptr, 8192, true) };
    assert!(pinned.is_ok(), "the failed pin was lifted");
    drop(pinned);
    assert_eq!(device.violations(), []);
}
