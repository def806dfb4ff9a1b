//! Tests collections of both crates in managed memory of a simulated device.

use std::sync::Arc;

use allocator_api2::alloc::{AllocError, Allocator};
use allocator_api2::boxed::Box;
use hashbrown::TryReserveError;
use millpond::driver::MemoryKind;
use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::{DevicePtr, Driver, DriverHandle, ErrorKind};
use millpond_allocator_api2::{Map, Vector, allocator};

const STACKS: [&str; 3] = ["managed", "managed+pool", "managed+arena"];

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

/// Calls the test with each stack. All memory must be free after it.
fn each_stack(test: impl Fn(&SimDevice, millpond::containers::HostAllocator)) {
    for stack in STACKS {
        let device = device();
        test(&device, allocator(stack, &(device.clone() as DriverHandle)).unwrap());
        assert_eq!((device.live_allocations(), device.violations()), (0, vec![]), "{stack}");
    }
}

fn kind<T>(device: &SimDevice, at: *const T) -> MemoryKind {
    device.pointer_kind(DevicePtr::new(at.addr() as u64)).unwrap()
}

#[test]
fn a_map_grows_and_shrinks_in_managed_memory() {
    each_stack(|device, memory| {
        let mut map: Map<u64, u64> = Map::with_hasher_in(Default::default(), memory);
        assert_eq!(map.allocation_size(), 0);
        map.extend((0..10_000).map(|key| (key, key * key)));
        let grown = map.allocation_size();
        assert_eq!(kind(device, &raw const map[&17]), MemoryKind::Managed);
        map.retain(|key, _| *key < 10);
        map.shrink_to_fit();
        assert!(map.allocation_size() < grown / 100, "{} of {grown}", map.allocation_size());
        assert_eq!(map.values().sum::<u64>(), 285);
        assert_eq!(kind(device, &raw const map[&9]), MemoryKind::Managed);
        map.clear();
        map.shrink_to_fit();
        assert_eq!(map.allocation_size(), 0);
    });
}

#[test]
fn a_vector_grows_and_shrinks_in_managed_memory() {
    each_stack(|device, memory| {
        let mut vector = Vector::new_in(memory);
        vector.extend(0..100_000_u32);
        assert_eq!(kind(device, vector.as_ptr()), MemoryKind::Managed);
        vector.truncate(100);
        vector.shrink_to_fit();
        assert_eq!((vector.capacity(), vector.iter().sum::<u32>()), (100, 4950));
        vector.clear();
        vector.shrink_to_fit();
        assert_eq!(vector.capacity(), 0);
    });
}

/// The block that is zeroed was used before.
#[test]
fn zeroed_memory_is_zero() {
    each_stack(|_, memory| {
        drop(Box::new_in([0xAA_u8; 4096], memory.clone()));
        // SAFETY: zeros are valid bytes.
        let zeros = unsafe { Box::<[u8; 4096], _>::new_zeroed_in(memory).assume_init() };
        assert_eq!(*zeros, [0; 4096]);
    });
}

#[test]
fn values_without_a_size_take_no_memory() {
    each_stack(|device, memory| {
        let before = device.driver_calls();
        let mut nothing = Vector::new_in(memory.clone());
        nothing.extend([(); 1000]);
        let boxed = Box::new_in((), memory);
        assert_eq!((nothing.len(), *boxed), (1000, ()));
        assert_eq!(device.driver_calls(), before);
    });
}

#[test]
fn values_are_aligned() {
    #[repr(align(4096))]
    struct Page([u8; 4096]);

    each_stack(|_, memory| {
        let mut pages = Vector::new_in(memory.clone());
        for byte in 0..20 {
            pages.push(Page([byte; 4096]));
            let _odd = Box::new_in(byte, memory.clone());
            assert_eq!(pages.as_ptr().addr() % 4096, 0);
        }
        assert!(pages.iter().zip(0..).all(|(page, byte)| page.0 == [byte; 4096]));
    });
}

#[test]
fn out_of_memory_is_an_error() {
    const BYTES: usize = 1 << 40;
    each_stack(|_, memory| {
        let mut vector = Vector::<u8>::new_in(memory.clone());
        vector.push(7);
        assert!(vector.try_reserve(BYTES).is_err());
        let mut map: Map<u64, u64> = Map::with_hasher_in(Default::default(), memory.clone());
        map.insert(1, 2);
        let refused = map.try_reserve(BYTES / 16);
        assert!(matches!(refused, Err(TryReserveError::AllocError { .. })), "{refused:?}");
        let layout = std::alloc::Layout::from_size_align(BYTES, 8).unwrap();
        assert_eq!(memory.allocate(layout), Err(AllocError));
        assert!(Box::<[u8; BYTES], _>::try_new_uninit_in(memory).is_err());
        assert_eq!((vector[..].to_vec(), map[&1]), (vec![7], 2));
    });
}

#[test]
fn collections_keep_their_stack() {
    each_stack(|device, memory| {
        let mut vector = Vector::new_in(memory.clone());
        vector.push(1_u32);
        let mut map: Map<u32, u32> = Map::with_hasher_in(Default::default(), memory);
        map.insert(1, 2);
        assert!(device.live_allocations() > 0);
        vector.extend(0..10_000);
        map.extend((0..10_000).map(|key| (key, key)));
        assert_eq!((vector[0], map[&9999]), (1, 9999));
    });
}

#[test]
fn memory_that_the_host_cannot_access_is_refused() {
    let device: DriverHandle = device();
    let error = allocator("cuda+pool", &device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}
