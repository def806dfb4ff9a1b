//! Allocates real memory for many blocks at once. One mapping per block would cost more than the rest of a
//! simulated call.

use memmap2::{MmapMut, MmapOptions};
use rustc_hash::FxHashMap;

/// The alignment of blocks in bytes.
pub(super) const ALIGNMENT: usize = 4 << 10;

/// How many blocks of its class's largest size fit into a chunk.
const BLOCKS_A_CHUNK: usize = 64;

/// A freed block with at least this many committed bytes returns to the system at once, not with its chunk.
const DISCARD_AT_LEAST: usize = 64 << 10;

/// Zeroed blocks, cut from larger mappings.
///
/// A chunk hands out its addresses once, from start to end, so each block is fresh. A used-up chunk is
/// unmapped together with its last block.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    chunks: FxHashMap<u64, Chunk>,
    /// The chunk to cut blocks from, by the power of two that holds them.
    open: FxHashMap<u32, u64>,
    blocks: FxHashMap<usize, Block>,
    next_chunk: u64,
}

#[derive(Debug)]
struct Chunk {
    memory: MmapMut,
    class: u32,
    next: usize,
    live: usize,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    chunk: u64,
    bytes: usize,
}

impl Chunks {
    /// The address of `bytes` zero bytes; `None` if the system has no such range.
    pub(super) fn allocate(&mut self, bytes: usize) -> Option<usize> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let class = bytes.checked_next_power_of_two()?.trailing_zeros();
        let open = self.open.get(&class).copied();
        let id = match open.filter(|id| self.chunks.get(id).is_some_and(|chunk| chunk.has_room(bytes))) {
            Some(id) => id,
            None => {
                let fresh = Chunk::new(bytes, class)?;
                let id = self.next_chunk;
                self.next_chunk += 1;
                self.chunks.insert(id, fresh);
                let used_up = self.open.insert(class, id);
                if let Some(used_up) = used_up.filter(|id| self.chunks.get(id).is_some_and(|c| c.live == 0)) {
                    self.chunks.remove(&used_up);
                }
                id
            }
        };
        let address = self.chunks.get_mut(&id)?.cut(bytes);
        self.blocks.insert(address, Block { chunk: id, bytes });
        Some(address)
    }

    /// Frees a block and returns its size in bytes, rounded up; `None` if no block starts at this address.
    pub(super) fn free(&mut self, address: usize) -> Option<usize> {
        let Block { chunk: id, bytes } = self.blocks.remove(&address)?;
        let chunk = self.chunks.get_mut(&id)?;
        chunk.live -= 1;
        if chunk.live == 0 && self.open.get(&chunk.class) != Some(&id) {
            self.chunks.remove(&id);
        } else if bytes >= DISCARD_AT_LEAST {
            chunk.discard(address, bytes);
        }
        Some(bytes)
    }
}

impl Chunk {
    /// A new chunk with room for many blocks, or for only one if the system refuses that.
    fn new(bytes: usize, class: u32) -> Option<Self> {
        let map = |bytes: usize| MmapOptions::new().len(bytes).no_reserve_swap().map_anon().ok();
        let many = 1_usize.checked_shl(class).and_then(|size| size.checked_mul(BLOCKS_A_CHUNK));
        let memory = many.and_then(map).or_else(|| map(bytes))?;
        Some(Self { memory, class, next: 0, live: 0 })
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.memory.len() - self.next >= bytes
    }

    /// Cuts the next block; the chunk has room for it.
    fn cut(&mut self, bytes: usize) -> usize {
        let address = self.memory.as_ptr().expose_provenance() + self.next;
        self.next += bytes;
        self.live += 1;
        address
    }

    /// Returns a freed block's committed memory to the system. The block is not read again.
    #[cfg(unix)]
    fn discard(&mut self, address: usize, bytes: usize) {
        let offset = address - self.memory.as_ptr().addr();
        // SAFETY: the range belongs to a freed block in a private mapping without a file. No reference to it
        // exists, and it is never cut again. If the system refuses, the memory stays until the chunk ends.
        let _ =
            unsafe { self.memory.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, bytes) };
    }

    #[cfg(not(unix))]
    fn discard(&mut self, _address: usize, _bytes: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_at(address: usize, bytes: usize) -> &'static mut [u8] {
        // SAFETY: the tests name only live blocks, each through one slice at a time.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), bytes) }
    }

    #[test]
    fn blocks_are_zero_and_apart() {
        let mut chunks = Chunks::default();
        let mut live: Vec<(usize, usize)> = Vec::new();
        for step in 0..2000_usize {
            let bytes = 1 + step * 7919 % 100_000;
            let address = chunks.allocate(bytes).unwrap();
            assert!(address.is_multiple_of(ALIGNMENT));
            let memory = bytes_at(address, bytes);
            assert!(memory.iter().all(|byte| *byte == 0), "step {step}");
            memory.fill(step as u8 | 1);
            live.push((address, bytes));
            if live.len() > 40 {
                let (address, bytes) = live.swap_remove(step * 31 % live.len());
                assert!(bytes_at(address, bytes).windows(2).all(|pair| pair[0] == pair[1]), "step {step}");
                assert_eq!(chunks.free(address), Some(bytes.next_multiple_of(ALIGNMENT)));
                assert_eq!(chunks.free(address), None);
            }
        }
    }

    #[test]
    fn issue_9_a_mapping_serves_many_blocks_and_ends_with_the_last() {
        let mut chunks = Chunks::default();
        for _ in 0..100 {
            let addresses: Vec<usize> = (0..1000).map(|_| chunks.allocate(30_000).unwrap()).collect();
            assert!(chunks.chunks.len() <= 1000 / BLOCKS_A_CHUNK + 2, "{}", chunks.chunks.len());
            addresses.into_iter().for_each(|address| _ = chunks.free(address));
            assert!(chunks.chunks.len() <= 1, "only the open one is left: {}", chunks.chunks.len());
        }
    }

    #[test]
    fn a_range_that_the_system_lacks_is_none() {
        assert_eq!(Chunks::default().allocate(usize::MAX), None);
        assert_eq!(Chunks::default().allocate(1 << 60), None);
    }
}
