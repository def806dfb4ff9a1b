//! Finds out what would have helped a request that failed: which blocks to free, and how much new memory.
//!
//! Only failing requests come here, and requests with large alignments for which the pool has no room to
//! grow. So it may walk the whole pool.

use std::collections::BTreeMap;

use millpond_core::{LiveBlock, align_up};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::block_map::BlockEntry;
use crate::heap::Heap;
use crate::heap::chunk::Chunk;
use crate::heap::request::Request;
use crate::pool::heaps::{Heaps, LARGE};
use crate::pool::oom_map;
use crate::store::pages::Pages;
use crate::stream_order::{ANY_STREAM, Owner};
use crate::tuning::DEVICE_PAGE;

/// The circumstances of a request that could not be served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// The requesting stream.
    pub(crate) owner: Owner,
    /// Whether that stream captures a graph. Then the pool does not wait for other streams.
    pub(crate) is_capturing: bool,
    /// Whether the pool refused the request before it waited, merged free blocks and released memory.
    pub(crate) is_impossible: bool,
    /// The device's free bytes, if the pool takes memory from the device and returns it there.
    pub(crate) device_free: Option<u64>,
    /// The bytes of a page, if the pool could map pages and takes regions instead.
    pub(crate) page_bytes: Option<u64>,
}

/// The free blocks of an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeOf {
    pub(crate) owner: Owner,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) largest: u64,
}

/// Why a pool could not serve a request, and what would have helped.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// The bytes of new memory that would serve the request together with its stream's free blocks.
    pub(crate) needed: u64,
    /// The most bytes that the pool may hold.
    pub(crate) maximum_bytes: Option<u64>,
    /// The bytes of the device's pages that hold the pool's memory.
    pub(crate) device_pages: u64,
    pub(crate) free: Vec<FreeOf>,
    /// Whether the free blocks would serve the request if all were unowned.
    pub(crate) merging_suffices: bool,
    /// Blocks in use that, once freed, would let the pool serve the request; empty if there are none.
    pub(crate) in_the_way: Vec<LiveBlock>,
    /// The number of free pages that would serve the request if the pool mapped pages.
    pub(crate) pages: Option<u64>,
    /// See [`OutOfMemoryReport::map`](millpond_core::OutOfMemoryReport::map).
    pub(crate) map: Option<String>,
}

/// The neighbouring chunks of a region, in address order.
type Row = Vec<Piece>;

/// A chunk.
#[derive(Clone, Copy, Debug)]
struct Piece {
    addr: u64,
    bytes: u64,
    what: What,
}

/// The use of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Free,
    /// A block in use, by its index in [`Memory::blocks`].
    Block(usize),
    /// A span of small blocks, by its address.
    Span(u64),
    /// No caller can free this chunk now.
    Fixed,
}

/// A block in use.
#[derive(Clone, Copy, Debug)]
struct Block {
    live: LiveBlock,
    /// The bytes of all its pieces.
    whole: u64,
}

/// The memory of a pool when a request failed.
struct Memory {
    /// The rows of the large heaps come first.
    rows: Vec<Row>,
    large_rows: usize,
    blocks: Vec<Block>,
    /// The bytes in use of each span, by its address.
    spans: FxHashMap<u64, u64>,
}

/// A region or a handle.
struct Part {
    base: u64,
    bytes: u64,
    /// The chunks in use in this part.
    what: Vec<What>,
    /// The bytes of the blocks in use in this part, including their pieces in other parts.
    cost: u64,
    /// The free bytes at both ends, where a stitched block may end or begin.
    free_start: u64,
    free_end: u64,
}

/// A choice of blocks to free.
struct Choice {
    /// The bytes of those blocks: the choice's cost.
    bytes: u64,
    what: Vec<What>,
}

impl Heaps {
    /// Returns why the request could not be served, and what would have helped.
    pub(crate) fn shortage(&mut self, request: &Request, room: &Room) -> Shortage {
        let mut needed = needed(self, request, room.owner);
        let heaps = &*self;
        if room.is_impossible && !room.is_capturing {
            needed = needed.min(Memory::of(heaps, None).needed_after_release(heaps, request));
        }
        let in_the_way = choose(heaps, request, room, room.is_capturing);
        // Whether the request would fit if all free blocks were unowned. Then no block in use is in the way.
        let merging_suffices = room.is_capturing
            && choose(heaps, request, room, false).is_some_and(|(_, choice)| choice.what.is_empty());
        let in_the_way = in_the_way.map_or(Vec::new(), |(memory, choice)| blocks_of(heaps, &memory, &choice));
        Shortage {
            needed,
            maximum_bytes: Some(heaps.maximum_bytes).filter(|bytes| *bytes != u64::MAX),
            device_pages: heaps.device_pages(),
            free: free_by_owner(heaps),
            merging_suffices,
            in_the_way,
            pages: pages_needed(heaps, request, room),
            map: oom_map::map(heaps.store.heaps()),
        }
    }
}

impl Heaps {
    /// Returns whether free neighbours would serve the request if all free blocks were unowned. Blocks that
    /// threads cache count as in use.
    pub(crate) fn serves_if_merged(&self, request: &Request) -> bool {
        let memory = Memory::of(self, None);
        memory.rows.iter().filter_map(|row| memory.cheapest_in(row, request)).any(|choice| choice.bytes == 0)
    }

    /// Returns the bytes of the device's pages that hold the pool's memory. A page counts in full if a region
    /// ends in it.
    fn device_pages(&self) -> u64 {
        if self.shared.over_pages {
            return self.store.bytes_reserved();
        }
        let mut end = 0;
        let pages = self.store.parts().into_iter().map(|(base, bytes, _)| {
            // Regions are sorted by address, and may share a page.
            let start = (base - base % DEVICE_PAGE).max(end);
            end = (base + bytes).next_multiple_of(DEVICE_PAGE);
            end - start
        });
        pages.sum()
    }

    /// Returns the bytes of wholly free regions or handles: first the ones that are free for any stream, then
    /// all. Blocks that threads cache count as in use.
    pub(crate) fn reclaimable_bytes(&self) -> (u64, u64) {
        let free_parts = |only| {
            let memory = Memory::of(self, only);
            free_bytes(&memory.parts(self))
        };
        (free_parts(Some(ANY_STREAM)), free_parts(None))
    }
}

/// Returns the bytes of new memory that would serve the request.
fn needed(heaps: &mut Heaps, request: &Request, owner: Owner) -> u64 {
    let span = heaps.is_small(request).then(|| {
        let arena = heaps.shared.arenas.lock(request.shard);
        // A growth takes a larger span if it fits.
        Request { bytes: heaps.span_wanted(&arena, request).min(DEVICE_PAGE), ..*request }
    });
    match span {
        Some(span) if heaps.shared.over_pages => heaps.store.needed(ANY_STREAM, &span, true),
        _ => heaps.store.needed(owner, request, false),
    }
}

/// Returns the blocks in use, with the fewest bytes, that must be freed to serve the request. They lie
/// between free chunks of a row, or they fill whole regions or handles, whose memory the device could then
/// provide in one piece.
///
/// While a stream captures, only its own and unowned blocks are free, and no memory returns to the device.
fn choose(heaps: &Heaps, request: &Request, room: &Room, is_capturing: bool) -> Option<(Memory, Choice)> {
    let memory = Memory::of(heaps, is_capturing.then_some(room.owner));
    let in_row =
        memory.rows.iter().filter_map(|row| memory.cheapest_in(row, request)).min_by_key(|it| it.bytes);
    let anew = (!is_capturing).then(|| memory.cheapest_anew(heaps, request, room)).flatten();
    let choice = in_row.into_iter().chain(anew).min_by_key(|choice| choice.bytes)?;
    Some((memory, choice))
}

impl Memory {
    /// Lists the memory. With `only`, the blocks of that owner and unowned blocks are free; otherwise all
    /// blocks that are not in use are free.
    fn of(heaps: &Heaps, only: Option<Owner>) -> Self {
        let (mut blocks, mut by_address) = (Vec::new(), FxHashMap::default());
        heaps.shared.block_map.each(|address, entry| {
            let (heap, chunk) = entry.block();
            let bytes = entry.requested();
            if heap != LARGE || bytes == 0 {
                return;
            }
            let what = What::Block(blocks.len());
            blocks.push(Block { live: LiveBlock { address, bytes }, whole: heaps.store.bytes_of(chunk) });
            by_address.extend(heaps.store.pieces_of(chunk).into_iter().map(|piece| (piece.addr, what)));
        });
        let mut spans = FxHashMap::default();
        if only.is_none() {
            for (_, arena) in heaps.shared.arenas.each() {
                for span in arena.heap.regions() {
                    let in_use = arena.heap.region_chunks(span).filter(|chunk| chunk.is_in_use());
                    spans.insert(span.base, in_use.map(|chunk| chunk.bytes).sum());
                    by_address.insert(span.base, What::Span(span.base));
                }
            }
        }
        let over_pages = heaps.shared.over_pages;
        let mut memory = Self { rows: Vec::new(), large_rows: 0, blocks, spans };
        for (index, heap) in heaps.store.heaps().iter().enumerate() {
            let joins = !over_pages || Pages::joins_with_unowned(index);
            memory.add_rows(heap, &by_address, |owner| {
                only.is_none_or(|only| owner == only || (joins && owner == ANY_STREAM))
            });
        }
        memory.large_rows = memory.rows.len();
        memory.add_arenas(heaps, only);
        memory
    }

    fn add_rows(&mut self, heap: &Heap, by_address: &FxHashMap<u64, What>, is_free: impl Fn(Owner) -> bool) {
        for region in heap.regions() {
            let pieces = heap.region_chunks(region).map(|chunk| {
                let what = match by_address.get(&chunk.addr) {
                    _ if chunk.is_free() && is_free(chunk.owner()) => What::Free,
                    Some(what) if chunk.is_in_use() => *what,
                    _ => What::Fixed,
                };
                Piece { addr: chunk.addr, bytes: chunk.bytes, what }
            });
            self.rows.push(pieces.collect());
        }
    }

    /// Adds the chunks of the spans. A span also serves a request that is not small, if it fits.
    fn add_arenas(&mut self, heaps: &Heaps, only: Option<Owner>) {
        for (_, arena) in heaps.shared.arenas.each() {
            let mut small = FxHashMap::default();
            for (_, chunk) in arena.heap.all_chunks().filter(|(_, chunk)| chunk.is_in_use()) {
                if let Some(live) = live_block(chunk) {
                    small.insert(chunk.addr, What::Block(self.blocks.len()));
                    self.blocks.push(Block { live, whole: chunk.bytes });
                }
            }
            self.add_rows(&arena.heap, &small, |owner| {
                only.is_none_or(|only| owner == only || owner == ANY_STREAM)
            });
        }
    }

    fn cost(&self, what: What) -> u64 {
        match what {
            What::Free | What::Fixed => 0,
            What::Block(block) => self.blocks[block].whole,
            What::Span(base) => self.spans[&base],
        }
    }

    /// Returns the neighbours of a row that are large enough together and have the fewest bytes in use.
    fn cheapest_in(&self, row: &Row, request: &Request) -> Option<Choice> {
        let mut best: Option<(u64, usize, usize)> = None;
        let (mut cost, mut end) = (0, 0);
        for start in 0..row.len() {
            if row[start].what == What::Fixed {
                (cost, end) = (0, start + 1);
                continue;
            }
            let from = align_up(row[start].addr, request.alignment)?;
            let reaches = |end: usize| row[end - 1].addr + row[end - 1].bytes >= from + request.bytes;
            // It takes at least the first chunk, which is not fixed.
            while (end <= start || !reaches(end)) && row.get(end).is_some_and(|it| it.what != What::Fixed) {
                cost += self.cost(row[end].what);
                end += 1;
            }
            if reaches(end) && best.is_none_or(|(least, ..)| cost < least) {
                best = Some((cost, start, end));
            }
            cost -= self.cost(row[start].what);
        }
        let (bytes, start, end) = best?;
        let what = row[start..end].iter().map(|piece| piece.what).filter(|what| *what != What::Free);
        Some(Choice { bytes, what: what.collect() })
    }

    /// Returns the blocks of the regions or handles to release so that, with the device's free memory, the
    /// request would be served. It chooses the ones with the fewest bytes in use per byte of memory. With
    /// pages, the largest free ends of two handles may be the start and the end of the block.
    fn cheapest_anew(&self, heaps: &Heaps, request: &Request, room: &Room) -> Option<Choice> {
        let device = room.device_free?;
        let limit = heaps.maximum_bytes.saturating_sub(heaps.store.bytes_reserved());
        let mut parts = self.parts(heaps);
        let Some(pages) = heaps.store.pages() else {
            let needed = request.padded_bytes();
            let short = needed.next_multiple_of(DEVICE_PAGE).saturating_sub(device);
            return emptied_regions(parts, short, needed.saturating_sub(limit));
        };
        let missing = |needed: u64| needed.saturating_sub(device.min(limit));
        let anew = emptied(&parts, missing(pages.needed_alone(request)));
        let Some(least) = pages.least_piece(request) else { return anew };
        let ends = take_ends(&mut parts, least);
        let rest = Request { bytes: request.bytes.saturating_sub(ends), ..*request };
        let stitched = emptied(&parts, missing(pages.needed_alone(&rest)));
        anew.into_iter().chain(stitched).min_by_key(|choice| choice.bytes)
    }

    /// Returns the bytes of new memory that would serve the request after the pool has released all free
    /// regions or handles. Free bytes next to blocks in use do not count, because the pool may not be able to
    /// use them.
    fn needed_after_release(&self, heaps: &Heaps, request: &Request) -> u64 {
        let needed = match heaps.store.pages() {
            Some(pages) => pages.needed_alone(request),
            None => request.padded_bytes(),
        };
        needed.saturating_sub(free_bytes(&self.parts(heaps)))
    }

    /// Returns the regions or handles, and the chunks in use in each.
    fn parts(&self, heaps: &Heaps) -> Vec<Part> {
        let mut pieces: Vec<&Piece> = self.rows[..self.large_rows].iter().flatten().collect();
        pieces.sort_unstable_by_key(|piece| piece.addr);
        let part = |(base, bytes, has_ends): (u64, u64, bool)| {
            let end = base + bytes;
            let from = pieces.partition_point(|piece| piece.addr + piece.bytes <= base);
            let upto = pieces.partition_point(|piece| piece.addr < end);
            let within = &pieces[from..upto];
            let is_used = |piece: &&&Piece| piece.what != What::Free;
            let first = within.iter().find(is_used).map_or(end, |piece| piece.addr.max(base));
            let last = within.iter().rfind(is_used).map_or(base, |piece| (piece.addr + piece.bytes).min(end));
            let mut what: Vec<What> = within.iter().filter(is_used).map(|piece| piece.what).collect();
            // Pieces of one block may be neighbours.
            what.dedup();
            let cost = what.iter().map(|what| self.cost(*what)).sum();
            let has_ends = has_ends && !what.is_empty();
            let (free_start, free_end) = if has_ends { (first - base, end - last) } else { (0, 0) };
            Part { base, bytes, cost, what, free_start, free_end }
        };
        heaps.store.parts().into_iter().map(part).collect()
    }
}

/// Returns the bytes of the wholly free parts.
fn free_bytes(parts: &[Part]) -> u64 {
    let is_free = |part: &&Part| part.cost == 0 && !part.what.contains(&What::Fixed);
    parts.iter().filter(is_free).map(|part| part.bytes).sum()
}

/// Removes the two parts whose free end and free start have the most bytes together, with at least `least`
/// bytes each, if there are any. Returns those free bytes.
fn take_ends(parts: &mut Vec<Part>, least: u64) -> u64 {
    let enough = |bytes: u64| if bytes >= least { bytes } else { 0 };
    let mut starts: Vec<(u64, usize)> = parts.iter().map(|part| enough(part.free_start)).zip(0..).collect();
    starts.sort_unstable_by(|a, b| b.cmp(a));
    let last = |first: usize| starts.iter().take(2).find(|(_, part)| *part != first).copied();
    let both = |first: usize| enough(parts[first].free_end) + last(first).map_or(0, |(bytes, _)| bytes);
    let Some((bytes, first)) = (0..parts.len()).map(|first| (both(first), first)).max() else { return 0 };
    let last = last(first).map_or(first, |(_, part)| part);
    parts.swap_remove(first.max(last));
    if last != first {
        parts.swap_remove(first.min(last));
    }
    bytes
}

/// Returns the regions to empty so that the device has `short` more free bytes, and the pool `over` fewer.
///
/// A region counts as its own bytes, since others may share its last page. Regions count as whole pages only
/// if all of them together have too few bytes otherwise.
fn emptied_regions(regions: Vec<Part>, short: u64, over: u64) -> Option<Choice> {
    let choice = emptied(&regions, short.max(over));
    if choice.is_some() || short <= over {
        return choice;
    }
    let sum = |parts: &[Part]| parts.iter().map(|part| part.bytes).sum::<u64>();
    let of_regions = sum(&regions);
    let pages = whole_pages(regions);
    // The pool counts only the regions' own bytes, which are up to `rounding` bytes fewer.
    let rounding = sum(&pages) - of_regions;
    emptied(&pages, short.max(over + rounding))
}

/// Joins regions that share a page, since the page returns to the device with the last of them. Counts them
/// as whole pages.
fn whole_pages(mut regions: Vec<Part>) -> Vec<Part> {
    regions.sort_unstable_by_key(|region| region.base);
    let mut joined: Vec<Part> = Vec::new();
    for region in regions {
        let start = region.base - region.base % DEVICE_PAGE;
        let end = (region.base + region.bytes).next_multiple_of(DEVICE_PAGE);
        match joined.last_mut().filter(|last| start < last.base + last.bytes) {
            Some(last) => {
                last.bytes = end - last.base;
                last.cost += region.cost;
                last.what.extend(region.what);
            }
            None => joined.push(Part { base: start, bytes: end - start, ..region }),
        }
    }
    joined
}

/// Returns parts of at least `missing` bytes together, with the fewest bytes in use per byte.
fn emptied(parts: &[Part], missing: u64) -> Option<Choice> {
    let mut parts: Vec<&Part> = parts.iter().filter(|part| !part.what.contains(&What::Fixed)).collect();
    if missing == 0 {
        return None;
    }
    let worth = |a: &Part, b: &Part| u128::from(a.cost) * u128::from(b.bytes);
    parts.sort_by(|a, b| worth(a, b).cmp(&worth(b, a)));
    let mut sum = 0;
    parts.retain(|part| {
        let is_needed = sum < missing;
        sum += if is_needed { part.bytes } else { 0 };
        is_needed
    });
    if sum < missing {
        return None;
    }
    // The last parts may be large enough to make earlier ones needless.
    parts.sort_by_key(|part| std::cmp::Reverse(part.cost));
    parts.retain(|part| {
        let is_needed = sum - part.bytes < missing;
        sum -= if is_needed { 0 } else { part.bytes };
        is_needed
    });
    let bytes = parts.iter().map(|part| part.cost).sum();
    Some(Choice { bytes, what: parts.into_iter().flat_map(|part| part.what.iter().copied()).collect() })
}

/// Returns the small block that a chunk in use holds, unless it is in a thread's cache.
fn live_block(chunk: &Chunk) -> Option<LiveBlock> {
    let bytes = chunk.entry().map_or(0, BlockEntry::requested);
    (bytes > 0).then_some(LiveBlock { address: chunk.addr, bytes })
}

/// Returns the blocks of a choice.
fn blocks_of(heaps: &Heaps, memory: &Memory, choice: &Choice) -> Vec<LiveBlock> {
    let (mut blocks, mut spans) = (Vec::new(), FxHashSet::default());
    for what in &choice.what {
        match what {
            What::Block(block) => blocks.push(memory.blocks[*block].live),
            What::Span(base) => _ = spans.insert(*base),
            What::Free | What::Fixed => {}
        }
    }
    for (_, arena) in heaps.shared.arenas.each() {
        for span in arena.heap.regions().iter().filter(|span| spans.contains(&span.base)) {
            let in_use = arena.heap.region_chunks(span).filter(|chunk| chunk.is_in_use());
            blocks.extend(in_use.filter_map(live_block));
        }
    }
    // A block may have several pieces.
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// Returns the free blocks of each owner, in all heaps.
pub(crate) fn free_by_owner(heaps: &Heaps) -> Vec<FreeOf> {
    let mut all: BTreeMap<Owner, FreeOf> = BTreeMap::new();
    let mut add = |heap: &Heap| {
        for (owner, blocks, bytes, largest) in heap.free_by_owner() {
            let sum = all.entry(owner).or_insert(FreeOf { owner, blocks: 0, bytes: 0, largest: 0 });
            sum.blocks += blocks;
            sum.bytes += bytes;
            sum.largest = sum.largest.max(largest);
        }
    };
    heaps.store.heaps().iter().for_each(&mut add);
    heaps.shared.arenas.each().for_each(|(_, arena)| add(&arena.heap));
    all.into_values().collect()
}

/// Returns how many free pages of the regions, together with the device's free memory, would serve the
/// request if the pool mapped pages. Returns `None` if there are too few.
fn pages_needed(heaps: &Heaps, request: &Request, room: &Room) -> Option<u64> {
    let ([heap], Some(page), false) = (heaps.store.heaps(), room.page_bytes, room.is_capturing) else {
        return None;
    };
    if heaps.shared.fixed.is_some() {
        return None;
    }
    let limit = heaps.maximum_bytes.saturating_sub(heap.bytes_reserved);
    let (needed, fresh) = (request.bytes.div_ceil(page), room.device_free?.min(limit) / page);
    let mut free = 0;
    for region in heap.regions() {
        let (mut start, mut end) = (region.base, region.base);
        for chunk in heap.region_chunks(region) {
            end = chunk.addr;
            if chunk.is_in_use() {
                free += (end / page).saturating_sub(start.div_ceil(page));
                start = chunk.addr + chunk.bytes;
            }
            end = end.max(chunk.addr + chunk.bytes);
        }
        free += (end / page).saturating_sub(start.div_ceil(page));
    }
    (free + fresh >= needed).then(|| needed.saturating_sub(fresh))
}

#[cfg(test)]
mod choice_tests;
#[cfg(test)]
mod tests;
