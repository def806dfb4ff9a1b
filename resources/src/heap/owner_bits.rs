//! Says which owners have free blocks in a heap; readable without its lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stream_order::Owner;

/// A bit for each owner that has free blocks; more than 64 owners share bits. A thread stores under the
/// heap's lock only. Readers without the lock may see a stale value.
#[derive(Debug, Default)]
pub(crate) struct OwnerBits(AtomicU64);

impl OwnerBits {
    const BITS: usize = u64::BITS as usize;

    #[inline]
    pub(crate) fn add(&self, owner: usize) {
        let (bits, bit) = (self.0.load(Ordering::Relaxed), 1 << (owner % Self::BITS));
        if bits & bit == 0 {
            self.0.store(bits | bit, Ordering::Relaxed);
        }
    }

    /// Clears the bit of an owner that has no free blocks, unless owners share bits; all are below `all`.
    pub(crate) fn remove(&self, owner: usize, all: usize) {
        if all <= Self::BITS {
            self.0.store(self.0.load(Ordering::Relaxed) & !(1 << owner), Ordering::Relaxed);
        }
    }

    /// Returns whether the owner may have free blocks.
    pub(crate) fn may_have(&self, owner: Owner) -> bool {
        self.0.load(Ordering::Relaxed) >> (owner as usize % Self::BITS) & 1 == 1
    }
}
