use std::collections::VecDeque;
use std::convert::Infallible;

use millpond_core::misuse::MisuseKind;
use millpond_core::{DevicePtr, Layout, LiveBlock};

use crate::ordered::{
    ANYONE, Epoch, Fit, FreeOf, Growth, Owner, Request, Room, Shortage, Store, StoreTotals,
};

/// The note of a block that is free.
const FREE: u64 = u64::MAX;

/// Memory from one upstream allocation, cut into blocks.
#[derive(Debug)]
struct Region {
    base: u64,
    bytes: u64,
    /// By block: what was asked for, or `FREE`.
    requested: Vec<u64>,
}

/// Blocks of one size in regions, with a queue of free blocks for each owner.
///
/// A queue is in the order of the deallocations, so its epochs never fall: what a point covers is a front
/// part of it, and finding, taking and giving back take constant time.
#[derive(Debug)]
pub(crate) struct Blocks {
    block_bytes: u64,
    blocks_per_region: u64,
    /// By address.
    regions: Vec<Region>,
    /// By owner.
    free: Vec<VecDeque<(u64, Epoch)>>,
    totals: StoreTotals,
}

impl Blocks {
    pub(crate) fn new(block_bytes: u64, blocks_per_region: u64) -> Self {
        Self {
            block_bytes,
            blocks_per_region,
            regions: Vec::new(),
            free: Vec::new(),
            totals: StoreTotals::default(),
        }
    }

    /// The blocks in use of the region that starts here, if one does.
    pub(crate) fn live_in(&self, base: u64) -> Option<Vec<LiveBlock>> {
        let region = self.regions.iter().find(|region| region.base == base)?;
        let blocks = (0u64..).zip(&region.requested).filter(|(_, requested)| **requested != FREE);
        let live = |(block, bytes): (u64, &u64)| LiveBlock {
            address: base + block * self.block_bytes,
            bytes: *bytes,
        };
        Some(blocks.map(live).collect())
    }

    /// The region and number of the block that starts at this address.
    fn locate(&self, addr: u64) -> Option<(usize, usize)> {
        let index = self.regions.partition_point(|region| region.base <= addr).checked_sub(1)?;
        let region = &self.regions[index];
        let offset = addr - region.base;
        let block = (offset / self.block_bytes) as usize;
        (offset.is_multiple_of(self.block_bytes) && block < region.requested.len()).then_some((index, block))
    }
}

impl Store for Blocks {
    type Errand = Infallible;

    fn add_owner(&mut self, owner: Owner) {
        if self.free.len() <= owner as usize {
            self.free.resize_with(owner as usize + 1, VecDeque::new);
        }
    }

    fn remove_owner(&mut self, owner: Owner) {
        debug_assert!(self.free[owner as usize].is_empty());
        self.free[owner as usize] = VecDeque::new();
    }

    fn find(&self, owner: Owner, upto: Epoch, _request: &Request) -> Option<Fit> {
        let (_, epoch) = *self.free[owner as usize].front()?;
        (epoch <= upto).then_some(Fit { bytes: self.block_bytes, epoch })
    }

    fn take(&mut self, owner: Owner, upto: Epoch, request: &Request) -> Option<DevicePtr> {
        let queue = &mut self.free[owner as usize];
        let (addr, _) = *queue.front().filter(|(_, epoch)| *epoch <= upto)?;
        queue.pop_front();
        let (region, block) = self.locate(addr).expect("blocks lie in regions");
        self.regions[region].requested[block] = request.requested;
        let totals = &mut self.totals;
        totals.blocks_free -= 1;
        totals.blocks_in_use += 1;
        totals.bytes_in_use += self.block_bytes;
        totals.bytes_requested += request.requested;
        totals.peak_bytes_in_use = totals.peak_bytes_in_use.max(totals.bytes_in_use);
        Some(DevicePtr::new(addr))
    }

    fn give(&mut self, ptr: DevicePtr, layout: Layout, owner: Owner, epoch: Epoch) -> Result<(), MisuseKind> {
        let (region, block) = self.locate(ptr.address()).ok_or(MisuseKind::ForeignPointer)?;
        let requested = self.regions[region].requested[block];
        if requested == FREE {
            return Err(MisuseKind::DoubleFree);
        }
        if requested != layout.bytes() {
            return Err(MisuseKind::WrongSize { allocated_bytes: requested });
        }
        self.regions[region].requested[block] = FREE;
        self.free[owner as usize].push_back((ptr.address(), epoch));
        let totals = &mut self.totals;
        totals.deallocations += 1;
        totals.blocks_free += 1;
        totals.blocks_in_use -= 1;
        totals.bytes_in_use -= self.block_bytes;
        totals.bytes_requested -= requested;
        Ok(())
    }

    fn migrate(&mut self, from: Owner, upto: Epoch, to: Owner, epoch: Epoch) {
        while let Some((addr, given)) = self.free[from as usize].front().copied()
            && given <= upto
        {
            self.free[from as usize].pop_front();
            self.free[to as usize].push_back((addr, epoch));
        }
    }

    fn take_with_anyones(&mut self, _owner: Owner, _request: &Request) -> Option<DevicePtr> {
        None
    }

    fn free_bytes(&self, owner: Owner) -> u64 {
        self.free[owner as usize].len() as u64 * self.block_bytes
    }

    fn largest_free_block(&self) -> u64 {
        if self.totals.blocks_free > 0 { self.block_bytes } else { 0 }
    }

    fn growth(&self, _request: &Request) -> Option<Growth> {
        // As many blocks again as are in use, so that few blocks in use keep few waiting.
        let blocks = self.totals.blocks_in_use.clamp(1, self.blocks_per_region);
        Some(Growth { preferred: blocks * self.block_bytes, least: self.block_bytes, unit: self.block_bytes })
    }

    fn add_region(&mut self, base: DevicePtr, bytes: u64, owner: Owner, epoch: Epoch) {
        let blocks = bytes / self.block_bytes;
        let addresses = (0..blocks).map(|block| base.address() + block * self.block_bytes);
        self.free[owner as usize].extend(addresses.map(|addr| (addr, epoch)));
        let at = self.regions.partition_point(|region| region.base < base.address());
        let requested = vec![FREE; blocks as usize];
        self.regions.insert(at, Region { base: base.address(), bytes, requested });
        let totals = &mut self.totals;
        totals.regions += 1;
        totals.blocks_free += blocks;
        totals.bytes_reserved += bytes;
        totals.peak_bytes_reserved = totals.peak_bytes_reserved.max(totals.bytes_reserved);
    }

    fn remove_free_region(&mut self) -> Option<(DevicePtr, u64)> {
        let mut anyones = vec![0; self.regions.len()];
        for (addr, _) in &self.free[ANYONE as usize] {
            let (region, _) = self.locate(*addr)?;
            anyones[region] += 1;
        }
        let index =
            (0..self.regions.len()).find(|index| anyones[*index] == self.regions[*index].requested.len())?;
        let region = self.regions.remove(index);
        let end = region.base + region.bytes;
        self.free[ANYONE as usize].retain(|(addr, _)| !(region.base..end).contains(addr));
        self.totals.regions -= 1;
        self.totals.blocks_free -= region.requested.len() as u64;
        self.totals.bytes_reserved -= region.bytes;
        Some((DevicePtr::new(region.base), region.bytes))
    }

    fn remove_all_regions(&mut self) -> Vec<(DevicePtr, u64)> {
        let regions = std::mem::take(&mut self.regions);
        regions.into_iter().map(|region| (DevicePtr::new(region.base), region.bytes)).collect()
    }

    fn totals(&self) -> StoreTotals {
        self.totals
    }

    /// Any block in use would do.
    fn shortage(&mut self, _request: &Request, _room: &Room) -> Shortage {
        let of = |(owner, queue): (Owner, &VecDeque<_>)| {
            let blocks = queue.len() as u64;
            FreeOf { owner, blocks, bytes: blocks * self.block_bytes, largest: self.block_bytes }
        };
        let free = (ANYONE..).zip(&self.free).map(of).filter(|free| free.blocks > 0).collect();
        let block_of = |region: &Region| {
            let block = region.requested.iter().position(|requested| *requested != FREE)?;
            let address = region.base + block as u64 * self.block_bytes;
            Some(LiveBlock { address, bytes: region.requested[block] })
        };
        let in_the_way = self.regions.iter().find_map(block_of).into_iter().collect();
        Shortage { needed: self.block_bytes, free, in_the_way, ..Shortage::default() }
    }

    fn validate(&self) {
        let queued: usize = self.free.iter().map(VecDeque::len).sum();
        let notes = || self.regions.iter().flat_map(|region| &region.requested);
        let free = notes().filter(|note| **note == FREE).count();
        assert_eq!((queued, free as u64), (free, self.totals.blocks_free), "queues and notes");
        assert_eq!((notes().count() - free) as u64, self.totals.blocks_in_use);
        for queue in &self.free {
            assert!(queue.iter().is_sorted_by_key(|(_, epoch)| epoch), "epochs fall in a queue");
            for (addr, _) in queue {
                let (region, block) = self.locate(*addr).expect("queued blocks lie in regions");
                assert_eq!(self.regions[region].requested[block], FREE, "a block in use is queued");
            }
        }
        assert_eq!(self.regions.iter().map(|region| region.bytes).sum::<u64>(), self.totals.bytes_reserved);
    }
}
