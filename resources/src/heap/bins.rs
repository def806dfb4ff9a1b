//! Keeps the free chunks of one owner by size, for best fit in constant time.

use millpond_core::ALLOCATION_ALIGNMENT;

use crate::block_map::NIL;
use crate::heap::chunk::Chunks;
use crate::stream_order::Epoch;

/// 32 bins per power of two, so that sizes in one bin differ by 3 % at most.
const SUB_BITS: u32 = 5;
const SUBS: usize = 1 << SUB_BITS;
/// Level 0 has one bin for each size up to 8 KiB; sizes end below 2^56 bytes.
const LEVELS: usize = 44;

/// The free chunks of one owner, by size.
///
/// ```text
///  levels: u64      one bit for each level that has a chunk
///  subs: [u32; 44]  one bit for each bin of the level that has a chunk
///  heads            first chunk of each bin; the bin is a doubly linked list through the chunks
///
///  size / 256 =   1  2 … 31 | 32 33 … 63 | 64, 66 … 126 | 128, 132 … | …
///                 level 0     level 1      level 2        level 3
/// ```
///
/// Two bit scans find the smallest bin whose chunks surely fit, as in TLSF (Masmano et al., 2004). The search
/// then compares the chunks in the bin, so it is best fit rather than good fit.
#[derive(Debug)]
pub(crate) struct Bins {
    levels: u64,
    subs: [u32; LEVELS],
    /// The bins of all levels up to the largest used.
    heads: Vec<u32>,
    /// Bytes in all chunks.
    pub(crate) bytes: u64,
    /// The number of chunks.
    pub(crate) blocks: u64,
}

/// Returns the bin of a size in bytes: level and index in the level.
fn bin_of(bytes: u64) -> (usize, usize) {
    let granules = bytes / ALLOCATION_ALIGNMENT;
    if granules < SUBS as u64 {
        return (0, granules as usize);
    }
    let exponent = granules.ilog2();
    let sub = (granules >> (exponent - SUB_BITS)) as usize & (SUBS - 1);
    ((exponent - SUB_BITS + 1) as usize, sub)
}

/// The chunks that a search accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) bytes: u64,
    pub(crate) alignment: u64,
    pub(crate) upto: Epoch,
}

impl Wanted {
    pub(crate) fn accepts(&self, addr: u64, bytes: u64, epoch: Epoch) -> bool {
        let padding = addr.wrapping_neg() & (self.alignment - 1);
        epoch <= self.upto && bytes >= self.bytes && bytes - self.bytes >= padding
    }
}

impl Bins {
    pub(crate) fn new() -> Self {
        Self { levels: 0, subs: [0; LEVELS], heads: Vec::new(), bytes: 0, blocks: 0 }
    }

    pub(crate) fn insert(&mut self, chunks: &mut Chunks, id: u32) {
        let bytes = chunks[id].bytes;
        let (level, sub) = bin_of(bytes);
        if self.heads.len() <= level * SUBS {
            self.heads.resize((level + 1) * SUBS, NIL);
        }
        let head = std::mem::replace(&mut self.heads[level * SUBS + sub], id);
        chunks[id].bin_prev = NIL;
        chunks[id].bin_next = head;
        if head != NIL {
            chunks[head].bin_prev = id;
        }
        self.levels |= 1 << level;
        self.subs[level] |= 1 << sub;
        self.bytes += bytes;
        self.blocks += 1;
    }

    pub(crate) fn remove(&mut self, chunks: &mut Chunks, id: u32) {
        let (bytes, prev, next) = (chunks[id].bytes, chunks[id].bin_prev, chunks[id].bin_next);
        if next != NIL {
            chunks[next].bin_prev = prev;
        }
        if prev != NIL {
            chunks[prev].bin_next = next;
        } else {
            let (level, sub) = bin_of(bytes);
            self.heads[level * SUBS + sub] = next;
            if next == NIL {
                self.subs[level] &= !(1 << sub);
                if self.subs[level] == 0 {
                    self.levels &= !(1 << level);
                }
            }
        }
        self.bytes -= bytes;
        self.blocks -= 1;
    }

    /// Finds the best chunk: the smallest accepted one. Among equals, the one with the first
    /// [place](crate::heap::chunk::Chunk::place) wins.
    ///
    /// In each bin, it compares at most `scan` chunks and takes the best of them: they differ by 3 % at most.
    pub(crate) fn find(&self, chunks: &Chunks, wanted: Wanted, scan: usize) -> Option<u32> {
        if self.bytes < wanted.bytes {
            return None;
        }
        let first = bin_of(wanted.bytes);
        // A chunk beyond the limit of some bin may fit: then all are compared.
        for limit in [scan, usize::MAX] {
            let mut truncated = false;
            let mut bin = self.next_bin(first.0, first.1);
            while let Some((level, sub)) = bin {
                let found = self.scan(chunks, (level, sub), wanted, limit, &mut truncated);
                if found.is_some() {
                    return found;
                }
                bin = self.next_bin(level, sub + 1);
            }
            if !truncated {
                break;
            }
        }
        None
    }

    /// Finds the chunk at the lowest [place](crate::heap::chunk::Chunk::place) among the first `scan` chunks,
    /// smallest bins first. Returns `None` if none of them is accepted.
    pub(crate) fn find_lowest(&self, chunks: &Chunks, wanted: Wanted, scan: usize) -> Option<u32> {
        let compared = self.iter_from(chunks, wanted.bytes).take(scan);
        let accepted = compared.filter(|id| {
            let chunk = &chunks[*id];
            wanted.accepts(chunk.addr, chunk.bytes, chunk.epoch())
        });
        accepted.min_by_key(|id| chunks[*id].place())
    }

    fn scan(
        &self,
        chunks: &Chunks,
        (level, sub): (usize, usize),
        wanted: Wanted,
        limit: usize,
        truncated: &mut bool,
    ) -> Option<u32> {
        let mut best: Option<(u64, (u32, u64), u32)> = None;
        let mut id = self.heads[level * SUBS + sub];
        let mut seen = 0;
        while id != NIL {
            if seen == limit {
                *truncated = true;
                break;
            }
            seen += 1;
            let chunk = &chunks[id];
            if wanted.accepts(chunk.addr, chunk.bytes, chunk.epoch())
                && best.is_none_or(|(bytes, place, _)| (chunk.bytes, chunk.place()) < (bytes, place))
            {
                best = Some((chunk.bytes, chunk.place(), id));
            }
            id = chunk.bin_next;
        }
        best.map(|(_, _, id)| id)
    }

    /// Returns the first bin with a chunk, starting at this one.
    fn next_bin(&self, level: usize, sub: usize) -> Option<(usize, usize)> {
        let here = if sub < SUBS { self.subs[level] & (u32::MAX << sub) } else { 0 };
        if here != 0 {
            return Some((level, here.trailing_zeros() as usize));
        }
        let above = self.levels & (u64::MAX << (level + 1));
        (above != 0).then(|| {
            let level = above.trailing_zeros() as usize;
            (level, self.subs[level].trailing_zeros() as usize)
        })
    }

    /// Returns the largest chunk.
    pub(crate) fn largest_chunk(&self, chunks: &Chunks) -> Option<u32> {
        if self.levels == 0 {
            return None;
        }
        let level = 63 - self.levels.leading_zeros() as usize;
        let sub = 31 - self.subs[level].leading_zeros() as usize;
        self.list(chunks, level * SUBS + sub).max_by_key(|id| chunks[*id].bytes)
    }

    /// Returns the bytes of the largest chunk.
    pub(crate) fn largest(&self, chunks: &Chunks) -> u64 {
        self.largest_chunk(chunks).map_or(0, |id| chunks[id].bytes)
    }

    /// Returns all chunks, smallest bins first.
    pub(crate) fn iter<'a>(&'a self, chunks: &'a Chunks) -> impl Iterator<Item = u32> + 'a {
        self.iter_from(chunks, 0)
    }

    /// Returns the chunks of at least this size's bin, smallest bins first.
    pub(crate) fn iter_from<'a>(&'a self, chunks: &'a Chunks, bytes: u64) -> impl Iterator<Item = u32> + 'a {
        let first = bin_of(bytes);
        let next = |bin: &(usize, usize)| self.next_bin(bin.0, bin.1 + 1);
        std::iter::successors(self.next_bin(first.0, first.1), next)
            .flat_map(move |(level, sub)| self.list(chunks, level * SUBS + sub))
    }

    fn list<'a>(&'a self, chunks: &'a Chunks, bin: usize) -> impl Iterator<Item = u32> + 'a {
        let first = Some(self.heads[bin]).filter(|id| *id != NIL);
        std::iter::successors(first, |id| Some(chunks[*id].bin_next).filter(|id| *id != NIL))
    }

    /// Panics if the bits, the lists and the sums disagree.
    pub(crate) fn validate(&self, chunks: &Chunks) {
        let (mut bytes, mut blocks) = (0, 0);
        for level in 0..LEVELS {
            assert_eq!(self.levels >> level & 1 == 1, self.subs[level] != 0, "I9: level {level}");
            for sub in 0..SUBS {
                let bin = level * SUBS + sub;
                if bin >= self.heads.len() {
                    assert_eq!(self.subs[level], 0, "I9: level {level} has no heads");
                    continue;
                }
                assert_eq!(self.subs[level] >> sub & 1 == 1, self.heads[bin] != NIL, "I9: bin {level}/{sub}");
                let mut prev = NIL;
                for id in self.list(chunks, bin) {
                    assert_eq!(bin_of(chunks[id].bytes), (level, sub), "I9: chunk {id} is in the wrong bin");
                    assert_eq!(chunks[id].bin_prev, prev, "I9: back link of chunk {id}");
                    prev = id;
                    bytes += chunks[id].bytes;
                    blocks += 1;
                }
            }
        }
        assert_eq!((bytes, blocks), (self.bytes, self.blocks), "I9: sums of the bins");
    }
}
