//! Tests how the resources over the driver's pools answer mistakes.

use super::*;

/// Returns the message of the one misuse that the call causes.
fn refusal(call: impl FnOnce()) -> String {
    let ((), misuses): ((), Vec<Misuse>) = misuse_recorder::record(call);
    let [misuse] = &misuses[..] else { panic!("{misuses:?}") };
    misuse.to_string()
}

const NOT_IN_USE: &str = "in `cuda_async`: no live block of this resource starts there: the block is another \
                          resource's, or was freed before; free each block once, on the resource that \
                          allocated it";

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
        "deallocated {ptr} (1048576 bytes, stream {dead}) in `cuda_async`: the stream was destroyed before \
         the call, so the block becomes free only after all work on the device has ended; pass a stream that \
         is alive and is ordered after the block's uses"
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
        "driver error for 100B on stream {dead} of DEVICE in `cuda_async`: a stream, event or pool that this \
         call uses was destroyed; keep each of them until its last use: cuStreamIsCapturing: \
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
    let text = "not supported on DEVICE in `cuda_async_managed`: pools of managed memory need CUDA 13.0, but \
                the driver has 12.9; use the base `managed`";
    let refused = CudaAsyncManagedMemoryResource::new(driver.clone());
    assert_eq!(said(refused), (ErrorKind::Unsupported, text.to_owned()));
    driver.be_version(13_000);
    assert!(CudaAsyncManagedMemoryResource::new(driver).is_ok());
}

#[test]
fn a_pinned_pool_without_a_node_on_a_driver_before_cuda_13() {
    let driver = HookedDriver::new(device());
    driver.be_version(12_060);
    let text = "not supported on DEVICE in `cuda_async_pinned`: a pool of pinned memory on any NUMA node \
                needs CUDA 13.0, but the driver has 12.6; name a node, as in `cuda_async_pinned:numa=0`, or \
                use the base `pinned_host`";
    let options = CudaAsyncPinnedOptions::default();
    let refused = CudaAsyncPinnedMemoryResource::new(driver.clone(), options);
    assert_eq!(said(refused), (ErrorKind::Unsupported, text.to_owned()));
    assert!(CudaAsyncPinnedMemoryResource::new(driver, options.numa(Some(0))).is_ok());
}

#[test]
fn an_initial_size_above_the_maximum_or_the_device() {
    let refused = |options| said(CudaAsyncMemoryResource::new(device(), options));
    let above = "invalid argument on DEVICE in `cuda_async:initial=2MiB,max=1MiB`: the initial size of 2MiB \
                 exceeds the maximum of 1MiB; raise `max`";
    let options = defaults().initial_bytes(2 * MIB).maximum_bytes(Some(MIB));
    assert_eq!(refused(options), (ErrorKind::InvalidArgument, above.to_owned()));
    let (kind, text) = refused(defaults().initial_bytes(1 << 60));
    assert!(kind == ErrorKind::OutOfMemory && text.contains("1EiB exceeds the device's"), "{text}");
}

#[test]
fn more_than_the_maximum_is_out_of_memory() {
    let options = defaults().maximum_bytes(Some(2 * MIB));
    let device = device();
    let resource = CudaAsyncMemoryResource::new(device.clone(), options).unwrap();
    let refused = resource.allocate_bytes(3 * MIB, StreamRef::LEGACY);
    assert!(refused.as_ref().is_err_and(|error| error.is_impossible()), "{refused:?}");
    let (kind, text) = said(refused);
    assert_eq!(kind, ErrorKind::OutOfMemory);
    for part in [
        "out of memory for 3MiB on stream 0 of DEVICE in `cuda_async:max=2MiB`: the request is larger than \
         the pool's maximum; raise the maximum: 1MiB more is needed",
        "\n  - raise the maximum by 1MiB",
        "the maximum is 2MiB; the device has ",
        "caused by: cuMemAllocFromPoolAsync: CUDA_ERROR_OUT_OF_MEMORY (2)",
        "the pool holds at most 2097152 bytes",
    ] {
        assert!(text.contains(part), "{text}");
    }
    // Free memory in other sizes makes room.
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
            "`handles=usb` of `cuda_async`: `usb` is not a kind of handle; write none, fd, fabric or \
             fd/fabric",
        ),
        ("cuda_async:hw_decompress=yes", "`hw_decompress=yes` of `cuda_async`: write auto, on or off"),
        (
            "cuda_async_view:pool=other",
            "`pool=other` of `cuda_async_view`: write default or current; for any other \
             pool, build the resource from the pool's handle",
        ),
        ("cuda_async_managed:max=1GiB", "`cuda_async_managed` takes no parameters; leave `max` out"),
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
