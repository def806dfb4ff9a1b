//! Tests of the heap: placement, neighbours, and regions.

use super::*;
use crate::tuning::CHUNKS_COMPARED;
use millpond_core::Layout;

const OWNER: Owner = 1;

fn request(bytes: u64) -> Request {
    Request::new(Layout::new(bytes)).expect("not too large")
}

/// A heap of separate free chunks, each with its owner and bytes.
fn apart(chunks: &[(Owner, u64)]) -> Heap {
    let mut heap = Heap::new(CHUNKS_COMPARED);
    for ((owner, bytes), base) in chunks.iter().zip(1..) {
        heap.add_region(base << 32, *bytes, *owner, 0);
    }
    heap
}

/// Free neighbours, each with its owner and bytes.
fn row(chunks: &[(Owner, u64)]) -> Heap {
    let mut heap = Heap::new(CHUNKS_COMPARED);
    heap.has_one_stream = false;
    let mut rest = heap.add_region(1 << 32, chunks.iter().map(|(_, bytes)| bytes).sum(), ANY_STREAM, 0);
    let mut taken = Vec::new();
    for (index, (_, bytes)) in chunks.iter().enumerate() {
        taken.push(heap.take(rest, *bytes, ALLOCATION_ALIGNMENT));
        if index + 1 < chunks.len() {
            rest = heap.chunk(taken[index]).next;
        }
    }
    for (id, (owner, _)) in taken.into_iter().zip(chunks) {
        heap.free(id, *owner, 0);
    }
    heap
}

#[test]
fn the_smaller_of_an_own_and_an_unowned_block_serves() {
    for (own, unowned, is_own_first, expected) in [
        (2048, 4096, false, OWNER),
        (4096, 2048, false, ANY_STREAM),
        (4096, 2048, true, OWNER),
        (4096, 4096, false, OWNER),
        (1024, 1024, false, OWNER),
        (512, 4096, false, ANY_STREAM),
        (512, 4096, true, ANY_STREAM),
        (4096, 512, false, OWNER),
    ] {
        let heap = apart(&[(OWNER, own), (ANY_STREAM, unowned)]);
        let found = heap.find_for(OWNER, &request(1024), is_own_first).expect("one serves");
        assert_eq!(heap.chunk(found).owner(), expected, "own {own}, unowned {unowned}, {is_own_first}");
    }
    assert_eq!(
        apart(&[(OWNER, 512), (ANY_STREAM, 512), (2, 4096)]).find_for(OWNER, &request(1024), false),
        None
    );
}

/// Own and unowned neighbours fit together. Without an unowned chunk there is no run.
#[test]
fn a_run_has_own_and_unowned_chunks_of_any_number() {
    for (chunks, bytes, start) in [
        (&[(OWNER, 4096)][..], 4096, None),
        (&[(OWNER, 4096), (ANY_STREAM, 1024)], 5120, Some(0)),
        (&[(OWNER, 4096), (ANY_STREAM, 1024), (2, 256), (OWNER, 8192)], 5120, Some(0)),
        (&[(OWNER, 4096), (2, 256), (ANY_STREAM, 1024)], 4352, None),
        (&[(ANY_STREAM, 1024), (OWNER, 4096)], 5120, Some(0)),
        (&[(ANY_STREAM, 1024), (OWNER, 4096), (ANY_STREAM, 2048)], 7168, Some(0)),
        // The block starts at the owner's chunk if that is enough.
        (&[(ANY_STREAM, 4096), (OWNER, 4096), (ANY_STREAM, 4096)], 8192, Some(4096)),
        (&[(ANY_STREAM, 4096), (OWNER, 4096), (ANY_STREAM, 1024)], 8192, Some(1024)),
        (&[(2, 1024), (OWNER, 4096), (2, 1024)], 4352, None),
        (&[(ANY_STREAM, 1024), (2, 1024), (OWNER, 4096)], 4352, None),
        (&[(OWNER, 4096), (ANY_STREAM, 1024)], 5376, None),
        (&[(ANY_STREAM, 8192)], 4096, None),
    ] {
        let mut heap = row(chunks);
        let found = heap.find_run(OWNER, &request(bytes));
        assert_eq!(found.map(|(_, addr)| addr - (1 << 32)), start, "{bytes} of {chunks:?}");
        if let Some((first, addr)) = found {
            let block = heap.take_run(first, addr, bytes);
            assert_eq!((heap.chunk(block).addr, heap.chunk(block).bytes), (addr, bytes));
            heap.validate();
        }
    }
}

/// A request that is large, in itself and for its heap, takes the lowest chunk instead of the smallest one
/// if only one stream uses the pool and its driver calls are spent.
#[test]
fn a_large_request_of_one_stream_is_placed_by_address() {
    const LARGE: u64 = LEAST_BY_ADDRESS;
    for (bytes, reserved, is_large) in [
        (LARGE, LARGE, true),
        (LARGE - 256, LARGE, false),
        (LARGE, LARGE * BY_ADDRESS_SHARE, true),
        (LARGE, (LARGE + 1) * BY_ADDRESS_SHARE, false),
    ] {
        for (by_address, has_one_stream) in [(false, false), (false, true), (true, false), (true, true)] {
            let heap = apart(&[(OWNER, 2 * LARGE), (OWNER, LARGE)]);
            let heap = Heap { by_address, has_one_stream, bytes_reserved: reserved, ..heap };
            let found = heap.find(OWNER, Epoch::MAX, &request(bytes)).expect("both serve");
            let is_lowest = heap.chunk(found).bytes == 2 * LARGE;
            let expected = is_large && by_address && has_one_stream;
            assert_eq!(is_lowest, expected, "{bytes} of {reserved}, {by_address}, {has_one_stream}");
        }
    }
}

#[test]
fn an_owner_without_free_blocks_is_not_counted() {
    let mut heap = apart(&[(OWNER, 4096), (2, 1024), (2, 512)]);
    let others = (2, 2, 1536, 1024);
    assert_eq!(heap.free_by_owner().collect::<Vec<_>>(), [(OWNER, 1, 4096, 4096), others]);
    let own = heap.find_for(OWNER, &request(4096), true).expect("it is free");
    heap.take(own, 4096, ALLOCATION_ALIGNMENT);
    assert_eq!(heap.free_by_owner().collect::<Vec<_>>(), [others]);
}

/// A range joins the region that ends where the range begins, even if it is not the last region.
#[test]
fn a_range_extends_the_region_before_it() {
    let mut heap = Heap::new(CHUNKS_COMPARED);
    let (low, high) = (1 << 32, 2 << 32);
    heap.extend(low, 4096, ANY_STREAM, 0);
    heap.extend(high, 4096, ANY_STREAM, 0);
    let used = heap.extend(low + 4096, 4096, OWNER, 3);
    assert_eq!((heap.chunk(used).addr, heap.chunk(used).bytes), (low, 8192));
    let block = heap.take_at(used, low + 4096, 4096);
    heap.extend(low + 8192, 1024, ANY_STREAM, 0);
    let apart = heap.extend(low + 16_384, 1024, ANY_STREAM, 0);
    assert_eq!(heap.tail(), Some(apart));
    let regions: Vec<(u64, u64)> = heap.regions().iter().map(|region| (region.base, region.bytes)).collect();
    assert_eq!(regions, [(low, 9216), (low + 16_384, 1024), (high, 4096)]);
    heap.validate();
    heap.free(block, ANY_STREAM, 0);
    heap.validate();
    assert_eq!(heap.chunk_at(low + 9215).map(|chunk| chunk.addr), Some(low + 4096));
    assert!(heap.chunk_at(low + 9216).is_none() && heap.chunk_at(low - 1).is_none());
}
