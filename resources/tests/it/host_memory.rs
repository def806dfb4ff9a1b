//! Tests memory of the host: pinned, pageable and system memory, and allocators for the host.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use millpond_core::driver::{CaptureMode, Driver, StreamFlags};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    Accessibility, AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle,
    Error, ErrorKind, Layout, StreamRef,
};
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_resources::{
    AnyHostResource, CallbackMemoryResource, CudaMemoryResource, HostMemoryResource, HostResource,
    ManagedMemoryResource, PageableHostMemoryResource, PinnedHostMemoryResource, PoolLayer,
    SamHeadroomMemoryResource, SystemMemoryResource,
};
use millpond_testkit::misuse_recorder;

const S: StreamRef = StreamRef::LEGACY;
const MIB: u64 = 1 << 20;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn build(text: &str, driver: DriverHandle) -> millpond_core::Result<AnyResource> {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    text.parse::<StackSpec>()?.build(&table, &driver)
}

/// Writes a block from the host, copies it with the device, and reads it from the host.
fn use_from_both_sides(device: &SimDevice, resource: &AnyResource, bytes: u64) {
    let [from, to] = [(); 2].map(|()| resource.allocate_bytes(bytes, S).unwrap());
    let host = |ptr: DevicePtr| std::ptr::with_exposed_provenance_mut::<u8>(ptr.address() as usize);
    // SAFETY: both blocks are live and hold the bytes, and the copy is waited for.
    unsafe {
        host(from).write_bytes(0x5a, bytes as usize);
        device.memcpy_dtod_async(to, from, bytes, S).unwrap();
        device.stream_synchronize(S).unwrap();
        assert!(std::slice::from_raw_parts(host(to), bytes as usize).iter().all(|byte| *byte == 0x5a));
        resource.deallocate_bytes(from, bytes, S);
        resource.deallocate_bytes(to, bytes, S);
    }
}

#[test]
fn host_and_device_use_the_same_addresses() {
    for text in ["pinned_host", "managed", "system", "sam_headroom:headroom=1MiB", "pinned_host+pool"] {
        let device = device();
        let resource = build(text, device.clone()).unwrap();
        assert_eq!(resource.accessibility(), Accessibility::DEVICE_AND_HOST, "{text}");
        for bytes in [1, 8, 1000, MIB, 5 * MIB + 3] {
            use_from_both_sides(&device, &resource, bytes);
        }
        drop(resource);
        assert_eq!((device.live_allocations(), device.take_violations().len()), (0, 0), "{text}");
    }
}

#[test]
fn host_memory_is_not_for_the_device() {
    let device = device();
    let host = PageableHostMemoryResource::new(device);
    assert_eq!(host.accessibility(), Accessibility::HOST);
    let pool = host.layer(PoolLayer::new()).unwrap();
    assert_eq!(pool.accessibility(), Accessibility::HOST, "a pool answers as its upstream does");
}

#[test]
fn large_alignments_are_kept() {
    for text in ["pinned_host", "host", "system", "host+pool"] {
        let device = device();
        let resource = build(text, device.clone()).unwrap();
        let mut blocks = Vec::new();
        for alignment in (8..=21).map(|power| 1 << power) {
            let layout = Layout::with_alignment(1000, alignment).unwrap();
            let ptr = resource.allocate(layout, S).unwrap();
            assert!(ptr.is_aligned_to(alignment), "{ptr} is not aligned to {alignment} in {text}");
            blocks.push((ptr, layout));
        }
        // SAFETY: each block came from this resource with this layout, once.
        blocks.into_iter().for_each(|(ptr, layout)| unsafe { resource.deallocate(ptr, layout, S) });
        drop(resource);
        assert_eq!(device.live_allocations(), 0, "{text}");
    }
}

#[test]
fn too_much_memory_is_an_error_that_names_the_stack() {
    for text in ["pinned_host", "host", "system"] {
        let resource = build(text, device()).unwrap();
        let error = resource.allocate_bytes(1 << 50, S).unwrap_err();
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(error.stack(), Some(text));
        assert!(error.to_string().starts_with("out of memory for 1PiB"), "{error}");
    }
}

#[test]
fn a_pool_over_pinned_memory_keeps_its_maximum() {
    let resource = build("pinned_host+pool:initial=1KiB,max=1KiB", device()).unwrap();
    let block = resource.allocate_bytes(1024, S).unwrap();
    assert!(resource.allocate_bytes(1024, S).unwrap_err().is_out_of_memory());
    // SAFETY: the block came from this resource with this size, once.
    unsafe { resource.deallocate_bytes(block, 1024, S) };
    let error = build("pinned_host+pool:initial=2KiB,max=1KiB", device()).unwrap_err();
    assert_eq!(
        error.message(),
        "the pool's initial size of 2KiB exceeds its maximum of 1KiB; lower `initial` or raise `max`"
    );
}

#[test]
fn a_pool_over_host_memory_may_be_larger_than_the_device() {
    let resource = build("pinned_host+pool:max=2GiB", device()).unwrap();
    let block = resource.allocate_bytes(3 << 29, S).unwrap();
    // SAFETY: the block came from this resource with this size, once.
    unsafe { resource.deallocate_bytes(block, 3 << 29, S) };
}

#[test]
fn free_memory_of_the_host_is_reported() {
    let resource = PinnedHostMemoryResource::new(device());
    let before = resource.memory_info().unwrap();
    assert_eq!(before.total, 2 << 30, "a simulated host has twice the memory of its device");
    let block = resource.allocate_bytes(MIB, S).unwrap();
    assert_eq!(resource.memory_info().unwrap().free, before.free - MIB);
    // SAFETY: the block came from this resource with this size, once.
    unsafe { resource.deallocate_bytes(block, MIB, S) };
}

#[test]
fn a_device_without_access_to_pageable_memory_has_no_system_memory() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30).without_pageable_access());
    for error in [
        SystemMemoryResource::new(device.clone()).map(drop).unwrap_err(),
        SamHeadroomMemoryResource::new(device.clone(), 0).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(
            error.message(),
            format!(
                "{} cannot access pageable host memory; use `managed` or `pinned_host` instead",
                device.device()
            )
        );
    }
    let host = PageableHostMemoryResource::new(device.clone());
    let block = host.allocate_bytes(100, S).unwrap();
    device.launch(S, &[Access::write(block, 100, 1)]);
    assert_eq!(device.take_violations().len(), 1, "the device must not use the block");
    // SAFETY: the block came from this resource with this size, once.
    unsafe { host.deallocate_bytes(block, 100, S) };
}

/// RMM keeps the answers of the first device of a process.
#[test]
fn each_device_is_asked_what_it_can() {
    let without = || SimDevice::new(SimConfig::with_capacity(1 << 30).without_pageable_access());
    let can = [device(), without(), device(), without()].map(|it| SystemMemoryResource::new(it).is_ok());
    assert_eq!(can, [true, false, true, false]);
}

#[test]
fn headroom_leaves_a_part_of_the_device_free() {
    let error = build("sam_headroom", device()).unwrap_err();
    assert_eq!(
        error.message(),
        "`sam_headroom` needs the bytes to leave free; write for example headroom=1GiB"
    );
    let device = device();
    let [one, other] =
        [1, 2].map(|headroom| SamHeadroomMemoryResource::new(device.clone(), headroom).unwrap());
    assert!(!one.is_equal(&other), "they differ in their headroom");
    assert!(one.is_equal(&one));
    // All of it stays on the host, then a part of it, then none.
    for headroom in [1 << 30, (1 << 30) - MIB, 0] {
        let resource = SamHeadroomMemoryResource::new(device.clone(), headroom).unwrap();
        let block = resource.allocate_bytes(4 * MIB, S).unwrap();
        // SAFETY: the block came from this resource with this size, once.
        unsafe { resource.deallocate_bytes(block, 4 * MIB, S) };
    }
    assert_eq!(device.take_violations().len(), 0);
}

#[test]
fn a_free_of_system_memory_waits_for_the_device() {
    let device = device();
    let resource = SystemMemoryResource::new(device.clone()).unwrap();
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let block = resource.allocate_bytes(MIB, stream).unwrap();
    device.launch(stream, &[Access::write(block, MIB, 1)]);
    // SAFETY: the stream is not named by a call of the driver again.
    unsafe { device.stream_destroy(stream) }.unwrap();
    // SAFETY: the block came from this resource with this size, once. Its stream is gone, but the resource
    // still waits for its work.
    unsafe { resource.deallocate_bytes(block, MIB, stream) };
    assert_eq!((device.live_allocations(), device.take_violations().len()), (0, 0));
}

/// The canary of the test above: the simulated device reports a free that does not wait.
#[test]
fn canary_a_free_that_does_not_wait_is_seen() {
    let device = device();
    let layout = Layout::new(MIB);
    let block = device.pageable_alloc(layout).unwrap();
    device.launch(S, &[Access::write(DevicePtr::new(block.0 as u64), MIB, 1)]);
    // SAFETY: the simulated device keeps the memory until its work is done.
    unsafe { device.pageable_free(block, layout) };
    let violations = device.take_violations();
    assert!(violations[0].to_string().contains("free releases 1048576 bytes"), "{}", violations[0]);
}

#[test]
fn system_memory_that_is_freed_beside_a_capture_is_freed_later() {
    let device = device();
    let resource = SystemMemoryResource::new(device.clone()).unwrap();
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let other = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let block = resource.allocate_bytes(MIB, other).unwrap();
        device.launch(other, &[Access::write(block, MIB, 1)]);
        device.begin_capture(stream, mode).unwrap();
        // SAFETY: the block came from this resource with this size, once.
        unsafe { resource.deallocate_bytes(block, MIB, other) };
        device.end_capture(stream).unwrap();
        let again = resource.allocate_bytes(1, other).unwrap();
        // SAFETY: as above.
        unsafe { resource.deallocate_bytes(again, 1, other) };
        assert_eq!((device.live_allocations(), device.take_violations().len()), (0, 0), "{mode:?}");
    }
}

#[test]
fn wrong_frees_of_host_memory_are_refused() {
    let (device, another) = (device(), device());
    let host = PageableHostMemoryResource::new(device.clone());
    let stranger = PageableHostMemoryResource::new(another);
    assert!(host.is_equal(&PageableHostMemoryResource::new(device)));
    assert!(!host.is_equal(&stranger));
    let block = host.allocate_bytes(1000, S).unwrap();
    let ((), misuses) = misuse_recorder::record(|| {
        // SAFETY: none of these is a valid free, which the resource refuses; the last one is.
        unsafe {
            host.deallocate_bytes(block.offset(256), 1000, S);
            host.deallocate_bytes(block, 999, S);
            stranger.deallocate_bytes(block, 1000, S);
            host.deallocate_bytes(block, 1000, S);
            host.deallocate_bytes(block, 1000, S);
        }
    });
    let inside = block.offset(256);
    let texts: Vec<String> = misuses.iter().map(ToString::to_string).collect();
    let foreign = |ptr: DevicePtr, bytes: u64| {
        format!(
            "refused to deallocate {ptr} ({bytes} bytes, stream 0) in `host`: no live block of this resource \
             starts there: the block is another resource's, or was freed before; free each block once, on \
             the resource that allocated it"
        )
    };
    assert_eq!(
        texts,
        [
            foreign(inside, 1000),
            format!(
                "refused to deallocate {block} (999 bytes, stream 0) in `host`: the block was allocated with \
                 1000 bytes; pass the same layout to both calls"
            ),
            format!(
                "refused to deallocate {block} (1000 bytes, stream 0) in `host`: the block belongs to \
                 another device; free it on the resource that allocated it"
            ),
            foreign(block, 1000),
        ]
    );
    assert_eq!(host.statistics().unwrap().misuses, 3);
}

#[test]
fn pinned_memory_refuses_pointers_that_the_driver_does_not_know() {
    let resource = PinnedHostMemoryResource::new(device());
    let ((), misuses) = misuse_recorder::record(|| {
        // SAFETY: the driver refuses it.
        unsafe { resource.deallocate_bytes(DevicePtr::new(0x1000), 10, S) }
    });
    assert_eq!(
        misuses[0].to_string(),
        "refused to deallocate 0x1000 (10 bytes, stream 0) in `pinned_host`: no live block of this resource \
         starts there: the block is another resource's, or was freed before; free each block once, on the \
         resource that allocated it"
    );
}

#[test]
fn allocators_for_the_host_need_memory_that_it_reaches() {
    let error = HostResource::new(CudaMemoryResource::new(device())).map(drop).unwrap_err();
    assert_eq!(
        error.message(),
        "the host cannot access the memory of `cuda`; build the stack on `host`, `pinned_host`, `managed` or \
         `system`"
    );
    for text in ["host", "pinned_host+pool", "managed", "system+pool"] {
        let device = device();
        let host: AnyHostResource =
            Arc::new(HostResource::new(build(text, device.clone()).unwrap()).unwrap());
        assert_eq!(host.to_string(), text);
        let mut seen = BTreeSet::new();
        let layouts = [1, 100, 4096]
            .map(|alignment| Layout::with_alignment(777, alignment).unwrap_or(Layout::new(777)));
        let blocks: Vec<_> = layouts.map(|layout| (host.allocate(layout).unwrap(), layout)).into();
        for (block, layout) in blocks {
            assert!(block.addr().get().is_multiple_of(layout.alignment() as usize));
            assert!(seen.insert(block.addr()), "two live blocks have one address");
            // SAFETY: the block holds 777 bytes, and is freed once.
            unsafe {
                block.write_bytes(1, 777);
                host.deallocate(block, layout);
            }
        }
        let empty = host.allocate(Layout::new(0)).unwrap();
        // SAFETY: it came from this resource with this layout, once.
        unsafe { host.deallocate(empty, Layout::new(0)) };
        drop(host);
        assert_eq!((device.live_allocations(), device.live_streams()), (0, 0), "{text}");
    }
}

#[test]
fn the_host_gets_memory_whose_earlier_work_is_done() {
    let device = device();
    let pool = build("pinned_host+pool:initial=1MiB,max=1MiB", device.clone()).unwrap();
    let host = HostResource::new(Arc::clone(&pool)).unwrap();
    let stream = device.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    let block = pool.allocate_bytes(MIB, stream).unwrap();
    device.launch(stream, &[Access::write(block, MIB, 7)]);
    // SAFETY: the block came from this resource with this size, once, and its work is on this stream.
    unsafe { pool.deallocate_bytes(block, MIB, stream) };
    let again = host.allocate(Layout::new(MIB)).unwrap();
    assert_eq!(again.addr().get() as u64, block.address(), "the pool has no other block");
    assert!(device.stream_query(stream).unwrap(), "the stream still works on the block");
    // SAFETY: as above.
    unsafe { host.deallocate(again, Layout::new(MIB)) };
}

/// RMM's `allocate_sync` did not synchronise (its issue 2448).
#[test]
fn a_block_of_allocate_sync_is_for_any_stream() {
    for text in ["cuda", "cuda+pool:initial=1MiB,max=1MiB", "cuda+pool:pages=off"] {
        let device = device();
        let resource = build(text, device.clone()).unwrap();
        let [one, other] = [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
        let layout = Layout::new(MIB);
        let block = resource.allocate(layout, one).unwrap();
        device.launch(one, &[Access::write(block, MIB, 1)]);
        // SAFETY: the block came from this resource with this layout, once, and its work is on this stream.
        unsafe { resource.deallocate(block, layout, one) };
        let block = resource.allocate_sync(layout).unwrap();
        device.launch(other, &[Access::write(block, MIB, 2)]);
        device.stream_synchronize(other).unwrap();
        // SAFETY: as above, and all its work is done.
        unsafe { resource.deallocate_sync(block, layout) };
        drop(resource);
        assert_eq!(device.take_violations().len(), 0, "{text}");
    }
}

#[test]
fn callbacks_get_the_request_and_the_stream() {
    let device = device();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let cuda = CudaMemoryResource::new(device.clone()).into_any();
    let (taken, given) = (Arc::clone(&calls), Arc::clone(&calls));
    let upstream = Arc::clone(&cuda);
    // SAFETY: both functions pass the call on to a resource that keeps the contract.
    let resource = unsafe {
        CallbackMemoryResource::new(
            device,
            move |layout, stream| {
                taken.lock().unwrap().push(("allocate", layout.bytes(), layout.alignment(), stream));
                cuda.allocate(layout, stream)
            },
            move |ptr, layout, stream| {
                given.lock().unwrap().push(("deallocate", layout.bytes(), layout.alignment(), stream));
                upstream.deallocate(ptr, layout, stream);
            },
        )
        .not_stream_ordered()
    };
    assert!(!resource.is_stream_ordered());
    assert_eq!(resource.allocate_bytes(0, S).unwrap(), DevicePtr::NULL, "zero bytes are not asked for");
    let layout = Layout::with_alignment(100, 4096).unwrap();
    let block = resource.allocate(layout, StreamRef::PER_THREAD).unwrap();
    // SAFETY: the block came from this resource with this layout, once.
    unsafe { resource.deallocate(block, layout, S) };
    let expected = [("allocate", 100, 4096, StreamRef::PER_THREAD), ("deallocate", 100, 4096, S)];
    assert_eq!(*calls.lock().unwrap(), expected);
}

#[test]
fn what_a_callback_returns_is_checked() {
    let device = device();
    let resource = |answer: fn() -> millpond_core::Result<DevicePtr>| {
        // SAFETY: nothing uses the blocks that the functions return.
        unsafe { CallbackMemoryResource::new(device.clone(), move |_, _| answer(), |_, _, _| {}) }
    };
    let null = resource(|| Ok(DevicePtr::NULL)).allocate_bytes(10, S).unwrap_err();
    assert!(null.is_out_of_memory(), "{null}");
    let odd = resource(|| Ok(DevicePtr::new(0x101))).allocate_bytes(10, S).unwrap_err();
    assert_eq!(odd.message(), "the function returned 0x101, but the address must be a multiple of 256 bytes");
    let own =
        resource(|| Err(Error::invalid_argument("no memory on Sundays"))).allocate_bytes(10, S).unwrap_err();
    assert_eq!((own.message(), own.stack()), ("no memory on Sundays", Some("callback")));
}

#[test]
fn managed_memory_is_reached_by_both() {
    assert_eq!(ManagedMemoryResource::new(device()).accessibility(), Accessibility::DEVICE_AND_HOST);
    assert_eq!(CudaMemoryResource::new(device()).accessibility(), Accessibility::DEVICE);
}
