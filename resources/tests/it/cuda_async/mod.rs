//! Tests the resources over the driver's pools: the cases of RMM's tests, the mistakes that they refuse, and
//! their work during graph captures.

mod mistakes;

use std::sync::Arc;

use millpond_core::driver::{
    CaptureMode, HandleTypes, MemAllocationType, MemLocation, MemPoolAttribute, MemoryKind, StreamFlags,
};
use millpond_core::misuse::Misuse;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    Accessibility, AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver,
    DriverError, DriverHandle, ErrorKind, Layout, Result, StreamRef, find_trait,
};
use millpond_driver::CallKind;
use millpond_driver::CountingDriver;
use millpond_driver::sim::{Access, FaultPlan, SimConfig, SimDevice};
use millpond_resources::memory_pool::{DriverPool, MemoryPool, MemoryPoolOptions, PoolReuse};
use millpond_resources::{
    CudaAsyncManagedMemoryResource, CudaAsyncMemoryResource, CudaAsyncOptions, CudaAsyncPinnedMemoryResource,
    CudaAsyncPinnedOptions, CudaAsyncViewMemoryResource, HwDecompress, LAYERS,
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

/// Frees a block. Most tests pass a block that they allocated, with its size, once.
fn put(resource: &dyn DeviceMemoryResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: nothing uses the block. If the pointer is no block, the resource finds out.
    unsafe { resource.deallocate_bytes(ptr, bytes, stream) }
}

fn build(text: &str, driver: DriverHandle) -> Result<AnyResource> {
    text.parse::<StackSpec>()?.build(&LayerTable::new(LAYERS.iter().copied()), &driver)
}

/// Returns the kind and the text of an error. The text calls the device `DEVICE`.
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
    let options = defaults().initial_bytes(100 * MIB);
    let resource = CudaAsyncMemoryResource::new(device.clone(), options).unwrap();
    let pool = resource.pool();
    assert_eq!((pool.reserved_bytes().unwrap(), pool.used_bytes().unwrap()), (100 * MIB, 0));
    let s = stream(&device);
    let ptr = resource.allocate_bytes(100 * MIB, s).unwrap();
    assert_eq!(pool.reserved_high().unwrap(), 100 * MIB, "a request takes reserved memory first");
    put(&resource, ptr, 100 * MIB, s);
}

#[test]
fn explicit_release_threshold() {
    let options = defaults().release_threshold(Some(1000));
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
        let options = defaults().release_threshold(release_threshold);
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
    let options = defaults().handles(HandleTypes::FABRIC);
    let text = "not supported on DEVICE in `cuda_async:handles=fabric`: fabric handles need a GPU of compute \
                capability 9.0 or later";
    let (kind, refused) = said(CudaAsyncMemoryResource::new(SimDevice::new(SimConfig::a100()), options));
    assert!(kind == ErrorKind::Unsupported && refused.starts_with(text), "{refused}");
    if cfg!(unix) {
        let resource = CudaAsyncMemoryResource::new(device(), options).unwrap();
        assert_eq!(resource.pool().used_bytes().unwrap(), 0);
    }
}

/// RMM's defect: it caches the capabilities of the first device that is asked. Here each driver answers for
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
        let options = defaults().hw_decompress(hw_decompress);
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
/// takes it again.
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
    // The program's setting stays.
    resource.pool().set_release_threshold(5).unwrap();
    let later = CudaAsyncManagedMemoryResource::new(device).unwrap();
    assert_eq!(later.pool().release_threshold().unwrap(), 5);
}

// --- Pinned host memory ---

/// Host and device use a block at the same address, in stream order.
#[test]
fn pinned_memory_is_for_host_and_device() {
    let device = device();
    for options in [CudaAsyncPinnedOptions::default(), CudaAsyncPinnedOptions::default().numa(Some(0))] {
        let resource = CudaAsyncPinnedMemoryResource::new(device.clone(), options).unwrap();
        assert_eq!(resource.accessibility(), Accessibility::DEVICE_AND_HOST);
        assert!(resource.is_stream_ordered());
        let s = stream(&device);
        let ptr = resource.allocate_bytes(MIB, s).unwrap();
        assert_eq!(device.pointer_mem_pool(ptr), Ok(Some(resource.pool().raw())));
        assert_eq!(device.pointer_kind(ptr), Ok(MemoryKind::Host));
        device.launch(s, &[Access::write(ptr, MIB, 7), Access::check(ptr, MIB, 7)]);
        device.stream_synchronize(s).unwrap();
        put(&resource, ptr, MIB, s);
        // The pool keeps its memory at a synchronisation.
        device.synchronize().unwrap();
        assert_eq!(resource.pool().release_threshold().unwrap(), u64::MAX);
        assert!(resource.pool().reserved_bytes().unwrap() >= MIB);
        assert_eq!(resource.memory_info().unwrap().total, device.host_memory_info().unwrap().total);
        assert_eq!(device.take_violations(), []);
    }
}

#[test]
fn a_pinned_pool_has_the_options_of_its_text() {
    let device = device();
    let text = "cuda_async_pinned:numa=0,initial=2MiB,release_threshold=4MiB,max=64MiB,reuse=own,handles=fd";
    let built = build(text, device).unwrap();
    assert_eq!(built.to_string(), text);
    let pool = find_trait::<dyn DriverPool>(&built).unwrap().memory_pool().clone();
    let props = pool.properties().unwrap();
    assert_eq!((props.location, props.max_bytes), (MemLocation::HostNuma(0), 64 * MIB));
    assert!(props.handles.contains(HandleTypes::POSIX_FD) && pool.reserved_bytes().unwrap() >= 2 * MIB);
    assert_eq!((pool.release_threshold().unwrap(), pool.reuse().unwrap()), (4 * MIB, PoolReuse::OWN_STREAM));
    let refused = built.allocate_bytes(65 * MIB, StreamRef::LEGACY).unwrap_err();
    assert!(refused.is_out_of_memory() && refused.to_string().contains("raise the maximum"), "{refused}");
}

#[test]
fn a_pinned_pool_that_the_driver_lacks_is_refused_with_a_remedy() {
    let refuse = |text: &str| build(text, device()).unwrap_err();
    let refused = refuse("cuda_async_pinned:numa=70000");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.to_string().contains("NUMA node 70000"), "{refused}");
    let old = device();
    old.set_faults(FaultPlan::nth_of(CallKind::MemPool, 0, DriverError::NOT_SUPPORTED));
    let refused = build("cuda_async_pinned:numa=0", old).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let why = "makes no pool of pinned host memory on NUMA node 0 with these options; use the base \
               `pinned_host`";
    assert!(refused.to_string().contains(why), "{refused}");
    for text in ["cuda_async:max=0", "cuda_async_pinned:max=0B"] {
        let refused = refuse(text);
        let is_told = refused.to_string().contains("raise `max`, or leave it out for no maximum");
        assert!(refused.kind() == ErrorKind::InvalidArgument && is_told, "{refused}");
    }
    let refused = refuse("cuda_async_pinned:max=50%").to_string();
    assert!(refused.contains("write a size such as 1GiB"), "{refused}");
    let refused = refuse("cuda_async_pinned:initial=2MiB,max=1MiB").to_string();
    assert!(refused.contains("exceeds the maximum of 1MiB"), "{refused}");
    let refused = refuse("cuda_async_pinned:handles=usb").to_string();
    assert!(refused.contains("`handles=usb` of `cuda_async_pinned`: `usb` is not a kind"), "{refused}");
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

/// A null handle names no pool, and the driver says so. RMM's constructor refuses it.
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

/// A request that the pool can serve makes two driver calls: one checks for a capture, and one allocates.
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

/// On a capturing stream, neither a request nor a free becomes a node of the graph. The block is free again
/// when the stream is used after the capture.
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

/// The stream of blocks that were freed during a capture may never be used again.
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
        "out of memory for 700MiB on stream {s} of DEVICE in `cuda_async`: a capturing stream cannot wait \
         for other streams; allocate outside the capture: "
    );
    let holds = "the resource holds 700MiB: 700MiB in use in 1 block";
    assert!(text.starts_with(&start) && text.contains(holds), "{text}");
    assert!(
        text.contains("\n  caused by: cuMemAllocFromPoolAsync: CUDA_ERROR_OUT_OF_MEMORY (2): "),
        "{text}"
    );
    device.end_capture(s).unwrap();
    put(&resource, kept, 700 * MIB, s);
}
