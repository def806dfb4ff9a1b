//! Tests the resources over the driver's pools: what RMM's tests of its own ask, the mistakes that they
//! refuse, and what they do while a graph is captured.

use std::sync::Arc;

use millpond_core::driver::{
    CaptureMode, HandleTypes, MemAllocationType, MemLocation, MemPoolAttribute, MemoryKind, StreamFlags,
};
use millpond_core::misuse::Misuse;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    Accessibility, AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver,
    DriverHandle, ErrorKind, Layout, Result, StreamRef,
};
use millpond_driver::CallKind;
use millpond_driver::CountingDriver;
use millpond_driver::sim::{Access, SimConfig, SimDevice};
use millpond_resources::memory_pool::{MemoryPool, MemoryPoolOptions};
use millpond_resources::{
    CudaAsyncManagedMemoryResource, CudaAsyncMemoryResource, CudaAsyncOptions, CudaAsyncViewMemoryResource,
    HwDecompress, LAYERS,
};
use millpond_testkit::hooked::HookedDriver;
use millpond_testkit::{Checked, misuse_recorder};

const MIB: u64 = 1 << 20;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn stream(device: &SimDevice) -> StreamRef {
    device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
}

fn defaults() -> CudaAsyncOptions {
    CudaAsyncOptions::default()
}

fn resource(device: &Arc<SimDevice>) -> CudaAsyncMemoryResource {
    CudaAsyncMemoryResource::new(device.clone(), defaults()).unwrap()
}

/// Gives back a block; most tests pass one that they allocated, with its size, once.
fn put(resource: &dyn DeviceMemoryResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: nothing uses the block. Where the pointer is no block, the resource finds out.
    unsafe { resource.deallocate_bytes(ptr, bytes, stream) }
}

fn build(text: &str, driver: DriverHandle) -> Result<AnyResource> {
    text.parse::<StackSpec>()?.build(&LayerTable::new(LAYERS.iter().copied()), &driver)
}

/// The kind and the text of an error, in which the device is called `DEVICE`.
fn said<T>(answer: Result<T>) -> (ErrorKind, String) {
    let Err(error) = answer else { panic!("it was not refused") };
    let device = error.device().map(|device| device.to_string());
    let text = error.to_string();
    (error.kind(), device.map_or(text.clone(), |device| text.replace(&device, "DEVICE")))
}

// --- RMM's tests of cuda_async ---

#[test]
fn explicit_initial_pool_size() {
    let device = device();
    let options = CudaAsyncOptions { initial_bytes: 100 * MIB, ..defaults() };
    let resource = CudaAsyncMemoryResource::new(device.clone(), options).unwrap();
    let pool = resource.pool();
    assert_eq!((pool.reserved_bytes().unwrap(), pool.used_bytes().unwrap()), (100 * MIB, 0));
    let s = stream(&device);
    let ptr = resource.allocate_bytes(100 * MIB, s).unwrap();
    assert_eq!(pool.reserved_high().unwrap(), 100 * MIB, "a request takes what is there");
    put(&resource, ptr, 100 * MIB, s);
}

#[test]
fn explicit_release_threshold() {
    let options = CudaAsyncOptions { release_threshold: Some(1000), ..defaults() };
    let resource = CudaAsyncMemoryResource::new(device(), options).unwrap();
    assert_eq!(resource.pool().release_threshold().unwrap(), 1000);
}

#[test]
fn default_release_threshold_is_the_largest_number() {
    assert_eq!(resource(&device()).pool().release_threshold().unwrap(), u64::MAX);
}

#[test]
fn explicit_release_threshold_is_applied() {
    let device = device();
    for (release_threshold, kept) in [(None, 32 * MIB), (Some(0), 0)] {
        let options = CudaAsyncOptions { release_threshold, ..defaults() };
        let resource = CudaAsyncMemoryResource::new(device.clone(), options).unwrap();
        let s = stream(&device);
        let ptr = resource.allocate_bytes(8 * MIB, s).unwrap();
        put(&resource, ptr, 8 * MIB, s);
        device.stream_synchronize(s).unwrap();
        assert_eq!(resource.pool().reserved_bytes().unwrap(), kept);
    }
}

#[test]
fn different_pools_unequal() {
    let device = device();
    let (first, second) = (resource(&device), resource(&device));
    assert!(first.is_equal(&first) && !first.is_equal(&second));
    assert_ne!(first.pool(), second.pool());
}

#[test]
fn fabric_handles_support() {
    let options = CudaAsyncOptions { handles: HandleTypes::FABRIC, ..defaults() };
    let text = "not supported of DEVICE in `cuda_async:handles=fabric`: the device has no pools with such \
                handles; ask for another kind, or for none";
    let refused = CudaAsyncMemoryResource::new(device(), options);
    assert_eq!(said(refused), (ErrorKind::Unsupported, text.to_owned()));
}

/// RMM's defect of capabilities that are cached for the first device that is asked: each driver answers for
/// itself.
#[test]
fn memory_for_the_decompression_engine_is_made_where_the_driver_knows_it() {
    let (new, old) = (HookedDriver::new(device()), HookedDriver::new(device()));
    new.be_version(12_080);
    old.be_version(12_060);
    for (driver, hw_decompress, expected) in [
        (&new, HwDecompress::Auto, 1),
        (&old, HwDecompress::Auto, 0),
        (&new, HwDecompress::Off, 0),
        (&new, HwDecompress::On, 1),
    ] {
        let options = CudaAsyncOptions { hw_decompress, ..defaults() };
        let resource = CudaAsyncMemoryResource::new(driver.clone(), options).unwrap();
        let pool = resource.pool().raw();
        let is_on = driver.mem_pool_get_attribute(pool, MemPoolAttribute::HwDecompressEnabled);
        assert_eq!(is_on, Ok(expected), "{hw_decompress}");
    }
}

// --- RMM's tests of cuda_async_managed ---

#[test]
fn managed_basic() {
    let device = device();
    let resource = CudaAsyncManagedMemoryResource::new(device.clone()).unwrap();
    let s = stream(&device);
    let ptr = resource.allocate_bytes(1000, s).unwrap();
    put(&resource, ptr, 1000, s);
    assert_eq!(resource.accessibility(), Accessibility::DEVICE_AND_HOST);
    assert_eq!(resource.to_string(), "cuda_async_managed");
    assert_eq!(device.take_violations(), []);
}

#[test]
fn managed_instances_are_equal() {
    let device = device();
    let [first, second] = [(); 2].map(|()| CudaAsyncManagedMemoryResource::new(device.clone()).unwrap());
    assert!(first.is_equal(&second));
    let of_driver = device.mem_get_default_mem_pool(MemLocation::Device, MemAllocationType::Managed);
    assert_eq!(of_driver, Ok(first.pool().raw()));
    let ptr = first.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
    put(&second, ptr, 1000, StreamRef::LEGACY);
    assert_eq!(first.pool().used_bytes().unwrap(), 0);
}

#[test]
fn managed_pointer_attribute() {
    let device = device();
    let resource = CudaAsyncManagedMemoryResource::new(device.clone()).unwrap();
    let ptr = resource.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
    assert_eq!(device.pointer_kind(ptr), Ok(MemoryKind::Managed));
    put(&resource, ptr, 1000, StreamRef::LEGACY);
}

#[test]
fn managed_memory_is_accessible_from_the_host() {
    let device = device();
    let resource = CudaAsyncManagedMemoryResource::new(device.clone()).unwrap();
    let s = stream(&device);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    // SAFETY: the block is live and has a MiB.
    unsafe { device.memset_d8_async(ptr, 42, MIB, s) }.unwrap();
    device.stream_synchronize(s).unwrap();
    let bytes: *mut u8 = std::ptr::with_exposed_provenance_mut(ptr.address() as usize);
    // SAFETY: managed memory of a MiB, and the device is done.
    let (read, slice) = unsafe {
        bytes.write(7);
        (bytes.read(), std::slice::from_raw_parts(bytes.add(1), MIB as usize - 1))
    };
    assert!(read == 7 && slice.iter().all(|byte| *byte == 42));
    put(&resource, ptr, MIB, s);
}

#[test]
fn managed_multiple_allocations() {
    let device = device();
    let resource =
        Checked::new(CudaAsyncManagedMemoryResource::new(device.clone()).unwrap(), Some(device.clone()));
    let s = stream(&device);
    let blocks: Vec<(DevicePtr, u64)> =
        (1..100).map(|n| n * 5000).map(|bytes| (resource.allocate_bytes(bytes, s).unwrap(), bytes)).collect();
    for (ptr, bytes) in blocks {
        device.launch(s, &[Access::write(ptr, bytes, 9), Access::check(ptr, bytes, 9)]);
        put(&resource, ptr, bytes, s);
    }
    assert!(resource.take_faults().is_empty() && device.take_violations().is_empty());
}

/// RMM's issue 2510: with a threshold of 0, each synchronisation gives all memory back, and each request
/// takes it anew.
#[test]
fn issue_2510_managed_memory_stays_at_a_synchronisation() {
    let device = device();
    let resource = CudaAsyncManagedMemoryResource::new(device.clone()).unwrap();
    assert_eq!(resource.pool().release_threshold().unwrap(), u64::MAX);
    let s = stream(&device);
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    put(&resource, ptr, MIB, s);
    device.synchronize().unwrap();
    assert_eq!(resource.pool().reserved_bytes().unwrap(), 32 * MIB);
    // What a program has set stays.
    resource.pool().set_release_threshold(5).unwrap();
    let later = CudaAsyncManagedMemoryResource::new(device).unwrap();
    assert_eq!(later.pool().release_threshold().unwrap(), 5);
}

// --- RMM's tests of cuda_async_view ---

#[test]
fn view_uses_pool() {
    let device = device();
    let resource = CudaAsyncViewMemoryResource::of_default(device.clone()).unwrap();
    let s = stream(&device);
    let ptr = resource.allocate_bytes(100, s).unwrap();
    assert_eq!(device.pointer_mem_pool(ptr), Ok(Some(device.device_get_default_mem_pool().unwrap())));
    put(&resource, ptr, 100, s);
    assert_eq!(resource.to_string(), "cuda_async_view");
}

#[test]
fn view_does_not_take_ownership_of_pool() {
    let device = device();
    let pool = MemoryPool::new(device.clone(), MemoryPoolOptions::new()).unwrap();
    drop(CudaAsyncViewMemoryResource::new(pool.clone()).unwrap());
    let [first, second] = [(); 2].map(|()| CudaAsyncViewMemoryResource::new(pool.clone()).unwrap());
    let ptr = first.allocate_bytes(100, StreamRef::LEGACY).unwrap();
    drop(first);
    assert_eq!(pool.used_bytes().unwrap(), 512, "blocks stay when a view is dropped");
    put(&second, ptr, 100, StreamRef::LEGACY);
    assert_eq!(pool.used_bytes().unwrap(), 0);
}

/// A null handle, which RMM's constructor refuses, names no pool; the driver says so.
#[test]
fn view_throws_if_null_pool() {
    // SAFETY: the simulated device finds out.
    let pool = unsafe { MemoryPool::from_raw(device(), millpond_core::driver::MemPool(0)) };
    let resource = CudaAsyncViewMemoryResource::new(pool).unwrap();
    let text = "driver error for 100B on stream 0 of DEVICE in `cuda_async_view:pool=other`: \
                cuMemAllocFromPoolAsync: CUDA_ERROR_INVALID_VALUE (1): there is no pool 0x0 of this device";
    let refused = resource.allocate_bytes(100, StreamRef::LEGACY);
    assert_eq!(said(refused), (ErrorKind::Driver, text.to_owned()));
}

#[test]
fn a_view_says_what_reaches_the_pools_memory() {
    let device = device();
    let of = |options| {
        let pool = MemoryPool::new(device.clone(), options).unwrap();
        CudaAsyncViewMemoryResource::new(pool).unwrap().accessibility()
    };
    let options = MemoryPoolOptions::new();
    assert_eq!(of(options), Accessibility::DEVICE);
    assert_eq!(of(options.managed()), Accessibility::DEVICE_AND_HOST);
    assert_eq!(of(options.location(MemLocation::Host)), Accessibility::HOST);
}

// --- Mistakes ---

/// The message of the one misuse that the call is.
fn refusal(call: impl FnOnce()) -> String {
    let ((), misuses): ((), Vec<Misuse>) = misuse_recorder::record(call);
    let [misuse] = &misuses[..] else { panic!("{misuses:?}") };
    misuse.to_string()
}

const NOT_IN_USE: &str = "in `cuda_async`: no block in use starts there: it is another resource's, or it was \
    freed before; give each block back once, to the resource that allocated it";

#[test]
fn a_foreign_pointer() {
    let device = device();
    let (resource, other) = (resource(&device), resource(&device));
    let ptr = other.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
    for foreign in [ptr, DevicePtr::new(0x100), ptr.offset(256)] {
        let text = format!("refused to deallocate {foreign} (1000 bytes, stream 0) {NOT_IN_USE}");
        assert_eq!(refusal(|| put(&resource, foreign, 1000, StreamRef::LEGACY)), text);
    }
    assert_eq!(resource.statistics().unwrap().misuses, 3);
    assert_eq!(other.statistics(), None);
    put(&other, ptr, 1000, StreamRef::LEGACY);
    assert_eq!(device.take_violations(), [], "the driver was not asked");
}

#[test]
fn a_double_free() {
    let device = device();
    let resource = resource(&device);
    let ptr = resource.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
    put(&resource, ptr, 1000, StreamRef::LEGACY);
    let text = format!("refused to deallocate {ptr} (1000 bytes, stream 0) {NOT_IN_USE}");
    assert_eq!(refusal(|| put(&resource, ptr, 1000, StreamRef::LEGACY)), text);
    assert_eq!(device.take_violations(), [], "the driver was not asked");
}

#[test]
fn a_wrong_size() {
    let resource = resource(&device());
    let ptr = resource.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
    let text = format!(
        "refused to deallocate {ptr} (999 bytes, stream 0) in `cuda_async`: the block was allocated with \
         1000 bytes; pass the same layout to both calls"
    );
    assert_eq!(refusal(|| put(&resource, ptr, 999, StreamRef::LEGACY)), text);
    put(&resource, ptr, 1000, StreamRef::LEGACY);
    assert_eq!(resource.pool().used_bytes().unwrap(), 0);
}

#[test]
fn a_free_on_a_dead_stream() {
    let device = device();
    let resource = resource(&device);
    let [dead, other] = [(); 2].map(|()| stream(&device));
    let ptr = resource.allocate_bytes(MIB, dead).unwrap();
    device.lend(ptr, MIB, dead);
    device.launch_for(dead, &[Access::write(ptr, MIB, 1)], 1_000_000);
    device.give_back(ptr, MIB, dead);
    // SAFETY: the stream is this test's; naming it afterwards is the mistake that is tested.
    unsafe { device.stream_destroy(dead) }.unwrap();
    let text = format!(
        "took back {ptr} (1048576 bytes, stream {dead}) in `cuda_async`: the stream was destroyed before, so \
         the block waits for all work of the device; pass a living stream that comes after the block's uses"
    );
    assert_eq!(refusal(|| put(&resource, ptr, MIB, dead)), text);
    assert_eq!(resource.pool().used_bytes().unwrap(), 0, "nothing leaks");
    let again = resource.allocate_bytes(MIB, other).unwrap();
    assert_eq!(again, ptr);
    device.lend(again, MIB, other);
    device.launch(other, &[Access::write(again, MIB, 2), Access::check(again, MIB, 2)]);
    device.give_back(again, MIB, other);
    put(&resource, again, MIB, other);
    assert_eq!(device.take_violations(), []);
}

#[test]
fn a_request_on_a_dead_stream() {
    let device = device();
    let (resource, dead) = (resource(&device), stream(&device));
    // SAFETY: the stream is this test's; naming it afterwards is the mistake that is tested.
    unsafe { device.stream_destroy(dead) }.unwrap();
    let text = format!(
        "driver error for 100B on stream {dead} of DEVICE in `cuda_async`: a stream, an event or a pool \
         that the call names is gone; keep it until its last use: cuStreamIsCapturing: \
         CUDA_ERROR_INVALID_HANDLE (400): stream {dead} does not exist"
    );
    assert_eq!(said(resource.allocate_bytes(100, dead)), (ErrorKind::Driver, text));
}

#[test]
fn an_alignment_that_is_not_a_power_of_two() {
    let text = "invalid argument: alignment 3000 is not a power of two; use 256, 512, 1024, …";
    let refused = Layout::with_alignment(100, 3000);
    assert_eq!(said(refused), (ErrorKind::InvalidArgument, text.to_owned()));
}

#[test]
fn managed_memory_on_a_driver_before_cuda_13() {
    let driver = HookedDriver::new(device());
    driver.be_version(12_090);
    let text = "not supported of DEVICE in `cuda_async_managed`: pools of managed memory need a driver of \
                CUDA 13.0; this is 12.9: use managed";
    let refused = CudaAsyncManagedMemoryResource::new(driver.clone());
    assert_eq!(said(refused), (ErrorKind::Unsupported, text.to_owned()));
    driver.be_version(13_000);
    assert!(CudaAsyncManagedMemoryResource::new(driver).is_ok());
}

#[test]
fn an_initial_size_above_the_maximum_or_the_device() {
    let refused = |options| said(CudaAsyncMemoryResource::new(device(), options));
    let above = "invalid argument of DEVICE in `cuda_async:initial=2MiB,max=1MiB`: the initial 2MiB are more \
                 than the most, 1MiB; raise max";
    let options = CudaAsyncOptions { initial_bytes: 2 * MIB, maximum_bytes: Some(MIB), ..defaults() };
    assert_eq!(refused(options), (ErrorKind::InvalidArgument, above.to_owned()));
    let (kind, text) = refused(CudaAsyncOptions { initial_bytes: 1 << 60, ..defaults() });
    assert!(kind == ErrorKind::OutOfMemory && text.contains("1EiB are more than the device has"), "{text}");
}

#[test]
fn more_than_the_maximum_is_out_of_memory() {
    let options = CudaAsyncOptions { maximum_bytes: Some(2 * MIB), ..defaults() };
    let device = device();
    let resource = CudaAsyncMemoryResource::new(device.clone(), options).unwrap();
    let refused = resource.allocate_bytes(3 * MIB, StreamRef::LEGACY);
    assert!(refused.as_ref().is_err_and(|error| error.is_impossible()), "{refused:?}");
    let (kind, text) = said(refused);
    assert_eq!(kind, ErrorKind::OutOfMemory);
    for part in [
        "out of memory for 3MiB on stream 0 of DEVICE in `cuda_async:max=2MiB`: the pool may never hold that \
         many bytes; raise its maximum: it was 1MiB short",
        "\n  - raise the maximum by 1MiB",
        "its maximum is 2MiB; the device has ",
        "caused by: cuMemAllocFromPoolAsync: CUDA_ERROR_OUT_OF_MEMORY (2): the pool holds at most 2097152 bytes",
    ] {
        assert!(text.contains(part), "{text}");
    }
    // What is free in other sizes makes room.
    let s = stream(&device);
    let halves = [(); 2].map(|()| resource.allocate_bytes(MIB, s).unwrap());
    device.launch_for(s, &[Access::write(halves[0], MIB, 1)], 1_000_000);
    halves.into_iter().for_each(|ptr| put(&resource, ptr, MIB, s));
    assert!(resource.allocate_bytes(2 * MIB, StreamRef::LEGACY).is_ok());
}

#[test]
fn mistakes_in_a_stacks_text() {
    for (text, expected) in [
        (
            "cuda_async:handles=usb",
            "`handles=usb` of `cuda_async`: `usb` is no kind of handle; write none, fd, fabric or \
             fd/fabric",
        ),
        (
            "cuda_async:hw_decompress=yes",
            "`hw_decompress=yes` of `cuda_async`: invalid argument: write auto, on or off",
        ),
        (
            "cuda_async_view:pool=other",
            "`pool=other` of `cuda_async_view`: write default or current; a resource over any \
             other pool is made from its handle",
        ),
        (
            "cuda_async_managed:max=1GiB",
            "`cuda_async_managed` takes no parameters, so not `max`; leave it out",
        ),
    ] {
        let within = if text.ends_with("=1GiB") { String::new() } else { format!(" in `{text}`") };
        let expected = format!("invalid stack{within}: {expected}");
        assert_eq!(said(build(text, device())), (ErrorKind::InvalidStack, expected));
    }
}

#[test]
fn a_stack_prints_the_text_that_builds_it() {
    let device = device();
    for text in [
        "cuda_async",
        "cuda_async:initial=1MiB,release_threshold=2MiB,max=4MiB,reuse=follow/internal",
        "cuda_async:handles=fd,hw_decompress=on",
        "cuda_async:release_threshold=0,reuse=own,hw_decompress=off",
        "cuda_async_view",
        "cuda_async_view:pool=current",
        "cuda_async_managed",
    ] {
        assert_eq!(build(text, device.clone()).unwrap().to_string(), text);
    }
    assert_eq!(build("cuda_async_view:pool=default", device).unwrap().to_string(), "cuda_async_view");
}

// --- Blocks ---

#[test]
fn over_aligned_blocks_go_back_whole() {
    let device = device();
    let resource = Checked::new(resource(&device), Some(device.clone()));
    let s = stream(&device);
    for power in 9..22 {
        let layout = Layout::with_alignment(5000, 1 << power).unwrap();
        let ptr = resource.allocate(layout, s).unwrap();
        assert!(ptr.is_aligned_to(1 << power));
        // SAFETY: the block came from this resource with this layout, and nothing uses it.
        unsafe { resource.deallocate(ptr, layout, s) };
    }
    assert_eq!(resource.inner().pool().used_bytes().unwrap(), 0);
    assert!(resource.take_faults().is_empty() && device.take_violations().is_empty());
}

#[test]
fn dropping_the_resource_frees_what_is_handed_out() {
    let device = device();
    let (resource, s) = (resource(&device), stream(&device));
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    device.launch_for(s, &[Access::write(ptr, MIB, 1)], 1_000_000);
    drop(resource);
    assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0));
    assert_eq!(device.take_violations(), []);
}

/// A hit asks the driver whether the stream captures, and for the memory; nothing else.
#[test]
fn a_request_and_a_free_make_two_calls_each() {
    let device = device();
    let counting = CountingDriver::new(device.clone());
    let resource = CudaAsyncMemoryResource::new(counting.clone(), defaults()).unwrap();
    let s = stream(&device);
    let before = counting.counts();
    let ptr = resource.allocate_bytes(MIB, s).unwrap();
    put(&resource, ptr, MIB, s);
    let made = counting.counts().since(&before);
    let calls: Vec<(CallKind, u64)> = made.iter().map(|(kind, counts)| (kind, counts.calls)).collect();
    let expected =
        [(CallKind::MemAllocAsync, 1), (CallKind::MemFreeAsync, 1), (CallKind::StreamIsCapturing, 2)];
    assert_eq!(calls, expected);
}

#[test]
fn memory_info_counts_what_the_pool_could_hand_out_again() {
    let device = device();
    let (resource, s) = (resource(&device), stream(&device));
    let total = 1 << 30;
    let free = || resource.memory_info().unwrap().free;
    assert_eq!(free(), total);
    let ptr = resource.allocate_bytes(8 * MIB, s).unwrap();
    assert_eq!(free(), total - 8 * MIB);
    put(&resource, ptr, 8 * MIB, s);
    assert_eq!((free(), device.used_bytes()), (total, 32 * MIB));
}

// --- Captures ---

/// On a stream that captures, a request is no node of the graph, and a block that comes back is neither: it
/// is free again when the stream is used after the capture.
#[test]
fn a_capturing_stream_is_served_outside_of_its_capture() {
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        let device = device();
        let resource = resource(&device);
        let (s, other) = (stream(&device), stream(&device));
        let before = resource.allocate_bytes(MIB, s).unwrap();
        device.lend(before, MIB, s);
        device.launch_for(s, &[Access::write(before, MIB, 1)], 1_000_000);

        device.begin_capture(s, mode).unwrap();
        let inside = resource.allocate_bytes(MIB, s).unwrap();
        device.lend(inside, MIB, s);
        assert_ne!(inside, before);
        device.launch(s, &[Access::write(inside, MIB, 2), Access::check(inside, MIB, 2)]);
        for ptr in [before, inside] {
            device.give_back(ptr, MIB, s);
            put(&resource, ptr, MIB, s);
        }
        let used = resource.pool().used_bytes().unwrap();
        assert_eq!(used, 2 * MIB, "the driver has them when the capture has ended");
        let info = resource.memory_info().unwrap();
        assert_eq!(info.free, info.total, "but they count as free");
        let elsewhere = resource.allocate_bytes(MIB, other).unwrap();
        assert!(elsewhere != before && elsewhere != inside, "{mode:?}");
        put(&resource, elsewhere, MIB, other);
        device.end_capture(s).unwrap_or_else(|error| panic!("{mode:?}: {error}"));

        let after = resource.allocate_bytes(1000, s).unwrap();
        assert_eq!(resource.pool().used_bytes().unwrap(), 1024);
        put(&resource, after, 1000, s);
        assert_eq!(device.take_violations(), []);
    }
}

/// The stream of blocks that came back during a capture may never be used again.
#[test]
fn blocks_of_a_capture_are_free_when_memory_is_out_and_at_trim() {
    let device = device();
    let resource = resource(&device);
    for is_trimmed in [false, true] {
        let (s, other) = (stream(&device), stream(&device));
        let block = resource.allocate_bytes(700 * MIB, s).unwrap();
        device.launch_for(s, &[Access::write(block, 700 * MIB, 1)], 1_000_000);
        device.begin_capture(s, CaptureMode::Global).unwrap();
        put(&resource, block, 700 * MIB, s);
        device.end_capture(s).unwrap();
        // SAFETY: the stream is this test's, and is not named again.
        unsafe { device.stream_destroy(s) }.unwrap();
        if is_trimmed {
            assert_eq!(resource.trim(0).unwrap(), 700 * MIB);
        }
        let next = resource.allocate_bytes(800 * MIB, other).unwrap();
        put(&resource, next, 800 * MIB, other);
        resource.trim(0).unwrap();
    }
    assert_eq!(device.take_violations(), []);
}

#[test]
fn out_of_memory_on_a_capturing_stream_says_what_to_do() {
    let device = device();
    let (resource, s) = (resource(&device), stream(&device));
    let kept = resource.allocate_bytes(700 * MIB, s).unwrap();
    device.begin_capture(s, CaptureMode::Global).unwrap();
    let (kind, text) = said(resource.allocate_bytes(700 * MIB, s));
    assert_eq!(kind, ErrorKind::OutOfMemory);
    let start = format!(
        "out of memory for 700MiB on stream {s} of DEVICE in `cuda_async`: a stream that captures a graph \
         waits for no other; ask outside the capture: it was "
    );
    assert!(text.starts_with(&start) && text.contains("it holds 700MiB: 700MiB in use in 1 block"), "{text}");
    assert!(
        text.contains("\n  caused by: cuMemAllocFromPoolAsync: CUDA_ERROR_OUT_OF_MEMORY (2): "),
        "{text}"
    );
    device.end_capture(s).unwrap();
    put(&resource, kept, 700 * MIB, s);
}
