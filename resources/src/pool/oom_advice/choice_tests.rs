//! Tests which blocks a report names: the cheapest neighbours in a row, and the cheapest regions or handles.

use millpond_core::{DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};

use super::*;
use crate::pool::heaps::Reclaim;
use crate::{CudaMemoryResource, PagesMode, PoolLayer};

const KIB: u64 = 1 << 10;
const PAGE: u64 = DEVICE_PAGE;

fn part(base: u64, bytes: u64, cost: u64, what: &[What]) -> Part {
    Part { base, bytes, cost, what: what.to_vec(), free_start: 0, free_end: 0 }
}

fn request(bytes: u64, alignment: u64) -> Request {
    let layout = Layout::with_alignment(bytes, alignment).expect("a power of two");
    Request::new(layout).expect("not too large")
}

/// The blocks and the bytes of a choice.
fn blocks(choice: Option<Choice>) -> Option<(Vec<usize>, u64)> {
    let block = |what: &What| match what {
        What::Block(block) => *block,
        other => panic!("{other:?} is no block"),
    };
    choice.map(|choice| (choice.what.iter().map(block).collect(), choice.bytes))
}

/// Regions that share a page return with the last of them, and cost as much as all of them.
#[test]
fn regions_in_one_page_count_as_that_page_once() {
    let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(What::Block);
    let regions = vec![
        part(3 * PAGE + PAGE / 2, PAGE / 4, 20, &[b]),
        part(8 * PAGE, PAGE, 9, &[e]),
        part(3 * PAGE, PAGE / 2, 10, &[a]),
        part(5 * PAGE + 256, 2 * PAGE, 7, &[c]),
        part(7 * PAGE + 512, 256, 5, &[d]),
    ];
    let pages: Vec<(u64, u64, u64, Vec<What>)> = whole_pages(regions)
        .into_iter()
        .map(|part| (part.base / PAGE, part.bytes / PAGE, part.cost, part.what))
        .collect();
    assert_eq!(pages, [(3, 1, 30, vec![a, b]), (5, 3, 12, vec![c, d]), (8, 1, 9, vec![e])]);
}

/// The parts with the fewest bytes in use per byte are emptied, except any that the others make needless.
#[test]
fn the_cheapest_parts_that_suffice_are_emptied() {
    let [cheap, large, dear] = [0, 1, 2].map(What::Block);
    let parts = [
        part(0, 4, 4, &[dear]),
        part(100, 4, 1, &[cheap]),
        part(200, 8, 6, &[large]),
        part(300, 100, 0, &[What::Fixed]),
    ];
    for (missing, choice) in [
        (0, None),
        (4, Some((vec![0], 1))),
        // The large part alone suffices, so the cheap part that was chosen first is not needed.
        (5, Some((vec![1], 6))),
        (8, Some((vec![1], 6))),
        (9, Some((vec![1, 0], 7))),
        (13, Some((vec![1, 2, 0], 11))),
        (16, Some((vec![1, 2, 0], 11))),
        (17, None),
    ] {
        assert_eq!(blocks(emptied(&parts, missing)), choice, "{missing} bytes are missing");
    }
}

/// A region counts as its own bytes while that suffices, and as whole pages otherwise.
#[test]
fn regions_count_as_whole_pages_only_if_they_must() {
    let regions =
        || vec![part(4 * PAGE, PAGE - 512, 3, &[What::Block(0)]), part(6 * PAGE, PAGE, 5, &[What::Block(1)])];
    for (short, over, choice) in [
        (PAGE - 512, 0, Some((vec![0], 3))),
        (PAGE, 0, Some((vec![1], 5))),
        (0, PAGE, Some((vec![1], 5))),
        (2 * PAGE - 512, 0, Some((vec![1, 0], 8))),
        (2 * PAGE, 0, Some((vec![1, 0], 8))),
        // The pool's maximum counts the regions' own bytes.
        (0, 2 * PAGE, None),
        (2 * PAGE, 2 * PAGE - 512, Some((vec![1, 0], 8))),
        (2 * PAGE, 2 * PAGE - 256, None),
        (2 * PAGE + 256, 0, None),
    ] {
        assert_eq!(blocks(emptied_regions(regions(), short, over)), choice, "short {short}, over {over}");
    }
}

/// A stitched block may begin at the end of one handle and end at the start of another, but not of the same
/// handle.
#[test]
fn the_largest_free_ends_of_two_handles_are_taken() {
    let parts = |ends: &[(u64, u64)]| -> Vec<Part> {
        let part = |(base, (free_start, free_end)): (u64, &(u64, u64))| Part {
            free_start: *free_start,
            free_end: *free_end,
            ..part(base, 100, 0, &[])
        };
        (0..).zip(ends).map(part).collect()
    };
    for (ends, least, bytes, left) in [
        (&[(5, 9), (8, 2), (3, 1)][..], 2, 17, &[2][..]),
        // The handle with the largest start has the largest end, too.
        (&[(9, 9), (4, 1), (3, 6)], 2, 15, &[1]),
        (&[(8, 9), (7, 1), (3, 6)], 2, 16, &[2]),
        (&[(9, 1), (3, 9)], 2, 18, &[]),
        // Pieces smaller than `least` do not count.
        (&[(1, 9), (8, 1)], 2, 17, &[]),
        (&[(5, 9)], 2, 9, &[]),
        (&[], 2, 0, &[]),
    ] {
        let mut parts = parts(ends);
        assert_eq!(take_ends(&mut parts, least), bytes, "{ends:?}, at least {least}");
        let bases: Vec<u64> = parts.iter().map(|part| part.base).collect();
        assert_eq!(bases, left, "{ends:?}, at least {least}");
    }
}

/// Among neighbours that are large enough together, the report names the ones with the fewest bytes in use.
#[test]
fn the_cheapest_neighbours_of_a_row_are_named() {
    let whole = [8 * KIB, 2 * KIB, 12 * KIB];
    let live = LiveBlock { address: 0, bytes: 1 };
    let memory = Memory {
        rows: Vec::new(),
        large_rows: 0,
        blocks: whole.map(|whole| Block { live, whole }).to_vec(),
        spans: FxHashMap::default(),
    };
    let pieces = [
        (4, What::Free),
        (8, What::Block(0)),
        (4, What::Free),
        (4, What::Fixed),
        (2, What::Block(1)),
        (8, What::Free),
        (12, What::Block(2)),
    ];
    let mut addr = 1 << 40;
    let row: Row = pieces
        .map(|(kib, what)| {
            addr += kib * KIB;
            Piece { addr: addr - kib * KIB, bytes: kib * KIB, what }
        })
        .to_vec();
    for (kib, alignment, choice) in [
        (4, 256, Some((vec![], 0))),
        (8, 256, Some((vec![], 0))),
        (9, 256, Some((vec![1], 2))),
        (10, 256, Some((vec![1], 2))),
        (11, 256, Some((vec![0], 8))),
        (16, 256, Some((vec![0], 8))),
        (17, 256, Some((vec![2], 12))),
        (22, 256, Some((vec![1, 2], 14))),
        (23, 256, None),
        // The free chunk of 8 KiB starts at 22 KiB, and the next multiple of 16 KiB is 32.
        (4, 16 * KIB, Some((vec![], 0))),
        (12, 16 * KIB, Some((vec![0], 8))),
        (13, 32 * KIB, Some((vec![0], 8))),
        (10, 32 * KIB, Some((vec![0], 8))),
    ] {
        let named = blocks(memory.cheapest_in(&row, &request(kib * KIB, alignment)));
        let choice = choice.map(|(blocks, cost)| (blocks, cost * KIB));
        assert_eq!(named, choice, "{kib} KiB aligned to {alignment}");
    }
}

/// Among neighbours that cost the same, the report names the lowest addresses, so that reports repeat
/// exactly.
#[test]
fn of_equal_neighbours_the_first_are_named() {
    let live = LiveBlock { address: 0, bytes: 1 };
    let blocks_of = [8, 8, 8].map(|kib| Block { live, whole: kib * KIB }).to_vec();
    let memory = Memory { rows: Vec::new(), large_rows: 0, blocks: blocks_of, spans: FxHashMap::default() };
    let whats = [What::Block(0), What::Fixed, What::Free, What::Block(1), What::Fixed, What::Block(2)];
    let row: Row =
        (0..).zip(whats).map(|(at, what)| Piece { addr: at * 8 * KIB, bytes: 8 * KIB, what }).collect();
    for (kib, choice) in [(8, (vec![], 0)), (16, (vec![1], 8))] {
        let named = blocks(memory.cheapest_in(&row, &request(kib * KIB, 256)));
        assert_eq!(named, Some((choice.0, choice.1 * KIB)), "{kib} KiB");
    }
    let used: Row = row.iter().filter(|piece| piece.what != What::Free).copied().collect();
    let named = blocks(memory.cheapest_in(&used, &request(8 * KIB, 256)));
    assert_eq!(named, Some((vec![0], 8 * KIB)));
}

/// A page of a region counts as free if it lies wholly between blocks in use.
#[test]
fn whole_pages_between_blocks_in_use_are_free() {
    const MIB: u64 = 1 << 20;
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::with_capacity(32 * MIB)));
    let layer = PoolLayer::new().initial_bytes(16 * MIB).pages(PagesMode::Off);
    let pool = cuda.layer(layer).expect("there is room");
    let blocks: Vec<DevicePtr> =
        (0..16).map(|_| pool.allocate_bytes(MIB, StreamRef::LEGACY).expect("there is room")).collect();
    let base = blocks.iter().map(|ptr| ptr.address()).min().expect("there are blocks");
    assert_eq!(pool.pool_bytes(), 16 * MIB);
    let room = Room {
        owner: 0,
        is_capturing: false,
        is_impossible: false,
        device_free: Some(0),
        page_bytes: Some(2 * MIB),
    };
    let needed = |mib: u64, room: &Room| {
        pool.central.with_heaps(|heaps| pages_needed(heaps, &request(mib * MIB, 256), room))
    };
    assert_eq!(needed(1, &room), None, "all is in use");
    // These blocks stay: pages 0, 2 and 5 of 8 are partly in use.
    for ptr in blocks {
        if ![0, 4, 10].contains(&((ptr.address() - base) / MIB)) {
            // SAFETY: the block came from the pool with this size and is freed once.
            unsafe { pool.deallocate_bytes(ptr, MIB, StreamRef::LEGACY) };
        }
    }
    pool.central.with_heaps(|heaps| _ = heaps.reclaim(None, Reclaim::Everything));
    for (mib, pages) in [(1, Some(1)), (2, Some(1)), (3, Some(2)), (10, Some(5)), (11, None)] {
        assert_eq!(needed(mib, &room), pages, "{mib} MiB");
    }
    let more = Room { device_free: Some(5 * MIB), ..room };
    for (mib, pages) in [(4, Some(0)), (6, Some(1)), (14, Some(5)), (15, None)] {
        assert_eq!(needed(mib, &more), pages, "{mib} MiB, with two pages of the device");
    }
    assert_eq!(needed(1, &Room { is_capturing: true, ..room }), None);
    assert_eq!(needed(1, &Room { page_bytes: None, ..room }), None);
}

/// A small request needs a span of new memory, and the pool takes exactly that if it has no more. Contending
/// threads want larger spans.
#[test]
fn a_small_request_needs_a_span() {
    for (pages, is_contended) in
        [PagesMode::On, PagesMode::Off].map(|pages| [(pages, false), (pages, true)]).concat()
    {
        let pool_of = |layer: PoolLayer| {
            let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
            let pool = cuda.layer(layer.pages(pages)).expect("an empty pool");
            if is_contended {
                let mut users = [0; crate::pool::arena::ARENAS];
                users[0] = 2;
                assert_eq!(pool.shared.arenas.next(0, &users), 1);
            }
            pool
        };
        let pool = pool_of(PoolLayer::new());
        let needs = pool.central.with_heaps(|heaps| needed(heaps, &request(1000, 256), 1));
        if pages == PagesMode::Off {
            assert_eq!(needs, 1024, "a region may be as small");
            continue;
        }
        pool.allocate_bytes(1000, StreamRef::LEGACY).expect("there is room");
        let wanted = if is_contended { 2 * needs } else { needs };
        assert_eq!(pool.pool_bytes(), wanted, "contended: {is_contended}");
        let pool = pool_of(PoolLayer::new().maximum_bytes(needs));
        pool.allocate_bytes(1000, StreamRef::LEGACY).expect("the pool may have as much");
        assert_eq!(pool.pool_bytes(), needs, "contended: {is_contended}");
    }
}

/// The free bytes at both ends of a partly used handle count for a stitched block.
#[test]
fn the_free_ends_of_handles_are_what_no_block_covers() {
    const MIB: u64 = 1 << 20;
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let pool = cuda.layer(PoolLayer::new().pages(PagesMode::On)).expect("an empty pool");
    let ptr = pool.allocate_bytes(5 * MIB, StreamRef::LEGACY).expect("there is room");
    let held = pool.pool_bytes();
    let ends = || {
        pool.central.with_heaps(|heaps| {
            _ = heaps.reclaim(None, Reclaim::Everything);
            let parts = Memory::of(heaps, None).parts(heaps);
            assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), held);
            let sum = |of: fn(&Part) -> u64| parts.iter().map(of).sum::<u64>();
            (sum(|part| part.free_start), sum(|part| part.free_end), sum(|part| part.cost) > 0)
        })
    };
    assert!(held > 5 * MIB && held < 8 * MIB);
    assert_eq!(ends(), (0, held - 5 * MIB, true));
    // SAFETY: the block came from the pool with this size and is freed once.
    unsafe { pool.deallocate_bytes(ptr, 5 * MIB, StreamRef::LEGACY) };
    assert_eq!(ends(), (0, 0, false), "the handle is free as a whole");
}

/// No caller can free a small block that a thread has in its cache, so a report does not name it.
#[test]
fn a_cached_block_is_not_in_the_way() {
    let device = SimDevice::new(SimConfig::h200());
    let pool = CudaMemoryResource::new(device).layer(PoolLayer::new()).expect("an empty pool");
    let take = || pool.allocate_bytes(1000, StreamRef::LEGACY).expect("there is room");
    let kept = take();
    // More calls than the stream needs to have a cache.
    for ptr in [(); 8].map(|()| take()) {
        // SAFETY: the block came from the pool with this size and is freed once.
        unsafe { pool.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) };
    }
    let live = [LiveBlock { address: kept.address(), bytes: 1000 }];
    pool.central.with_heaps(|heaps| {
        let memory = Memory::of(heaps, None);
        assert_eq!(memory.blocks.iter().map(|block| block.live).collect::<Vec<_>>(), live);
        assert!(memory.rows.iter().flatten().any(|piece| piece.what == What::Fixed), "some are cached");
        let spans = Choice { bytes: 0, what: memory.spans.keys().copied().map(What::Span).collect() };
        assert_eq!(blocks_of(heaps, &memory, &spans), live);
    });
}
