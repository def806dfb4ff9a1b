//! Tests the models' rules on a simulated device.

use millpond_core::{AnyResource, DeviceMemoryResourceExt, DevicePtr, StreamRef};
use millpond_driver::DeviceSpec;

const MIB: u64 = 1 << 20;

fn build(stack: &str, device: &str) -> AnyResource {
    let driver = device.parse::<DeviceSpec>().unwrap().open().unwrap();
    stack.parse::<millpond_core::stack::StackSpec>().unwrap().build(&crate::layers(), &driver).unwrap()
}

fn allocate(resource: &AnyResource, bytes: u64) -> DevicePtr {
    resource.allocate_bytes(bytes, StreamRef::LEGACY).unwrap()
}

fn free(resource: &AnyResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: each test gives each block back once, with its size.
    unsafe { resource.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
}

fn reserved(resource: &AnyResource) -> u64 {
    resource.statistics().unwrap().bytes_reserved
}

#[test]
fn torch_gives_unused_segments_back_before_it_fails() {
    let torch = build("torch", "sim:64MiB");
    let small = allocate(&torch, 1000);
    let large = allocate(&torch, 30 * MIB);
    assert_eq!(reserved(&torch), 32 * MIB);
    free(&torch, large, 30 * MIB);
    assert!(torch.allocate_bytes(63 * MIB, StreamRef::LEGACY).unwrap_err().is_out_of_memory());
    assert_eq!(reserved(&torch), 2 * MIB, "the segment went back");
    allocate(&torch, 60 * MIB);
    free(&torch, small, 1000);
}

#[test]
fn torch_keeps_oversize_blocks_whole() {
    let torch = build("torch:max_split_size_mb=32", "sim:1GiB");
    let block = allocate(&torch, 100 * MIB);
    free(&torch, block, 100 * MIB);
    allocate(&torch, 24 * MIB);
    assert_eq!(reserved(&torch), 124 * MIB, "a smaller request does not split it");
    assert_eq!(allocate(&torch, 90 * MIB), block);
}

#[test]
fn torch_releases_no_part_of_a_growing_segment_as_an_oversize_block() {
    let torch = build("torch:expandable_segments=True,max_split_size_mb=21", "sim:128MiB");
    let blocks = [50, 30, 40].map(|mib| (allocate(&torch, mib * MIB), mib * MIB));
    assert_eq!(reserved(&torch), 120 * MIB);
    free(&torch, blocks[0].0, blocks[0].1);
    // The free block is oversize, too large for this request, and a part of a segment: its pages go, and come
    // again.
    let again = allocate(&torch, 25 * MIB);
    assert_eq!(again, blocks[0].0);
    assert_eq!(reserved(&torch), 120 * MIB);
    for (ptr, bytes) in [blocks[1], blocks[2], (again, 25 * MIB)] {
        free(&torch, ptr, bytes);
    }
    assert_eq!(torch.trim(0).unwrap(), 120 * MIB);
}

#[test]
fn torch_maps_pages_where_segments_grow() {
    let torch = build("torch:expandable_segments=True", "sim:256MiB");
    let first = allocate(&torch, 30 * MIB);
    assert_eq!(reserved(&torch), 40 * MIB);
    let second = allocate(&torch, 30 * MIB);
    assert_eq!(second.address() - first.address(), 30 * MIB);
    assert_eq!(reserved(&torch), 60 * MIB);
    free(&torch, first, 30 * MIB);
    assert_eq!(torch.trim(0).unwrap(), 20 * MIB, "one page is free as a whole");
    free(&torch, second, 30 * MIB);
    assert_eq!(torch.trim(0).unwrap(), 40 * MIB);
    assert_eq!(reserved(&torch), 0);
}

#[test]
fn torch_waits_for_the_other_stream_that_a_block_is_freed_on() {
    let torch = build("torch", "sim:64MiB");
    let driver = millpond_core::DriverHandle::clone(torch.driver());
    let other = driver.stream_create(millpond_core::driver::StreamFlags::NON_BLOCKING).unwrap();
    let block = allocate(&torch, 40 * MIB);
    // SAFETY: nothing uses the block.
    unsafe { torch.deallocate_bytes(block, 40 * MIB, other) };
    assert_eq!(allocate(&torch, 40 * MIB), block, "the device is idle, so the event has passed");
}

#[test]
fn torch_waits_for_other_streams_before_it_empties_its_cache() {
    let torch = build("torch", "sim:64MiB");
    let driver = millpond_core::DriverHandle::clone(torch.driver());
    let other = driver.stream_create(millpond_core::driver::StreamFlags::NON_BLOCKING).unwrap();
    let block = allocate(&torch, 40 * MIB);
    // SAFETY: nothing uses the block.
    unsafe { torch.deallocate_bytes(block, 40 * MIB, other) };
    assert_eq!(torch.trim(0).unwrap(), 40 * MIB);
}

#[test]
fn torch_decides_between_blocks_of_one_size_by_address_or_by_age() {
    for (stack, takes_old) in [("torch:ties=age", true), ("torch", false)] {
        let torch = build(stack, "sim:1GiB");
        let low = allocate(&torch, 64 * MIB);
        let old = allocate(&torch, 64 * MIB);
        free(&torch, low, 64 * MIB);
        torch.trim(0).unwrap();
        let new = allocate(&torch, 64 * MIB);
        assert!(new.address() < old.address(), "the driver reuses the address");
        free(&torch, new, 64 * MIB);
        free(&torch, old, 64 * MIB);
        assert_eq!(allocate(&torch, 60 * MIB), if takes_old { old } else { new }, "{stack}");
    }
}

#[test]
fn torch_has_segments_of_their_own_from_10_mib_whatever_the_large_segment_size_is() {
    let torch = build("torch:large_segment_size_mb=40", "sim:1GiB");
    allocate(&torch, 10 * MIB);
    assert_eq!(reserved(&torch), 10 * MIB);
    allocate(&torch, 9 * MIB);
    assert_eq!(reserved(&torch), 50 * MIB);
}

#[test]
fn torch_rounds_unsplit_blocks_by_up_to_the_large_segment_size() {
    for (large, reserved_mib) in [(40, 200), (20, 362)] {
        let torch = build(&format!("torch:large_segment_size_mb={large},max_split_size_mb=64"), "sim:1GiB");
        let block = allocate(&torch, 200 * MIB);
        free(&torch, block, 200 * MIB);
        allocate(&torch, 162 * MIB);
        assert_eq!(reserved(&torch), reserved_mib * MIB);
    }
}

#[test]
fn pytorch_says_what_is_missing() {
    let error = |params: &str| {
        let stack = format!("pytorch:{params}").parse::<millpond_core::stack::StackSpec>().unwrap();
        let driver = "sim:64MiB".parse::<DeviceSpec>().unwrap().open().unwrap();
        stack.build(&crate::layers(), &driver).unwrap_err().to_string()
    };
    let text = error("folder=/nowhere");
    assert!(text.contains("/nowhere: there is no PyTorch; name its environment"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let lib = folder.path().join("torch/lib");
    std::fs::create_dir_all(&lib).unwrap();
    std::fs::write(lib.join("libc10.so"), "").unwrap();
    let text = error(&format!("folder={}", folder.path().display()));
    assert!(text.contains("this PyTorch has no CUDA allocator"), "{text}");
}

#[test]
fn rmm_pool_doubles_and_merges() {
    let pool = build("rmm_pool", "sim:1GiB");
    assert_eq!(reserved(&pool), MIB);
    let blocks: Vec<DevicePtr> = (0..4).map(|_| allocate(&pool, MIB)).collect();
    assert_eq!(reserved(&pool), 4 * MIB);
    assert_eq!(blocks[3].address() - blocks[2].address(), MIB);
    free(&pool, blocks[3], MIB);
    free(&pool, blocks[2], MIB);
    assert_eq!(allocate(&pool, 2 * MIB), blocks[2]);
    let limited = build("rmm_pool:initial=4MiB,max=16MiB", "sim:1GiB");
    allocate(&limited, 5 * MIB);
    assert_eq!(reserved(&limited), 10 * MIB, "half of the rest");
    assert!(limited.allocate_bytes(8 * MIB, StreamRef::LEGACY).is_err());
}

#[test]
fn rmm_arena_serves_small_requests_from_superblocks() {
    let arena = build("rmm_arena:size=16MiB", "sim:64MiB");
    let small = allocate(&arena, 1000);
    let large = allocate(&arena, 2 * MIB);
    assert_eq!(large.address() - small.address(), MIB);
    // The first fit lies after the small block's superblock.
    assert_eq!(allocate(&arena, 1000).address() - small.address(), 1024);
    free(&arena, small, 1000);
    free(&arena, large, 2 * MIB);
    assert!(arena.allocate_bytes(15 * MIB + 1, StreamRef::LEGACY).unwrap_err().is_out_of_memory());
    assert!(arena.allocate_bytes(15 * MIB, StreamRef::LEGACY).is_ok());
}

#[test]
fn a_text_of_a_model_is_read_again() {
    for stack in ["torch:max_split_size_mb=128", "rmm_pool:initial=1MiB,max=1GiB", "rmm_arena:size=8MiB"] {
        assert_eq!(build(stack, "sim:1GiB").to_string(), stack);
    }
    let driver = DeviceSpec::SimH200.open().unwrap();
    for wrong in [
        "torch:max_split_size_mb=1",
        "torch:max_split_size_mb=32,large_segment_size_mb=64",
        "torch:large_segment_size_mb=32,max_split_size_mb=32",
        "torch:garbage_collection_threshold=0.5",
        "rmm_pool:initial=16MiB,max=8MiB",
        "rmm_pool:max=512KiB",
    ] {
        let stack: millpond_core::stack::StackSpec = wrong.parse().unwrap();
        let error = stack.build(&crate::layers(), &driver).unwrap_err();
        assert_eq!(error.kind(), millpond_core::ErrorKind::InvalidStack, "{wrong}: {error}");
    }
}

#[test]
fn a_model_that_fails_blames_no_one_for_its_own_memory() {
    let pool = build("rmm_pool:initial=40MiB", "sim:64MiB");
    allocate(&pool, 30 * MIB);
    let error = pool.allocate_bytes(30 * MIB, StreamRef::LEGACY).unwrap_err();
    let report = error.out_of_memory_report().expect("it says why");
    assert_eq!((report.held_bytes, report.live_bytes, report.live_blocks), (40 * MIB, 30 * MIB, Some(1)));
    assert_eq!((report.short_bytes, report.remedies.len()), (Some(6 * MIB), 0), "{error}");
    assert!(!error.to_string().contains("others hold"), "{error}");
    // What another program holds is named.
    let driver = "sim:64MiB".parse::<DeviceSpec>().unwrap().open().unwrap();
    let other = driver.mem_alloc(40 * MIB).unwrap();
    let pool = "rmm_pool".parse::<millpond_core::stack::StackSpec>().unwrap();
    let pool = pool.build(&crate::layers(), &driver).unwrap();
    let error = pool.allocate_bytes(30 * MIB, StreamRef::LEGACY).unwrap_err();
    assert!(error.to_string().contains("that other resources or processes hold"), "{error}");
    drop(pool);
    // SAFETY: the block came from this driver and is not used again.
    unsafe { driver.mem_free(other) }.unwrap();
}
