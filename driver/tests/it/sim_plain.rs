//! Tests how much memory allocations take from the simulated device: plain memory takes whole pages, managed
//! memory takes none.

use std::sync::Arc;

use millpond_core::driver::{Driver, DriverError};
use millpond_core::{DevicePtr, StreamRef};
use millpond_driver::CountingDriver;
use millpond_driver::sim::{Access, SimConfig, SimDevice};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(1 << 30))
}

fn free(driver: &dyn Driver, ptr: DevicePtr) {
    // SAFETY: every caller passes a living block that nothing uses, and does not use it again.
    unsafe { driver.mem_free(ptr) }.unwrap();
}

/// Blocks of one size, and the device bytes that they take, as measured on an H200. There, a page that the
/// context already has may hold some of them.
const MEASURED: [(u64, u64, u64); 21] = [
    (512, 256, PAGE),
    (4096, 1, PAGE),
    (4096, 513, 2 * PAGE),
    (4096, 3000, 14 * MIB),
    (256, 65_536, 16 * MIB),
    (256, 131_073, 36 * MIB),
    (256, 200_000, 52 * MIB),
    (256, 300_000, 86 * MIB),
    (256, 420_000, 128 * MIB),
    (256, 524_289, 172 * MIB),
    (256, 700_000, 256 * MIB),
    (16, 2 * MIB + 1, 64 * MIB),
    (16, 33_554_433, 544 * MIB),
    (512, 100 * KIB, 52 * MIB),
    (64, 512 * KIB, 32 * MIB),
    (64, MIB, 64 * MIB),
    (64, MIB + 256, 128 * MIB),
    (64, 3 * MIB / 2, 128 * MIB),
    (64, 2 * MIB, 128 * MIB),
    (64, 2 * MIB + 4 * KIB, 256 * MIB),
    (64, 5 * MIB, 384 * MIB),
];

#[test]
fn issue_9_plain_memory_takes_what_it_takes_on_an_h200() {
    for (count, bytes, gone) in MEASURED {
        let (device, falling) =
            (device(), SimDevice::new(SimConfig::with_capacity(1 << 30).falling_addresses()));
        for device in [device, falling] {
            let counting = CountingDriver::new(device.clone());
            counting.probe_device().unwrap();
            let blocks: Vec<_> = (0..count).map(|_| counting.mem_alloc(bytes).unwrap()).collect();
            let info = device.mem_get_info().unwrap();
            assert_eq!(info.total - info.free, gone, "{count} blocks of {bytes}");
            assert_eq!((device.used_bytes(), device.peak_bytes()), (gone, gone));
            assert_eq!((counting.bytes_taken(), counting.probed_peak_bytes()), (gone, gone));
            assert_eq!(device.live_bytes(), count * bytes.next_multiple_of(512));
            blocks.into_iter().for_each(|block| free(&*counting, block));
            assert_eq!((device.used_bytes(), counting.bytes_taken()), (0, 0));
            assert_eq!(counting.peak_bytes_taken(), gone);
        }
    }
}

#[test]
fn issue_9_small_blocks_of_all_sizes_share_pages_and_never_cross_one() {
    let device = device();
    let blocks: Vec<_> = [300 * KIB, 700 * KIB, MIB, 512, 40 * KIB]
        .map(|bytes| (device.mem_alloc(bytes).unwrap(), bytes))
        .into();
    assert_eq!(device.used_bytes(), 2 * PAGE, "the first three fill most of a page");
    for (ptr, bytes) in &blocks {
        assert_eq!(ptr.address() / PAGE, (ptr.address() + bytes - 1) / PAGE, "{bytes} bytes cross a page");
    }
    // The tightest hole: the end of the first page has 24 KiB left, the second page more.
    let end = device.mem_alloc(20 * KIB).unwrap();
    assert_eq!(end.address() / PAGE, blocks[0].0.address() / PAGE);
    for (ptr, _) in blocks {
        free(&*device, ptr);
    }
    assert_eq!(device.used_bytes(), PAGE, "one page still holds a block");
    free(&*device, end);
    assert_eq!(device.used_bytes(), 0);
}

/// As measured on an H200: 700 KiB and 100 KiB alternate, the large ones are freed, and 300 KiB go into their
/// holes.
#[test]
fn issue_9_holes_in_pages_are_used_as_on_an_h200() {
    let device = device();
    let all: Vec<_> = (0..400)
        .map(|index| device.mem_alloc(if index % 2 == 0 { 700 } else { 100 } * KIB).unwrap())
        .collect();
    assert_eq!(device.used_bytes(), 200 * MIB);
    all.iter().step_by(2).for_each(|block| free(&*device, *block));
    assert_eq!(device.used_bytes(), 68 * MIB);
    let holes: Vec<_> = (0..200).map(|_| device.mem_alloc(300 * KIB).unwrap()).collect();
    assert_eq!(device.used_bytes(), 90 * MIB);
    all.into_iter().skip(1).step_by(2).chain(holes).for_each(|block| free(&*device, block));
    assert_eq!((device.used_bytes(), device.live_bytes()), (0, 0));
}

#[test]
fn issue_9_a_device_is_full_when_its_pages_are() {
    let device = SimDevice::new(SimConfig::with_capacity(4 * MIB));
    let small = device.mem_alloc(1).unwrap();
    let large = device.mem_alloc(2 * MIB).unwrap();
    let error = device.mem_alloc(2 * MIB).unwrap_err();
    assert!(error.is_out_of_memory() && error.to_string().contains("2097152"), "{error}");
    let beside = device.mem_alloc(MIB + 1).unwrap();
    assert_eq!(beside.address() / PAGE, small.address() / PAGE, "its page has room");
    assert!(device.mem_alloc(MIB).unwrap_err().is_out_of_memory());
    [small, large, beside].into_iter().for_each(|block| free(&*device, block));
    assert_eq!((device.used_bytes(), device.live_bytes()), (0, 0));
    assert_eq!(device.violations(), []);
}

/// The counting driver sees the pages of the addresses, so it need not know how the device places blocks.
#[test]
fn issue_9_the_counting_driver_counts_the_pages_that_are_gone() {
    let device = device();
    let counting = CountingDriver::new(device.clone());
    let (mut live, mut state) = (Vec::new(), 7_u64);
    for _ in 0..4000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let draw = state >> 33;
        if draw.is_multiple_of(5) && !live.is_empty() || live.len() > 400 {
            free(&*counting, live.swap_remove(draw as usize % live.len()));
        } else {
            let bytes = 1 + draw % if draw.is_multiple_of(3) { 3 * MIB } else { 60 * KIB };
            live.extend(counting.mem_alloc(bytes));
        }
        assert_eq!(counting.bytes_taken(), device.used_bytes());
    }
    live.into_iter().for_each(|block| free(&*counting, block));
    assert_eq!((counting.bytes_taken(), counting.peak_bytes_taken()), (0, device.peak_bytes()));
}

#[test]
fn issue_9_managed_memory_may_exceed_the_device_and_takes_nothing_from_it() {
    let device = SimDevice::new(SimConfig::with_capacity(256 * MIB));
    let managed = device.mem_alloc_managed(600 * MIB).unwrap();
    let info = device.mem_get_info().unwrap();
    assert_eq!((info.free, device.used_bytes(), device.live_bytes()), (256 * MIB, 0, 600 * MIB));
    device.launch(StreamRef::LEGACY, &[Access::write(managed.offset(599 * MIB), MIB, 9)]);
    device.launch(StreamRef::LEGACY, &[Access::check(managed.offset(599 * MIB), MIB, 9)]);
    let plain = device.mem_alloc(200 * MIB).unwrap();
    let error = device.mem_alloc_managed(200 * MIB).unwrap_err();
    assert_eq!(error.code(), DriverError::OUT_OF_MEMORY, "at most three times the device's memory");
    assert!(error.to_string().contains("host memory"), "{error}");
    [managed, plain].into_iter().for_each(|block| free(&*device, block));
    assert_eq!((device.live_bytes(), device.violations()), (0, Vec::new()));
}
