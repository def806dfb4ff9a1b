//! Tests the fallback: which resource serves which request, and that each block goes back to its own.

use std::sync::Arc;

use millpond_core::misuse::{Misuse, MisuseKind};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    Accessibility, AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle,
    ErrorKind, Layout, MemoryInfo, ResourceStatistics, Result, StreamRef, downcast,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{CudaMemoryResource, ManagedMemoryResource};
use millpond_testkit::misuse_recorder::record;
use millpond_testkit::mock::{self, Call, MockResource};

use super::{FallbackLayer, FallbackResourceAdaptor};
use crate::LimitingLayer;

const S: StreamRef = StreamRef::LEGACY;
const MIB: u64 = 1 << 20;

type Both = FallbackResourceAdaptor<MockResource, MockResource>;

/// Returns an adaptor over two mocks with separate addresses, and the handles of both.
fn adaptor() -> (Both, mock::Handle, mock::Handle) {
    let device = SimDevice::new(SimConfig::h200());
    let (upstream, first) = mock::resource(device.clone());
    let (fallback, second) = mock::resource(device);
    (FallbackResourceAdaptor::new(upstream, fallback).unwrap(), first, second)
}

fn free(resource: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64) -> Vec<Misuse> {
    // SAFETY: the addresses of mocks have no memory behind them, and no work uses other blocks of the tests.
    record(|| unsafe { resource.deallocate_bytes(ptr, bytes, S) }).1
}

#[test]
fn blocks_go_back_to_where_they_came_from() {
    let (resource, first, second) = adaptor();
    let layout = Layout::new(100);
    let own = resource.allocate(layout, S).unwrap();
    first.fail_next(ErrorKind::OutOfMemory);
    second.answer_next(DevicePtr::new(0x9000));
    let other = resource.allocate(layout, S).unwrap();
    assert_eq!((other, resource.fallback_blocks()), (DevicePtr::new(0x9000), 1));
    let third = resource.allocate(layout, S).unwrap();
    for ptr in [other, own, third] {
        assert_eq!(free(&resource, ptr, 100), []);
    }
    let (asked, back) = (Call::allocate(layout, S), |ptr| Call::deallocate(ptr, layout, S));
    first.assert_calls([asked, asked, asked, back(own), back(third)]);
    second.assert_calls([asked, back(other)]);
    assert_eq!(resource.fallback_blocks(), 0);
}

/// The address belongs to the fallback at one time, and to the upstream at another.
#[test]
fn an_address_may_come_from_the_other_one_later() {
    let (resource, first, second) = adaptor();
    let ptr = DevicePtr::new(0x9000);
    first.fail_next(ErrorKind::OutOfMemory);
    second.answer_next(ptr);
    first.answer_next(ptr);
    assert_eq!(resource.allocate_bytes(100, S).unwrap(), ptr);
    free(&resource, ptr, 100);
    assert_eq!(resource.allocate_bytes(200, S).unwrap(), ptr);
    free(&resource, ptr, 200);
    assert_eq!((first.live(), second.live()), (vec![], vec![]));
    assert_eq!((first.calls().len(), second.calls().len()), (3, 2));
}

/// One of the two may hold free memory that the other lacks.
#[test]
fn both_give_way_to_each_other() {
    let table =
        LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied());
    for (text, small, large) in [
        ("cuda+pool:max=20MiB+fallback:to=(cuda)", 2 * MIB, 30 * MIB),
        ("cuda+pool:max=20MiB,pages=off+fallback:to=(cuda)", 2 * MIB, 30 * MIB),
        (
            "cuda+limiting:limit=10MiB+fallback:to=(cuda+pool:pages=off,max=24MiB+fallback:to=(cuda))",
            12 * MIB,
            30 * MIB,
        ),
    ] {
        let driver: DriverHandle = SimDevice::new(SimConfig::with_capacity(32 * MIB));
        let stack = text.parse::<StackSpec>().unwrap().build(&table, &driver).unwrap();
        let held: Vec<_> = std::iter::from_fn(|| stack.allocate_bytes(small, S).ok()).collect();
        assert!(stack.allocate_bytes(large, S).unwrap_err().is_out_of_memory(), "{text}");
        for ptr in held {
            // SAFETY: the block came from the stack with this size, once; nothing uses it.
            unsafe { stack.deallocate_bytes(ptr, small, S) };
        }
        assert!(stack.allocate_bytes(large, S).is_ok(), "{text}");
    }
}

#[test]
fn only_a_lack_of_memory_falls_back() {
    let (resource, first, second) = adaptor();
    for kind in [ErrorKind::InvalidArgument, ErrorKind::Driver, ErrorKind::Poisoned, ErrorKind::Unsupported] {
        first.fail_next(kind);
        assert_eq!(resource.allocate_bytes(100, S).unwrap_err().kind(), kind);
    }
    second.assert_calls([]);
    for (kind, expected) in [
        (ErrorKind::OutOfMemory, ErrorKind::OutOfMemory),
        (ErrorKind::InvalidArgument, ErrorKind::OutOfMemory),
        (ErrorKind::Unsupported, ErrorKind::OutOfMemory),
        (ErrorKind::Poisoned, ErrorKind::Poisoned),
    ] {
        first.fail_next(ErrorKind::OutOfMemory);
        second.fail_next(kind);
        let error = resource.allocate_bytes(100, S).unwrap_err();
        assert_eq!(error.kind(), expected, "{error}");
        if expected == ErrorKind::OutOfMemory {
            assert_eq!(
                error.message(),
                "the fallback `mock` cannot serve the request either: scripted by a test"
            );
        }
    }
    assert_eq!(resource.fallback_blocks(), 0);
}

#[test]
fn a_wrong_size_for_a_block_of_the_fallback_is_refused() {
    let (resource, first, second) = adaptor();
    first.fail_next(ErrorKind::OutOfMemory);
    second.answer_next(DevicePtr::new(0x9000));
    let ptr = resource.allocate_bytes(100, S).unwrap();
    let reports = free(&resource, ptr, 101);
    let kind = MisuseKind::WrongSize { allocated_bytes: 100 };
    let expected = Misuse::new(kind, ptr, 101, S, "mock+fallback:to=(mock)");
    assert_eq!(reports, [expected]);
    assert_eq!(
        reports[0].to_string(),
        "refused to deallocate 0x9000 (101 bytes, stream 0) in `mock+fallback:to=(mock)`: the block was \
         allocated with 100 bytes; pass the same layout to both calls"
    );
    assert_eq!(resource.statistics().unwrap().misuses, 1);
    assert_eq!((resource.fallback_blocks(), second.live().len()), (1, 1), "the block is still live");
    assert_eq!(free(&resource, ptr, 100), []);
    assert_eq!((first.live(), second.live()), (vec![], vec![]));
}

#[test]
fn both_are_counted() {
    let (resource, first, second) = adaptor();
    let total = 100 * MIB;
    assert_eq!(resource.statistics(), None);
    let known = ResourceStatistics::default().bytes_in_use(5).bytes_reserved(25).misuses(1);
    second.set_statistics(Some(known));
    assert_eq!(resource.statistics(), Some(known));
    first.set_statistics(Some(known));
    let sum = resource.statistics().unwrap();
    assert_eq!((sum.bytes_in_use, sum.bytes_reserved, sum.misuses), (10, 50, 2));
    first.set_memory_info(MemoryInfo { free: 10 * MIB, total });
    second.set_memory_info(MemoryInfo { free: 3 * MIB, total });
    // Both may count the same free memory.
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 10 * MIB, total });
    second.set_memory_info(MemoryInfo { free: 3 * MIB, total: 7 * MIB });
    let apart = MemoryInfo { free: 13 * MIB, total: 107 * MIB };
    assert_eq!(resource.memory_info().unwrap(), apart, "memory of another kind");
    first.take_calls();
    second.take_calls();
    first.set_trimmed_bytes(7);
    second.set_trimmed_bytes(70);
    assert_eq!(resource.trim(100).unwrap(), 77);
    first.assert_calls([Call::Trim { keep_bytes: 100 }, Call::Statistics]);
    second.assert_calls([Call::Trim { keep_bytes: 80 }]);
}

#[test]
fn memory_that_pools_hold_is_counted_beside_what_the_device_has() {
    let resource = build("cuda+pool:max=64MiB+fallback:to=(cuda+pool)").unwrap();
    let before = resource.memory_info().unwrap();
    let blocks = [40 * MIB, 40 * MIB].map(|bytes| resource.allocate_bytes(bytes, S).unwrap());
    assert_eq!(
        resource
            .stack()
            .find_map(downcast::<FallbackResourceAdaptor<AnyResource>>)
            .unwrap()
            .fallback_blocks(),
        1
    );
    let known = resource.statistics().unwrap();
    assert_eq!((known.blocks_in_use, known.bytes_in_use), (2, 80 * MIB));
    let layers = resource.memory_report().layers;
    let in_use = layers.iter().map(|layer| layer.statistics.map_or(0, |known| known.bytes_in_use));
    assert_eq!(in_use.collect::<Vec<_>>(), [40 * MIB; 2], "{layers:?}");
    assert!(layers[0].layer.starts_with("fallback:") && layers[1].layer.starts_with("pool:"));
    blocks.into_iter().for_each(|ptr| assert_eq!(free(&resource, ptr, 40 * MIB), []));
    let after = resource.memory_info().unwrap();
    assert!(after.free >= before.free - 64 * MIB && after.free <= before.total, "{before:?} then {after:?}");
    assert_eq!(resource.statistics().unwrap().blocks_in_use, 0);
    assert!(resource.trim(0).unwrap() >= 80 * MIB, "both are trimmed");
}

#[test]
fn the_memory_is_reached_by_what_reaches_both() {
    let device = SimDevice::new(SimConfig::h200());
    let cuda = || CudaMemoryResource::new(device.clone());
    let managed = || ManagedMemoryResource::new(device.clone());
    let mixed = FallbackResourceAdaptor::new(managed(), cuda()).unwrap();
    assert_eq!((mixed.accessibility(), mixed.is_stream_ordered()), (Accessibility::DEVICE, false));
    let managed = FallbackResourceAdaptor::new(managed(), managed()).unwrap();
    assert_eq!(managed.accessibility(), Accessibility::DEVICE_AND_HOST);
    let ordered = FallbackResourceAdaptor::new(cuda(), mock::resource(device.clone()).0).unwrap();
    assert!(ordered.is_stream_ordered(), "one is enough");
    assert_eq!(ordered.upstream().unwrap().to_string(), "cuda");
    assert!(ordered.is_equal(&ordered) && !ordered.is_equal(ordered.fallback()));
    let elsewhere = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let error = FallbackResourceAdaptor::new(cuda(), elsewhere).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().ends_with("use two resources of one device"), "{error}");
}

/// A resource that cannot give memory back does not keep the other from it.
#[test]
fn a_trim_that_fails_is_not_the_last() {
    let device = SimDevice::new(SimConfig::h200());
    let [(upstream, first), (fallback, second)] = [(); 2].map(|()| mock::resource(device.clone()));
    let resource = FallbackResourceAdaptor::new(upstream, fallback).unwrap();
    first.fail_trims(Some(ErrorKind::Driver));
    second.set_trimmed_bytes(77);
    assert_eq!(resource.trim(5).unwrap_err().kind(), ErrorKind::Driver);
    second.assert_calls([Call::Trim { keep_bytes: 5 }]);
    for handle in [&first, &second] {
        handle.fail_next(ErrorKind::OutOfMemory);
    }
    resource.allocate_bytes(100, S).expect("the fallback gave memory back");
}

#[test]
fn threads_share_it() {
    let device = SimDevice::new(SimConfig::h200());
    let limited = mock::resource(device.clone()).0.layer(LimitingLayer::new(4 * 256)).unwrap();
    let (fallback, _handle) = mock::resource(device);
    // The addresses of the two mocks must differ.
    fallback.allocate_bytes(1 << 40, S).unwrap();
    let resource = FallbackResourceAdaptor::new(limited, fallback).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let blocks = [(); 3].map(|()| resource.allocate_bytes(200, S).unwrap());
                    blocks.into_iter().for_each(|ptr| assert_eq!(free(&resource, ptr, 200), []));
                }
            });
        }
    });
    let limiting = crate::LimitingResourceAdaptor::<MockResource>::allocated_bytes;
    assert_eq!((resource.fallback_blocks(), limiting(&resource.upstream)), (0, 0));
}

fn build(text: &str) -> Result<AnyResource> {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30)) as _;
    let table =
        LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied());
    text.parse::<StackSpec>()?.build(&table, &device)
}

#[test]
fn text_builds_it() {
    for text in ["cuda+fallback:to=(managed)", "cuda+pool+fallback:to=(cuda+pool+statistics)+statistics"] {
        assert_eq!(build(text).unwrap().to_string(), text);
    }
    let layered = Arc::new(adaptor().0).layer(FallbackLayer::new(adaptor().0)).map(drop).unwrap_err();
    assert_eq!(layered.kind(), ErrorKind::InvalidArgument, "two devices");
    for (wrong, message) in [
        ("cuda+fallback", "needs another stack in parentheses; write for example `fallback:to=(managed)`"),
        ("cuda+fallback:to=managed", "is not a stack in parentheses"),
        ("cuda+fallback:to=(pool)", "needs a resource below it"),
    ] {
        let error = build(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidStack, "{wrong}: {error}");
        assert!(error.to_string().contains(message), "{wrong}: {error}");
    }
}
