//! RMM's arena memory resource as a layer: `rmm_arena`. It reserves all its memory at once. The global arena
//! serves requests above 1 MiB. The arena of the stream serves smaller requests. It gets superblocks of 1 MiB
//! from the global arena. Each arena serves a request from the first block that fits, in the order of
//! addresses. When there is no memory for a request, all superblocks return to the global arena.

use std::collections::BTreeMap;

use millpond_core::driver::DriverResult;
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{ByteSize, DevicePtr, Driver, Error, StreamId, StreamRef};

use super::resource::{Model, Peer};

const ALIGNMENT: u64 = 256;

/// The size in bytes of the smallest superblock, and of the largest request for a stream's arena.
const SUPERBLOCK: u64 = 1 << 20;

/// Builds `rmm_arena` from text.
pub(super) const ENTRY: LayerEntry = LayerEntry {
    name: "rmm_arena",
    about: "a model of RMM's arena memory resource, for comparison",
    params: &[("size", "the memory reserved from the driver at once (default: half of the free memory)")],
    kind: LayerKind::ReadBase(|params| {
        let size = params.get("size")?.unwrap_or(ByteSize::PercentOfFree(50.0));
        Ok(Box::new(move |driver, _| {
            let size = size.resolve(&**driver)? / ALIGNMENT * ALIGNMENT;
            if size < SUPERBLOCK {
                return Err(Error::invalid_stack("`size` of `rmm_arena` must be at least 1MiB"));
            }
            let text = format!("rmm_arena:size={}", ByteSize::Bytes(size));
            let start = driver.mem_alloc(size).map_err(Error::from)?.address();
            Ok(Peer::erased(driver, text, RmmArena::new(start, size)))
        }))
    }),
};

/// A range of memory that an arena owns, with its free blocks by address.
#[derive(Clone, Debug)]
struct Superblock {
    bytes: u64,
    free: BTreeMap<u64, u64>,
    /// A size that is at least the size of the superblock's largest free block.
    largest: u64,
}

impl Superblock {
    fn unused(address: u64, bytes: u64) -> Self {
        Self { bytes, free: BTreeMap::from([(address, bytes)]), largest: bytes }
    }

    fn is_unused(&self) -> bool {
        self.free.len() == 1 && self.free.values().all(|bytes| *bytes == self.bytes)
    }

    /// Returns whether a request fits into a free block. If the superblock had to be searched, stores the
    /// size of its largest free block.
    fn fits(&mut self, bytes: u64) -> bool {
        if self.largest < bytes {
            return false;
        }
        self.largest = self.free.values().copied().max().unwrap_or(0);
        self.largest >= bytes
    }

    fn first_fit(&mut self, bytes: u64) -> Option<u64> {
        let (&address, &size) = self.free.iter().find(|(_, size)| **size >= bytes)?;
        self.free.remove(&address);
        if size > bytes {
            self.free.insert(address + bytes, size - bytes);
        }
        Some(address)
    }

    fn free(&mut self, mut address: u64, mut bytes: u64) {
        let before = self.free.range(..address).next_back().map(|(&start, &bytes)| (start, bytes));
        if let Some((start, size)) = before.filter(|(start, size)| start + size == address) {
            self.free.remove(&start);
            (address, bytes) = (start, bytes + size);
        }
        bytes += self.free.remove(&(address + bytes)).unwrap_or(0);
        self.free.insert(address, bytes);
        self.largest = self.largest.max(bytes);
    }
}

/// Superblocks by address.
type Superblocks = BTreeMap<u64, Superblock>;

#[derive(Debug)]
struct RmmArena {
    start: u64,
    bytes: u64,
    global: Superblocks,
    arenas: Vec<(StreamId, Superblocks)>,
}

/// Serves a request from the first superblock that has room.
fn first_fit(superblocks: &mut Superblocks, bytes: u64) -> Option<u64> {
    let mut all = superblocks.values_mut();
    all.find_map(|superblock| if superblock.fits(bytes) { superblock.first_fit(bytes) } else { None })
}

/// Frees a block. Returns the address of its superblock, or `None` if none of these superblocks holds the
/// block.
fn free_in(superblocks: &mut Superblocks, address: u64, bytes: u64) -> Option<u64> {
    let (&start, superblock) = superblocks.range_mut(..=address).next_back()?;
    if address + bytes > start + superblock.bytes {
        return None;
    }
    superblock.free(address, bytes);
    Some(start)
}

impl RmmArena {
    fn new(start: u64, bytes: u64) -> Self {
        let global = BTreeMap::from([(start, Superblock::unused(start, bytes))]);
        Self { start, bytes, global, arenas: Vec::new() }
    }

    fn arena(&mut self, stream: StreamRef) -> usize {
        let id = stream.id();
        let known = self.arenas.iter().position(|(stream, _)| *stream == id);
        known.unwrap_or_else(|| {
            self.arenas.push((id, BTreeMap::new()));
            self.arenas.len() - 1
        })
    }

    /// Removes the first superblock that has room from the global arena. An unused superblock is cut to the
    /// needed size.
    fn take_superblock(&mut self, bytes: u64) -> Option<(u64, Superblock)> {
        let mut superblocks = self.global.iter_mut();
        let start = superblocks.find_map(|(&start, superblock)| superblock.fits(bytes).then_some(start))?;
        let superblock = self.global.remove(&start)?;
        let wanted = bytes.max(SUPERBLOCK);
        if superblock.is_unused() && superblock.bytes >= wanted + SUPERBLOCK {
            let rest = superblock.bytes - wanted;
            self.global.insert(start + wanted, Superblock::unused(start + wanted, rest));
            return Some((start, Superblock::unused(start, wanted)));
        }
        Some((start, superblock))
    }

    /// Adds a superblock to the global arena. An unused superblock merges with unused neighbours.
    fn give_superblock(&mut self, mut start: u64, mut superblock: Superblock) {
        if superblock.is_unused() {
            let before = self.global.range(..start).next_back();
            let before = before.filter(|(at, other)| *at + other.bytes == start && other.is_unused());
            if let Some((&at, other)) = before {
                (start, superblock) = (at, Superblock::unused(at, other.bytes + superblock.bytes));
                self.global.remove(&at);
            }
            let end = start + superblock.bytes;
            if let Some(other) = self.global.get(&end).filter(|other| other.is_unused()) {
                superblock = Superblock::unused(start, superblock.bytes + other.bytes);
                self.global.remove(&end);
            }
        }
        self.global.insert(start, superblock);
    }

    /// Frees a block in a superblock of the global arena. Returns whether there is such a superblock.
    fn free_global(&mut self, address: u64, bytes: u64) -> bool {
        let Some(start) = free_in(&mut self.global, address, bytes) else { return false };
        if let Some(superblock) = self.global.remove(&start) {
            self.give_superblock(start, superblock);
        }
        true
    }

    fn serve(&mut self, arena: usize, bytes: u64) -> Option<u64> {
        if bytes > SUPERBLOCK {
            let (start, mut superblock) = self.take_superblock(bytes)?;
            let address = superblock.first_fit(bytes);
            self.global.insert(start, superblock);
            return address;
        }
        if let Some(address) = first_fit(&mut self.arenas[arena].1, bytes) {
            return Some(address);
        }
        let (start, mut superblock) = self.take_superblock(bytes)?;
        let address = superblock.first_fit(bytes);
        self.arenas[arena].1.insert(start, superblock);
        address
    }
}

impl Model for RmmArena {
    fn allocate(&mut self, driver: &dyn Driver, bytes: u64, stream: StreamRef) -> DriverResult<Option<u64>> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let arena = self.arena(stream);
        if let Some(address) = self.serve(arena, bytes) {
            return Ok(Some(address));
        }
        // All superblocks go back, even those with live blocks.
        driver.synchronize()?;
        for other in 0..self.arenas.len() {
            for (start, superblock) in std::mem::take(&mut self.arenas[other].1) {
                self.give_superblock(start, superblock);
            }
        }
        Ok(self.serve(arena, bytes))
    }

    fn free(&mut self, driver: &dyn Driver, address: u64, bytes: u64, stream: StreamRef) -> DriverResult<()> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        if bytes > SUPERBLOCK {
            driver.stream_synchronize(stream)?;
            if self.free_global(address, bytes) {
                return Ok(());
            }
        }
        let own = self.arena(stream);
        if free_in(&mut self.arenas[own].1, address, bytes).is_some() {
            return Ok(());
        }
        driver.stream_synchronize(stream)?;
        for (_, superblocks) in &mut self.arenas {
            if free_in(superblocks, address, bytes).is_some() {
                return Ok(());
            }
        }
        self.free_global(address, bytes);
        Ok(())
    }

    fn reserved_bytes(&self) -> u64 {
        self.bytes
    }

    fn free_blocks(&self) -> (u64, u64) {
        let all = self.arenas.iter().flat_map(|(_, superblocks)| superblocks.values());
        let sizes = all.chain(self.global.values()).flat_map(|superblock| superblock.free.values());
        sizes.fold((0, 0), |(largest, count), bytes| (largest.max(*bytes), count + 1))
    }

    fn release_all(&mut self, driver: &dyn Driver) {
        // SAFETY: the memory is ours; the driver waits for work that uses it.
        let _ = unsafe { driver.mem_free(DevicePtr::new(self.start)) };
    }
}
