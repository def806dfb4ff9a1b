//! Tests how the simulated device counts captured work, which runs only when its graph is launched.

use std::sync::Arc;

use millpond_core::driver::{AccessFlags, CaptureMode, Driver, PhysicalProps, StreamFlags};
use millpond_core::{DevicePtr, StreamRef};
use millpond_driver::sim::{Access, SimConfig, SimDevice, ViolationKind};

const PAGE: u64 = 2 << 20;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::h200())
}

fn stream(device: &SimDevice) -> StreamRef {
    device.stream_create(StreamFlags::NON_BLOCKING).unwrap()
}

fn kinds(device: &SimDevice) -> Vec<ViolationKind> {
    device.take_violations().into_iter().map(|violation| violation.kind).collect()
}

/// A mapped page.
fn mapped(device: &SimDevice) -> DevicePtr {
    let handle = device.mem_create(PAGE, PhysicalProps::default()).unwrap();
    let base = device.mem_address_reserve(PAGE, 0).unwrap();
    // SAFETY: the addresses were just reserved.
    unsafe {
        device.mem_map(base, PAGE, handle).unwrap();
        device.mem_set_access(base, PAGE, AccessFlags::ReadWrite, &[device.device()]).unwrap();
    }
    base
}

/// No launch is under way. So a mapping used only by captured work may end, whichever stream frees the block.
#[test]
fn a_mapping_ends_without_a_wait_for_what_was_captured() {
    for frees_in_capture in [false, true] {
        for is_used_outside in [false, true] {
            let device = device();
            let [s, other] = [(); 2].map(|()| stream(&device));
            let base = mapped(&device);
            device.lend(base, 4096, other);
            if is_used_outside {
                device.launch(s, &[Access::read(base, 4096)]);
            }
            device.begin_capture(s, CaptureMode::Relaxed).unwrap();
            device.launch(s, &[Access::read(base, 4096)]);
            if frees_in_capture {
                device.give_back(base, 4096, s);
            }
            device.end_capture(s).unwrap();
            if !frees_in_capture {
                device.give_back(base, 4096, other);
            }
            // SAFETY: the page is mapped; the device reports any stream that may still use it.
            unsafe { device.mem_unmap(base, PAGE) }.unwrap();
            let expected = if is_used_outside { vec![ViolationKind::EarlyReturn] } else { Vec::new() };
            assert_eq!(kinds(&device), expected, "frees in the capture: {frees_in_capture}");
        }
    }
}
