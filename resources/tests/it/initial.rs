//! Tests the memory that a pool takes when it is built, and how the pool reaches its maximum.

use millpond_core::StreamRef;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Driver, DriverHandle, Result,
};
use millpond_driver::sim::{SimConfig, SimDevice};

const MIB: u64 = 1 << 20;

fn build(text: &str, driver: &DriverHandle) -> Result<AnyResource> {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    text.parse::<StackSpec>().expect("a stack").build(&table, driver)
}

/// If a maximum is not a multiple of a page, only the part of the last page is lost.
#[test]
fn issue_9_the_initial_size_is_taken_under_any_maximum() {
    for (text, reserved) in [
        ("cuda+pool:initial=1GB,max=1GB", 1_000_000_000 / (2 * MIB) * (2 * MIB)),
        ("cuda+pool:initial=1GB", 1_000_000_000_u64.next_multiple_of(2 * MIB)),
        ("cuda+pool:initial=1000000000B,max=1000000512B", 1_000_000_000 / (2 * MIB) * (2 * MIB)),
        ("cuda+pool:initial=1GB,max=1002MiB", 1_000_000_000_u64.next_multiple_of(2 * MIB)),
        ("cuda+pool:initial=1GB,max=1GB,pages=off", 1_000_000_000),
    ] {
        let device = SimDevice::new(SimConfig::h200());
        let driver: DriverHandle = device.clone();
        let pool = build(text, &driver).expect("there is room");
        let statistics = pool.statistics().expect("a pool counts");
        assert_eq!(statistics.bytes_reserved, reserved, "{text}");
        assert_eq!(device.live_bytes(), reserved, "{text}");
        let taken = device.live_bytes();
        let ptr = pool.allocate_bytes(900 * MIB, StreamRef::LEGACY).expect("it was taken before");
        assert_eq!(device.live_bytes(), taken, "{text}");
        // SAFETY: the block came from this pool with this size and is freed once.
        unsafe { pool.deallocate_bytes(ptr, 900 * MIB, StreamRef::LEGACY) };
    }
}

/// Percentages of free memory can be any number of bytes.
#[test]
fn issue_9_half_of_what_is_free_is_taken() {
    let device = SimDevice::new(SimConfig::h200());
    let _other = device.mem_alloc(600 * MIB + 512).expect("there is room");
    let free = device.mem_get_info().expect("the device is well").free;
    let driver: DriverHandle = device.clone();
    let pool = build("cuda+pool:initial=50%,max=50%", &driver).expect("there is room");
    let reserved = pool.statistics().expect("a pool counts").bytes_reserved;
    assert!(reserved > free / 2 - 4 * MIB && reserved <= free / 2, "{reserved} of {free}");
}

/// An initial size that is not available is an error, and never ignored.
#[test]
fn issue_9_an_initial_size_that_is_not_there_is_an_error() {
    for text in ["cuda+pool:initial=1GiB", "cuda+pool:initial=1GiB,pages=off"] {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let other = device.mem_alloc(MIB).expect("there is room");
        let driver: DriverHandle = device.clone();
        let error = build(text, &driver).expect_err("a little is missing");
        assert!(error.is_out_of_memory(), "{error}");
        assert!(error.to_string().contains("initial size"), "{error}");
        // SAFETY: nothing uses the block.
        unsafe { device.mem_free(other).expect("it was allocated") };
        // Memory that another pool keeps is reclaimed for it.
        let idle = build("cuda+pool:initial=500MiB", &driver).expect("there is room");
        build(text, &driver).expect("the other pool returns its free memory");
        assert_eq!(idle.statistics().expect("a pool counts").bytes_reserved, 0);
    }
}

/// Once the regions of RMM's pool with a maximum are in parts, it cannot reach the maximum (its issue 1957).
/// Its growth may exceed a maximum that is no multiple of 256.
#[test]
fn a_pool_reaches_its_maximum_after_churn_and_never_passes_it() {
    for text in ["cuda+pool:max=67108865,pages=off", "managed+pool:max=67108865", "cuda+pool:max=67108865"] {
        let driver: DriverHandle = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let pool = build(text, &driver).expect("there is room");
        let free = |ptr, bytes| {
            // SAFETY: the block came from this pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) }
        };
        for bytes in [300 << 10, MIB, 3 * MIB + 256, 10 * MIB] {
            // Blocks that no longer fit between the others are refused.
            let take = |_| pool.allocate_bytes(bytes, StreamRef::LEGACY).ok();
            let blocks: Vec<_> = (0..48 * MIB / bytes).filter_map(take).collect();
            let reserved = pool.statistics().expect("a pool counts").bytes_reserved;
            assert!(reserved <= 64 * MIB + 1, "{text} holds {reserved}");
            blocks.into_iter().for_each(|ptr| free(ptr, bytes));
        }
        let all = pool.allocate_bytes(64 * MIB, StreamRef::LEGACY).expect("all of the maximum is free");
        assert!(pool.allocate_bytes(1, StreamRef::LEGACY).expect_err("no byte is left").is_out_of_memory());
        free(all, 64 * MIB);
    }
}

/// RMM's test ForceGrowth, in MiB: upstream refuses everything that a pool asks for beyond the request.
#[test]
fn a_pool_over_a_limit_takes_what_requests_need() {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    for text in ["cuda+limiting:limit=6000MiB+pool", "cuda+limiting:limit=6000MiB+pool:max=8GiB"] {
        let table = LayerTable::new(millpond_resources::LAYERS.iter().copied())
            .with(millpond_adaptors::LAYERS.iter().copied());
        let pool = text.parse::<StackSpec>().expect("a stack").build(&table, &driver).expect("no memory yet");
        for bytes in [1000, 4000, 500] {
            let served = pool.allocate_bytes(bytes * MIB, StreamRef::LEGACY);
            served.unwrap_or_else(|error| panic!("{bytes} MiB: {error}"));
        }
        let error = pool.allocate_bytes(2000 * MIB, StreamRef::LEGACY).expect_err("the limit is 6000 MiB");
        assert!(error.is_out_of_memory(), "{error}");
    }
}
