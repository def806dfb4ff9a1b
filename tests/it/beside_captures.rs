//! Tests that graphs captured on another thread stay valid during each call of the resources and containers
//! that `tests/it/captures` does not cover.

use std::sync::Arc;

use millpond::containers::{DeviceBuffer, HostStaging};
use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::driver::{CaptureMode, StreamFlags};
use millpond::resources::{CudaMemoryResource, HostMemoryResource, HostResource, PinnedHostMemoryResource};
use millpond::stack::StackSpec;
use millpond::{DeviceMemoryResource, DeviceMemoryResourceExt, Driver, DriverHandle, Layout, StreamRef};

const MIB: u64 = 1 << 20;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn stream(device: &SimDevice) -> StreamRef {
    device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
}

/// Runs a call on another thread while this thread captures in the strictest mode.
fn beside_a_capture(call: &str, device: &Arc<SimDevice>, act: impl FnOnce() + Send) {
    let capturing = stream(device);
    device.begin_capture(capturing, CaptureMode::Global).unwrap();
    std::thread::scope(|scope| scope.spawn(act).join().unwrap());
    device.end_capture(capturing).unwrap_or_else(|error| panic!("{call}: {error}"));
}

#[test]
fn resources_leave_captures_of_other_threads_alone() {
    let stacks = [
        "host",
        "system",
        "sam_headroom:headroom=1MiB",
        "pinned_host",
        "cuda_async",
        "cuda_async_managed",
        "cuda_async_pinned",
        "cuda+arena:size=4MiB",
    ];
    for text in stacks {
        let device = device();
        let driver: DriverHandle = device.clone();
        let stack = text.parse::<StackSpec>().unwrap().build(&millpond::layers(), &driver).unwrap();
        let own = stream(&device);
        let mut blocks = vec![stack.allocate_bytes(8 * MIB, own).unwrap()];
        beside_a_capture(&format!("{text}: allocate"), &device, || {
            blocks.push(stack.allocate_bytes(8 * MIB, own).unwrap());
        });
        beside_a_capture(&format!("{text}: memory_info"), &device, || {
            stack.memory_info().unwrap();
        });
        beside_a_capture(&format!("{text}: deallocate"), &device, || {
            for block in blocks {
                // SAFETY: each block came from this stack with this size, once, and no work uses it.
                unsafe { stack.deallocate_bytes(block, 8 * MIB, own) };
            }
        });
        beside_a_capture(&format!("{text}: trim"), &device, || {
            stack.trim(0).unwrap();
        });
        beside_a_capture(&format!("{text}: memory_report"), &device, || {
            stack.memory_report();
        });
        beside_a_capture(&format!("{text}: allocate_sync"), &device, || {
            let block = stack.allocate_sync(Layout::new(MIB)).unwrap();
            // SAFETY: as above.
            unsafe { stack.deallocate_sync(block, Layout::new(MIB)) };
        });
        beside_a_capture(&format!("{text}: drop"), &device, || drop(stack));
        assert_eq!(device.take_violations(), [], "{text}");
    }
}

#[test]
fn containers_leave_captures_of_other_threads_alone() {
    let device = device();
    let own = stream(&device);
    let cuda = CudaMemoryResource::new(device.clone()).into_any();
    let staging = HostStaging::new(device.clone());
    let mut buffer = DeviceBuffer::from_host(&[1_u8; 4096], own, cuda.clone()).unwrap();
    let copy = buffer.copy_to_host_async::<u8>(&staging).unwrap();
    beside_a_capture("HostCopy::is_done", &device, || _ = copy.is_done().unwrap());
    beside_a_capture("HostCopy::wait", &device, || assert_eq!(copy.wait().unwrap(), [1; 4096]));
    beside_a_capture("copy_from_host_async", &device, || {
        buffer.copy_from_host_async(&[2_u8; 100], &staging).unwrap();
    });
    beside_a_capture("copy_to_host_async", &device, || {
        drop(buffer.copy_to_host_async::<u8>(&staging).unwrap());
    });
    beside_a_capture("HostStaging", &device, || drop(staging));
    let per_thread = DeviceBuffer::new(4096, StreamRef::PER_THREAD, cuda).unwrap();
    beside_a_capture("a per-thread buffer that another thread drops", &device, || drop(per_thread));
    let host = HostResource::new(PinnedHostMemoryResource::new(device.clone())).unwrap();
    beside_a_capture("HostResource", &device, || {
        let block = host.allocate(Layout::new(100)).unwrap();
        // SAFETY: the block came from this resource with this layout, once.
        unsafe { host.deallocate(block, Layout::new(100)) };
        drop(host);
    });
}
