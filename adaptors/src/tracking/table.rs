//! The blocks of one shard, by address.

use millpond_core::StreamRef;
use rustc_hash::FxHashMap;

use super::hash::bits_below_shard;

/// A map from addresses to blocks. One lookup costs one cache line.
///
/// Each address has one bucket. If its bucket is full, as for a few blocks in a hundred, the block goes into
/// a separate map. So no block moves between buckets, and no tombstones are left.
pub(super) struct Table {
    buckets: Box<[Bucket]>,
    /// The details of the block in the slot of the same number; stale if the slot is free. They are written
    /// when a block is inserted, and only reports read them.
    details: Box<[[Details; SLOTS]]>,
    overflow: FxHashMap<u64, Block>,
    blocks: usize,
}

/// The part of a bucket that a lookup reads: addresses, and sizes in bytes. Address 0 marks a free slot; no
/// block has it.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    addresses: [u64; SLOTS],
    bytes: [u64; SLOTS],
}

const SLOTS: usize = 4;

/// The most blocks per bucket on average, as a fraction. Above it, the table grows.
const MOST_PER_BUCKET: (usize, usize) = (5, 2);

/// The details of a block that reports print, apart from its address and size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Details {
    pub(super) stream: StreamRef,
    pub(super) sequence: u64,
}

/// A block without its address.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Block {
    pub(super) bytes: u64,
    pub(super) details: Details,
}

/// The reason why a block is not removed.
#[derive(PartialEq, Debug)]
pub(super) enum Unknown {
    Address,
    /// The block has this size in bytes.
    Size(u64),
}

impl Table {
    pub(super) fn new() -> Self {
        Self { buckets: Box::default(), details: Box::default(), overflow: FxHashMap::default(), blocks: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.blocks
    }

    /// Adds a block; returns the previous block at this address. `address` is not 0.
    #[inline]
    pub(super) fn insert(&mut self, address: u64, block: Block) -> Option<Block> {
        if self.blocks * MOST_PER_BUCKET.1 >= self.buckets.len() * MOST_PER_BUCKET.0 {
            self.grow();
        }
        let at = self.bucket_of(address);
        let old = if let Some(slot) = find(&self.buckets[at], address) {
            Some(self.put(at, slot, address, block))
        } else if let Some(old) = self.overflow.get_mut(&address) {
            Some(std::mem::replace(old, block))
        } else if let Some(slot) = find(&self.buckets[at], 0) {
            self.put(at, slot, address, block);
            None
        } else {
            self.overflow.insert(address, block)
        };
        self.blocks += usize::from(old.is_none());
        old
    }

    #[inline]
    fn put(&mut self, at: usize, slot: usize, address: u64, Block { bytes, details }: Block) -> Block {
        let (bucket, all_details) = (&mut self.buckets[at], &mut self.details[at]);
        bucket.addresses[slot] = address;
        Block {
            bytes: std::mem::replace(&mut bucket.bytes[slot], bytes),
            details: std::mem::replace(&mut all_details[slot], details),
        }
    }

    /// Removes a block if it exists and has this size in bytes.
    #[inline]
    pub(super) fn remove(&mut self, address: u64, bytes: u64) -> Result<(), Unknown> {
        if self.buckets.is_empty() || address == 0 {
            return Err(Unknown::Address);
        }
        let at = self.bucket_of(address);
        let bucket = &mut self.buckets[at];
        if let Some(slot) = find(bucket, address) {
            if bucket.bytes[slot] != bytes {
                return Err(Unknown::Size(bucket.bytes[slot]));
            }
            bucket.addresses[slot] = 0;
        } else {
            let block = self.overflow.get(&address).ok_or(Unknown::Address)?;
            if block.bytes != bytes {
                return Err(Unknown::Size(block.bytes));
            }
            self.overflow.remove(&address);
        }
        self.blocks -= 1;
        Ok(())
    }

    /// Returns all addresses and blocks, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Block)> {
        let slots = self.buckets.iter().zip(&self.details).flat_map(|(bucket, details)| {
            (0..SLOTS).map(|slot| {
                let block = Block { bytes: bucket.bytes[slot], details: details[slot] };
                (bucket.addresses[slot], block)
            })
        });
        let overflow = self.overflow.iter().map(|(&address, &block)| (address, block));
        slots.filter(|&(address, _)| address != 0).chain(overflow)
    }

    /// Prefetches the memory that an `insert` of this address will touch.
    #[inline]
    pub(super) fn prefetch(&self, address: u64) {
        if !self.buckets.is_empty() {
            let at = self.bucket_of(address);
            prefetch(&self.buckets[at]);
            // The details cover up to two cache lines.
            prefetch(&self.details[at][0]);
            prefetch(&self.details[at][SLOTS - 1].sequence);
        }
    }

    #[cold]
    fn grow(&mut self) {
        let buckets = (self.buckets.len() + self.buckets.len() / 2).max(4);
        let none = Details { stream: StreamRef::LEGACY, sequence: 0 };
        let larger = Self {
            buckets: vec![Bucket::default(); buckets].into(),
            details: vec![[none; SLOTS]; buckets].into(),
            overflow: FxHashMap::default(),
            blocks: 0,
        };
        let old = std::mem::replace(self, larger);
        for (address, block) in old.iter() {
            self.insert(address, block);
        }
    }

    /// Returns the bucket of an address. The upper bits of the hash choose the shard, and the next bits
    /// choose the bucket, by their share of the range. So any number of buckets works (Lemire, "Fast random
    /// integer generation in an interval", 2019). There must be at least one bucket.
    #[inline]
    fn bucket_of(&self, address: u64) -> usize {
        let hash = bits_below_shard(address);
        ((u128::from(hash) * self.buckets.len() as u128) >> u64::BITS) as usize
    }
}

/// Returns the slot that holds `address`. Compares all four slots before the first branch. That branch
/// predicts well: it only depends on whether there is such a slot.
#[inline]
fn find(bucket: &Bucket, address: u64) -> Option<usize> {
    let equal =
        (0..SLOTS).fold(0_u32, |equal, slot| equal | u32::from(bucket.addresses[slot] == address) << slot);
    (equal != 0).then(|| equal.trailing_zeros() as usize)
}

#[inline]
fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address changes nothing that a program sees, and x86-64 has the instruction.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use millpond_testkit::Rng;

    use super::*;

    fn block(bytes: u64) -> Block {
        Block {
            bytes,
            details: Details { stream: StreamRef::from_raw_parts(bytes, bytes), sequence: !bytes },
        }
    }

    /// Takes random steps on a table and on a map, which must agree at every step: over growth, full buckets,
    /// repeated addresses, and addresses that differ in few bits.
    #[test]
    fn it_is_a_map() {
        let mut overflowed = 0;
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let (mut table, mut map) = (Table::new(), HashMap::new());
            let (stride, many) = (1 << rng.below(34), 10 << rng.below(10));
            for _ in 0..8 * many {
                let (address, bytes) = (stride * (1 + rng.below(many)), 1 + rng.below(3));
                if rng.percent(55) {
                    assert_eq!(table.insert(address, block(bytes)), map.insert(address, block(bytes)));
                } else {
                    let expected = match map.get(&address) {
                        None => Err(Unknown::Address),
                        Some(known) if known.bytes != bytes => Err(Unknown::Size(known.bytes)),
                        Some(_) => {
                            map.remove(&address);
                            Ok(())
                        }
                    };
                    assert_eq!(table.remove(address, bytes), expected, "seed {seed}");
                }
                assert_eq!(table.len(), map.len());
            }
            assert_eq!(table.iter().collect::<HashMap<_, _>>(), map, "seed {seed}");
            assert_eq!(table.iter().count(), map.len(), "seed {seed}");
            overflowed += table.overflow.len();
        }
        assert!(overflowed > 0, "no bucket was ever full");
    }

    #[test]
    fn few_blocks_are_beside_their_buckets() {
        for (name, stride) in [("small blocks", 256), ("pages", 2 << 20), ("odd", 768)] {
            let mut table = Table::new();
            for number in 1..=100_000 {
                table.insert(number * stride, block(1));
            }
            let overflow = table.overflow.len();
            assert!(overflow < 15_000, "{name}: {overflow} of 100,000");
        }
    }

    #[test]
    fn an_empty_table_knows_nothing_not_even_null() {
        let mut table = Table::new();
        for address in [0, 256] {
            table.prefetch(256);
            assert_eq!(table.remove(address, 0), Err(Unknown::Address));
            table.insert(512, block(1));
        }
    }
}
