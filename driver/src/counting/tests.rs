//! Tests the counts of calls and of bytes.

use std::sync::Arc;

use millpond_core::driver::{DriverError, MemPoolProps, PhysicalProps};

use super::*;
use crate::sim::{SimConfig, SimDevice, SimMachine};

const MIB: u64 = 1 << 20;

fn counting() -> (Arc<SimDevice>, Arc<CountingDriver>) {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    (Arc::clone(&device), CountingDriver::new(device))
}

#[test]
fn calls_and_failures_are_counted_by_kind() {
    let (device, driver) = counting();
    let ptr = driver.mem_alloc(MIB).unwrap();
    assert!(driver.mem_alloc(1 << 40).unwrap_err().is_out_of_memory());
    // SAFETY: the pointer came from this driver and is not used again.
    unsafe { driver.mem_free(ptr) }.unwrap();
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let event = driver.event_create(EventFlags::default()).unwrap();
    driver.event_record(event, stream).unwrap();
    driver.stream_wait_event(StreamRef::LEGACY, event).unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!(driver.event_query(event), Ok(true));

    let counts = driver.counts();
    let calls = |kind| (counts.get(kind).calls, counts.get(kind).failures);
    assert_eq!(calls(CallKind::MemAlloc), (2, 1));
    for kind in [
        CallKind::MemFree,
        CallKind::StreamCreate,
        CallKind::EventCreate,
        CallKind::EventRecord,
        CallKind::StreamWaitEvent,
        CallKind::StreamSynchronize,
        CallKind::EventQuery,
    ] {
        assert_eq!(calls(kind), (1, 0), "{kind}");
    }
    assert_eq!(counts.total_calls(), 9);
    assert_eq!(counts.iter().count(), 8);
    assert_eq!(driver.virtual_time_ns(), Some(device.virtual_time_ns()));
    assert_eq!((driver.device(), driver.name()), (device.device(), device.name()));
}

#[test]
fn a_record_that_was_not_made_is_no_call() {
    let (_device, driver) = counting();
    let event = driver.event_create(EventFlags::default()).unwrap();
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    assert_eq!(driver.event_record_if_alive(event, stream), Ok(true));
    // SAFETY: the stream came from this driver; the calls below accept a dead stream.
    unsafe { driver.stream_destroy(stream) }.unwrap();
    assert_eq!(driver.event_record_if_alive(event, stream), Ok(false));
    assert_eq!(driver.counts().get(CallKind::EventRecord).calls, 1);
    // SAFETY: the default stream is always alive.
    assert_eq!(unsafe { driver.stream_ref(0) }, Ok(StreamRef::LEGACY));
    assert_eq!(driver.counts().get(CallKind::StreamGetId).calls, 0);
}

#[test]
fn bytes_of_every_way_to_take_them_are_followed() {
    let (_device, driver) = counting();
    let stream = StreamRef::LEGACY;
    let page = driver.mem_get_allocation_granularity().unwrap();
    let pool = driver.mem_pool_create(MemPoolProps::default()).unwrap();
    let plain = driver.mem_alloc(MIB).unwrap();
    let managed = driver.mem_alloc_managed(2 * MIB).unwrap();
    let ordered = driver.mem_alloc_async(4 * MIB, stream).unwrap();
    let pooled = driver.mem_alloc_from_pool_async(8 * MIB, pool, stream).unwrap();
    let handle = driver.mem_create(page, PhysicalProps::default()).unwrap();
    let all = 16 * MIB + page; // the plain block takes one page
    assert_eq!(driver.bytes_taken(), all);
    // SAFETY: all of these came from this driver and are not used again.
    unsafe {
        driver.mem_free(plain).unwrap();
        driver.mem_free(managed).unwrap();
        driver.mem_free_async(ordered, stream).unwrap();
        driver.mem_free_async(pooled, stream).unwrap();
        driver.mem_release(handle).unwrap();
    }
    assert_eq!((driver.bytes_taken(), driver.peak_bytes_taken()), (0, all));
    driver.reset();
    assert_eq!((driver.counts(), driver.peak_bytes_taken()), (CallCounts::default(), 0));
}

#[test]
fn a_refused_free_leaves_the_bytes_taken() {
    let (_device, driver) = counting();
    let ptr = driver.mem_alloc(MIB).unwrap();
    // SAFETY: the address points inside a block, so the driver refuses it.
    let refused = unsafe { driver.mem_free(ptr.offset(256)) };
    assert_eq!(refused.unwrap_err().code(), DriverError::INVALID_VALUE);
    assert_eq!(driver.bytes_taken(), 2 * MIB);
}

#[test]
fn bytes_are_followed_across_threads() {
    let (_device, driver) = counting();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let ptr = driver.mem_alloc(MIB).unwrap();
                    // SAFETY: the pointer came from this driver and is not used again.
                    unsafe { driver.mem_free(ptr) }.unwrap();
                }
            });
        }
    });
    assert_eq!(driver.bytes_taken(), 0);
    assert!((MIB..=4 * MIB).contains(&driver.peak_bytes_taken()), "{}", driver.peak_bytes_taken());
    assert_eq!(driver.counts().total_calls(), 1600);
}

#[test]
fn the_difference_of_two_counts_is_what_lies_between() {
    let (_device, driver) = counting();
    driver.mem_get_info().unwrap();
    let before = driver.counts();
    driver.mem_get_info().unwrap();
    driver.synchronize().unwrap();
    let between = driver.counts().since(&before);
    let calls: Vec<_> = between.iter().map(|(kind, counts)| (kind, counts.calls)).collect();
    assert_eq!(calls, [(CallKind::MemGetInfo, 1), (CallKind::Synchronize, 1)]);
    assert_eq!(between.total_wall_ns(), driver.counts().total_wall_ns() - before.total_wall_ns());
}

#[cfg(feature = "serde")]
#[test]
fn serde_writes_the_kinds_that_occurred_by_name() {
    let (_device, driver) = counting();
    driver.mem_get_info().unwrap();
    let json = serde_json::to_value(driver.counts()).unwrap();
    let entries = json.as_object().unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries["mem_get_info"]["calls"], 1);
    assert_eq!(entries["mem_get_info"]["failures"], 0);
    assert!(entries["mem_get_info"]["wall_ns"].is_u64());
}

#[test]
fn every_kind_has_its_own_name_and_place() {
    for (place, kind) in CallKind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, place);
        #[cfg(feature = "serde")]
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.to_string());
        assert_eq!(CallKind::ALL.into_iter().filter(|other| other.name() == kind.name()).count(), 1);
    }
}

#[test]
fn a_pool_of_the_driver_counts_with_what_it_holds() {
    let (device, driver) = counting();
    let pool = driver.mem_pool_create(MemPoolProps::default()).unwrap();
    assert_eq!((driver.bytes_held(), driver.peak_bytes_held()), (0, 0));
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let ptr = driver.mem_alloc_from_pool_async(MIB, pool, stream).unwrap();
    let held = device.mem_pool_get_attribute(pool, MemPoolAttribute::ReservedMemCurrent).unwrap();
    assert!(held > MIB, "a pool takes more than its users asked for: {held}");
    assert_eq!((driver.bytes_taken(), driver.bytes_held(), driver.peak_bytes_held()), (MIB, held, held));
    // SAFETY: the pointer came from this driver and is not used again.
    unsafe { driver.mem_free_async(ptr, stream) }.unwrap();
    driver.stream_synchronize(stream).unwrap();
    driver.mem_pool_trim_to(pool, 0).unwrap();
    assert_eq!((driver.bytes_held(), driver.peak_bytes_held()), (0, held));
    // SAFETY: the pool came from this driver and is not used again.
    unsafe { driver.mem_pool_destroy(pool) }.unwrap();
    assert_eq!(driver.peak_bytes_held(), held);
    driver.reset_peak();
    assert_eq!(driver.peak_bytes_held(), 0);
}

/// Allocations that name no pool come from the device's current pool, which may change.
#[test]
fn the_current_pool_counts_after_a_named_one_and_when_it_changes() {
    let (_device, driver) = counting();
    let [named, other] = [(); 2].map(|()| driver.mem_pool_create(MemPoolProps::default()).unwrap());
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    driver.mem_alloc_from_pool_async(MIB, named, stream).unwrap();
    let one = driver.bytes_held();
    driver.mem_alloc_async(MIB, stream).unwrap();
    assert_eq!(driver.bytes_held(), 2 * one, "the current pool has the same size of segments");
    driver.device_set_mem_pool(other).unwrap();
    driver.mem_alloc_async(MIB, stream).unwrap();
    assert_eq!(driver.bytes_held(), 3 * one);
}

#[test]
fn answers_are_those_of_the_wrapped_driver() {
    let machine = SimMachine::new();
    let [device, peer] = [(); 2].map(|()| machine.add_device(SimConfig::with_capacity(256 * MIB)));
    let driver = CountingDriver::new(Arc::<SimDevice>::clone(&device));
    let attribute = DeviceAttribute::MultiprocessorCount;
    assert!(driver.attribute(attribute).unwrap() > 1);
    assert_eq!(driver.attribute(attribute), device.attribute(attribute));
    assert_eq!(driver.version(), device.version());
    let unknown = DeviceId::sim(999);
    assert_eq!([peer.device(), unknown].map(|it| driver.can_be_accessed_by(it)), [Ok(true), Ok(false)]);
    assert_eq!(driver.active_peers(), device.active_peers());
    assert_eq!(driver.mem_get_info(), device.mem_get_info());
    assert_eq!(driver.host_memory_info(), device.host_memory_info());
    assert_eq!(driver.mem_get_allocation_granularity(), device.mem_get_allocation_granularity());

    let host = driver.mem_host_alloc(MIB, HostFlags::default()).unwrap();
    let on_device = driver.mem_host_get_device_pointer(host).unwrap();
    assert_eq!(Ok(on_device), device.mem_host_get_device_pointer(host));
    assert_ne!(on_device, DevicePtr::NULL);
    assert_eq!(driver.pointer_kind(on_device), device.pointer_kind(on_device));
    // SAFETY: the memory came from this driver and is not used again.
    unsafe { driver.mem_free_host(host) }.unwrap();

    let (place, kind) = (MemLocation::Device, MemAllocationType::Pinned);
    let pool = driver.mem_pool_create(MemPoolProps::default()).unwrap();
    let default = driver.mem_get_default_mem_pool(place, kind).unwrap();
    assert_eq!((driver.mem_get_mem_pool(place, kind), default == pool), (Ok(default), false));
    driver.mem_set_mem_pool(place, kind, pool).unwrap();
    assert_eq!(device.mem_get_mem_pool(place, kind), Ok(pool));
    driver.device_set_mem_pool(default).unwrap();
    assert_eq!(driver.device_get_mem_pool(), Ok(default));
    // SAFETY: the pool came from this driver and is not used again.
    unsafe { driver.mem_pool_destroy(pool) }.unwrap();
    assert!(driver.mem_pool_trim_to(pool, 0).is_err());
}
