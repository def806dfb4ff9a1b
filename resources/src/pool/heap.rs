use std::fmt::Write as _;

use millpond_core::misuse::MisuseKind;
use millpond_core::{ALLOCATION_ALIGNMENT, DevicePtr, Layout, align_up, format_bytes};

use super::bins::{Bins, Wanted};
use super::chunk::{Chunk, Chunks, NIL};
use super::region::Region;
use crate::ordered::{ANYONE, Epoch, Fit, Growth, Owner, Request, Store, StoreTotals};

/// Regions grow from this many bytes on, and in multiples of it.
const REGION_UNIT: u64 = 2 << 20;

/// How many free blocks of a stream are looked at for neighbours that are anyone's, before the pool grows.
const JOIN_SCAN_LIMIT: usize = 4096;

/// Pieces of this size that are anyone's always join a neighbour that is given back.
const ANYONES_KEPT: u64 = 32 << 20;

/// Best fit with coalescing over regions.
///
/// The published algorithm is TensorFlow's BFC allocator: chunks with physical neighbours, binned by size,
/// split at allocation, joined with free neighbours at deallocation, over regions that grow by doubling. Here
/// a free chunk has an owner besides (see [`ordered`](crate::ordered)), and only chunks of one owner join: a
/// chunk depends on the work of its owner alone. Chunks whose owners' work is done become anyone's, and join
/// then.
///
/// Everything takes constant time, but for a bounded scan of a bin, and finding a region among *r* by
/// bisection.
#[derive(Debug)]
pub(crate) struct Heap {
    chunks: Chunks,
    /// By owner.
    bins: Vec<Option<Bins>>,
    /// By address.
    regions: Vec<Region>,
    totals: StoreTotals,
    /// What the next region will be, at most.
    next_region: u64,
    maximum_bytes: u64,
}

impl Heap {
    pub(crate) fn new(maximum_bytes: Option<u64>) -> Self {
        Self {
            chunks: Chunks::default(),
            bins: Vec::new(),
            regions: Vec::new(),
            totals: StoreTotals::default(),
            next_region: REGION_UNIT,
            maximum_bytes: maximum_bytes.unwrap_or(u64::MAX),
        }
    }

    fn bins(&self, owner: Owner) -> &Bins {
        self.bins[owner as usize].as_ref().expect("owners are added before use")
    }

    fn put_in_bin(&mut self, id: u32) {
        let bins = self.bins[self.chunks[id].owner() as usize].as_mut().expect("owners are added before use");
        bins.insert(&mut self.chunks, id);
        self.totals.blocks_free += 1;
    }

    fn take_from_bin(&mut self, id: u32) {
        let bins = self.bins[self.chunks[id].owner() as usize].as_mut().expect("owners are added before use");
        bins.remove(&mut self.chunks, id);
        self.totals.blocks_free -= 1;
    }

    fn region_of(&self, addr: u64) -> Option<usize> {
        let after = self.regions.partition_point(|region| region.base <= addr);
        after.checked_sub(1).filter(|index| self.regions[*index].contains(addr))
    }

    /// Cuts a chunk, in no bin, in two; the second part is a free chunk of the same owner, in no bin.
    fn cut(&mut self, id: u32, at: u64) -> u32 {
        let Chunk { addr, bytes, next, .. } = self.chunks[id];
        debug_assert!(0 < at && at < bytes);
        let (owner, epoch) = (self.chunks[id].owner(), self.chunks[id].epoch());
        let rest = self.chunks.add(Chunk::free(addr + at, bytes - at, id, next, owner, epoch));
        if next != NIL {
            self.chunks[next].prev = rest;
        }
        self.chunks[id].next = rest;
        self.chunks[id].bytes = at;
        rest
    }

    /// Joins a free chunk, in no bin, with free neighbours of the same owner, and with those that are
    /// anyone's and have `anyones` bytes at most; says what it is part of now.
    fn join(&mut self, mut id: u32, anyones: u64) -> u32 {
        let owner = self.chunks[id].owner();
        while let Some(next) = self.neighbour_for(owner, self.chunks[id].next, anyones) {
            self.take_from_bin(next);
            self.absorb_next(id);
        }
        while let Some(prev) = self.neighbour_for(owner, self.chunks[id].prev, anyones) {
            self.take_from_bin(prev);
            let epoch = self.chunks[prev].epoch();
            self.chunks[prev].set_free(owner, epoch);
            self.absorb_next(prev);
            id = prev;
        }
        id
    }

    fn neighbour_for(&self, owner: Owner, neighbour: u32, anyones: u64) -> Option<u32> {
        let chunk = (neighbour != NIL).then(|| &self.chunks[neighbour])?;
        let joins = chunk.owner() == owner || (chunk.owner() == ANYONE && chunk.bytes <= anyones);
        joins.then_some(neighbour)
    }

    /// How large a neighbour that is anyone's may be for a block given back to take it along. Small pieces
    /// are worth more joined; a large one is worth more to all streams.
    fn worth_keeping(&self) -> u64 {
        (self.totals.bytes_reserved / 16).max(ANYONES_KEPT)
    }

    fn absorb_next(&mut self, id: u32) {
        let next = self.chunks[id].next;
        let Chunk { bytes, next: after, .. } = self.chunks[next];
        let (owner, epoch) =
            (self.chunks[id].owner(), self.chunks[id].epoch().max(self.chunks[next].epoch()));
        let chunk = &mut self.chunks[id];
        chunk.bytes += bytes;
        chunk.next = after;
        chunk.set_free(owner, epoch);
        if after != NIL {
            self.chunks[after].prev = id;
        }
        self.chunks.remove(next);
    }

    /// Why a pointer that is no chunk's start is refused: error path, so it walks the region.
    fn blame(&self, addr: u64) -> MisuseKind {
        let Some(index) = self.region_of(addr) else { return MisuseKind::ForeignPointer };
        let mut id = self.regions[index].first;
        while id != NIL {
            let chunk = &self.chunks[id];
            if addr < chunk.addr + chunk.bytes {
                return if chunk.is_free() { MisuseKind::DoubleFree } else { MisuseKind::ForeignPointer };
            }
            id = chunk.next;
        }
        MisuseKind::ForeignPointer
    }

    fn is_joinable(&self, id: u32, owner: Owner) -> bool {
        let chunk = &self.chunks[id];
        chunk.owner() == owner || chunk.owner() == ANYONE
    }

    /// The run of neighbours around a chunk that are free for `owner`: the first, and the bytes of all.
    fn run_around(&self, id: u32, owner: Owner) -> (u32, u64) {
        let mut first = id;
        while self.chunks[first].prev != NIL && self.is_joinable(self.chunks[first].prev, owner) {
            first = self.chunks[first].prev;
        }
        let (mut bytes, mut id) = (0, first);
        while id != NIL && self.is_joinable(id, owner) {
            bytes += self.chunks[id].bytes;
            id = self.chunks[id].next;
        }
        (first, bytes)
    }

    fn all_bins(&self) -> impl Iterator<Item = &Bins> {
        self.bins.iter().flatten()
    }

    /// Whether the whole region is one free chunk of anyone's.
    fn is_free_region(&self, region: &Region) -> bool {
        let first = &self.chunks[region.first];
        first.owner() == ANYONE && first.bytes == region.bytes
    }
}

impl Store for Heap {
    type Token = u32;

    fn add_owner(&mut self, owner: Owner) {
        let index = owner as usize;
        if self.bins.len() <= index {
            self.bins.resize_with(index + 1, || None);
        }
        self.bins[index].get_or_insert_with(Bins::new);
    }

    fn remove_owner(&mut self, owner: Owner) {
        debug_assert_eq!(self.bins(owner).blocks, 0);
        self.bins[owner as usize] = None;
    }

    fn find(&self, owner: Owner, upto: Epoch, request: &Request) -> Option<Fit<u32>> {
        let wanted = Wanted { bytes: request.bytes, alignment: request.alignment, upto };
        let id = self.bins(owner).find(&self.chunks, wanted)?;
        let chunk = &self.chunks[id];
        Some(Fit { token: id, bytes: chunk.bytes, epoch: chunk.epoch() })
    }

    fn take(&mut self, token: u32, request: &Request) -> DevicePtr {
        let mut id = token;
        self.take_from_bin(id);
        let padding = self.chunks[id].addr.wrapping_neg() & (request.alignment - 1);
        if padding > 0 {
            let aligned = self.cut(id, padding);
            self.put_in_bin(id);
            id = aligned;
        }
        if self.chunks[id].bytes > request.bytes {
            let rest = self.cut(id, request.bytes);
            self.put_in_bin(rest);
        }
        let addr = self.chunks[id].addr;
        self.chunks[id].set_in_use(request.requested);
        let region = self.region_of(addr).expect("chunks lie in regions");
        self.regions[region].set_start(addr, id);
        let totals = &mut self.totals;
        totals.blocks_in_use += 1;
        totals.bytes_in_use += request.bytes;
        totals.bytes_requested += request.requested;
        totals.peak_bytes_in_use = totals.peak_bytes_in_use.max(totals.bytes_in_use);
        DevicePtr::new(addr)
    }

    fn give(&mut self, ptr: DevicePtr, layout: Layout, owner: Owner, epoch: Epoch) -> Result<(), MisuseKind> {
        let addr = ptr.address();
        let known = self.region_of(addr).and_then(|region| self.regions[region].start(addr));
        let in_use = known
            .filter(|id| self.chunks.get(*id).is_some_and(|chunk| chunk.is_in_use() && chunk.addr == addr));
        let Some(id) = in_use else { return Err(self.blame(addr)) };
        let requested = self.chunks[id].requested();
        if requested != layout.bytes() {
            return Err(MisuseKind::WrongSize { allocated_bytes: requested });
        }
        self.totals.blocks_in_use -= 1;
        self.totals.bytes_in_use -= self.chunks[id].bytes;
        self.totals.bytes_requested -= requested;
        self.chunks[id].set_free(owner, epoch);
        let joined = self.join(id, self.worth_keeping());
        self.put_in_bin(joined);
        Ok(())
    }

    fn migrate(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch) {
        if self.bins(from).blocks == 0 {
            return;
        }
        let moving: Vec<u32> =
            self.bins(from).iter(&self.chunks).filter(|id| self.chunks[*id].epoch() <= upto).collect();
        // First all change hands, then they join: a chunk that moves may swallow another that moves.
        for id in &moving {
            self.take_from_bin(*id);
            self.chunks[*id].set_free(to, epoch);
            self.put_in_bin(*id);
        }
        for id in moving {
            let swallowed = self.chunks.get(id).is_none_or(|chunk| chunk.owner() != to);
            if !swallowed {
                self.take_from_bin(id);
                let joined = self.join(id, 0);
                self.put_in_bin(joined);
            }
        }
    }

    fn join_with_anyones(&mut self, owner: Owner, request: &Request) -> bool {
        if self.bins(ANYONE).blocks == 0 || self.bins(owner).bytes + self.bins(ANYONE).bytes < request.bytes {
            return false;
        }
        let own = self.bins(owner).iter(&self.chunks).take(JOIN_SCAN_LIMIT);
        let run =
            own.map(|id| self.run_around(id, owner)).find(|(_, bytes)| *bytes >= request.padded_bytes());
        let Some((first, _)) = run else { return false };
        self.take_from_bin(first);
        let epoch = self.chunks[first].epoch();
        self.chunks[first].set_free(owner, epoch);
        let joined = self.join(first, u64::MAX);
        self.put_in_bin(joined);
        true
    }

    fn free_bytes(&self, owner: Owner) -> u64 {
        self.bins(owner).bytes
    }

    fn largest_free_block(&self) -> u64 {
        self.all_bins().map(|bins| bins.largest(&self.chunks)).max().unwrap_or(0)
    }

    fn growth(&self, request: &Request) -> Option<Growth> {
        let room = self.maximum_bytes.saturating_sub(self.totals.bytes_reserved);
        let least = request.padded_bytes();
        if least > room {
            return None;
        }
        let modest = (self.totals.bytes_reserved / 8).max(REGION_UNIT);
        let wanted = align_up(self.next_region.min(modest).max(least), REGION_UNIT)?;
        let preferred = wanted.min(room & !(ALLOCATION_ALIGNMENT - 1)).max(least);
        Some(Growth { preferred, least, unit: ALLOCATION_ALIGNMENT })
    }

    fn add_region(&mut self, base: DevicePtr, bytes: u64, owner: Owner, epoch: Epoch) {
        let first = self.chunks.add(Chunk::free(base.address(), bytes, NIL, NIL, owner, epoch));
        let at = self.regions.partition_point(|region| region.base < base.address());
        self.regions.insert(at, Region::new(base.address(), bytes, first));
        self.put_in_bin(first);
        self.next_region = self.next_region.saturating_mul(2);
        let totals = &mut self.totals;
        totals.regions += 1;
        totals.bytes_reserved += bytes;
        totals.peak_bytes_reserved = totals.peak_bytes_reserved.max(totals.bytes_reserved);
    }

    fn remove_free_region(&mut self) -> Option<(DevicePtr, u64)> {
        let index = self.regions.iter().position(|region| self.is_free_region(region))?;
        let region = self.regions.remove(index);
        self.take_from_bin(region.first);
        self.chunks.remove(region.first);
        self.totals.regions -= 1;
        self.totals.bytes_reserved -= region.bytes;
        Some((DevicePtr::new(region.base), region.bytes))
    }

    fn remove_all_regions(&mut self) -> Vec<(DevicePtr, u64)> {
        let regions = std::mem::take(&mut self.regions);
        regions.into_iter().map(|region| (DevicePtr::new(region.base), region.bytes)).collect()
    }

    fn totals(&self) -> &StoreTotals {
        &self.totals
    }

    fn describe(&self, request: &Request) -> String {
        super::report::describe(self, request)
    }

    fn validate(&self) {
        let (mut in_use, mut requested, mut free, mut used_blocks, mut free_blocks) = (0, 0, 0, 0, 0);
        for (index, region) in self.regions.iter().enumerate() {
            let before = index.checked_sub(1).map(|i| &self.regions[i]);
            assert!(before.is_none_or(|r| r.base + r.bytes <= region.base), "regions overlap");
            let (mut id, mut prev, mut addr, mut last_owner) = (region.first, NIL, region.base, None);
            while id != NIL {
                let chunk = &self.chunks[id];
                assert_eq!(
                    (chunk.addr, chunk.prev),
                    (addr, prev),
                    "chunk {id} does not follow its neighbour"
                );
                assert!(
                    chunk.bytes > 0 && chunk.bytes.is_multiple_of(ALLOCATION_ALIGNMENT),
                    "size of chunk {id}"
                );
                if chunk.is_in_use() {
                    in_use += chunk.bytes;
                    requested += chunk.requested();
                    used_blocks += 1;
                    assert_eq!(region.start(addr), Some(id), "the start of chunk {id}");
                    last_owner = None;
                } else {
                    assert!(chunk.is_free(), "chunk {id} is vacant");
                    assert_ne!(last_owner, Some(chunk.owner()), "free neighbours of one owner did not join");
                    last_owner = Some(chunk.owner());
                    free += chunk.bytes;
                    free_blocks += 1;
                }
                (addr, prev, id) = (addr + chunk.bytes, id, chunk.next);
            }
            assert_eq!(addr, region.base + region.bytes, "the chunks do not fill the region");
        }
        let totals = &self.totals;
        assert_eq!((in_use, requested), (totals.bytes_in_use, totals.bytes_requested));
        assert_eq!((used_blocks, free_blocks), (totals.blocks_in_use, totals.blocks_free));
        assert_eq!(in_use + free, totals.bytes_reserved);
        self.all_bins().for_each(|bins| bins.validate(&self.chunks));
        let binned: (u64, u64) = self.all_bins().fold((0, 0), |sum, b| (sum.0 + b.bytes, sum.1 + b.blocks));
        assert_eq!(binned, (free, free_blocks));
    }
}

impl Heap {
    /// For each owner with free blocks: blocks, bytes, the largest.
    pub(super) fn free_by_owner(&self) -> Vec<(Owner, u64, u64, u64)> {
        let owners = (0..).zip(&self.bins).filter_map(|(owner, bins)| Some((owner, bins.as_ref()?)));
        owners
            .filter(|(_, bins)| bins.blocks > 0)
            .map(|(owner, bins)| (owner, bins.blocks, bins.bytes, bins.largest(&self.chunks)))
            .collect()
    }

    /// The pool's memory as `width` letters, in address order: `#` in use, `+` partly, `.` free.
    pub(super) fn picture(&self, width: usize) -> String {
        let total = self.totals.bytes_reserved.max(1);
        let mut used = vec![0u64; width];
        let mut at = 0u64;
        for region in &self.regions {
            let mut id = region.first;
            while id != NIL {
                let chunk = &self.chunks[id];
                if chunk.is_in_use() {
                    spread(&mut used, at, chunk.bytes, total);
                }
                at += chunk.bytes;
                id = chunk.next;
            }
        }
        let cell = total.div_ceil(width as u64);
        used.iter()
            .map(|bytes| {
                if *bytes == 0 {
                    '.'
                } else if *bytes * 10 >= cell * 9 {
                    '#'
                } else {
                    '+'
                }
            })
            .collect()
    }

    pub(super) fn maximum_bytes(&self) -> Option<u64> {
        Some(self.maximum_bytes).filter(|bytes| *bytes != u64::MAX)
    }
}

/// Adds `bytes` from place `at` on to the cells that they fall into.
fn spread(cells: &mut [u64], at: u64, bytes: u64, total: u64) {
    let cell = total.div_ceil(cells.len() as u64);
    let (mut at, end) = (at, at + bytes);
    while at < end {
        let index = ((at / cell) as usize).min(cells.len() - 1);
        let upto = ((index as u64 + 1) * cell).min(end).max(at + 1);
        cells[index] += upto - at;
        at = upto;
    }
}

/// One line per owner for the report.
pub(super) fn write_owner(out: &mut String, name: &str, blocks: u64, bytes: u64, largest: u64) {
    let _ = write!(
        out,
        "\n  {name}: {} in {blocks} free blocks, the largest {}",
        format_bytes(bytes),
        format_bytes(largest)
    );
}
