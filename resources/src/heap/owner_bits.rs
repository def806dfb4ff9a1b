//! Whose free blocks a heap has, for who has not its lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stream_order::Owner;

/// A bit for each owner that has free blocks; from 64 owners on they share bits. Written under the heap's
/// lock only. Who reads it without may find what was true a moment ago, as does who looked under the lock,
/// once the lock is given back.
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

    /// An owner has none any more; `all` are below this number. A bit that owners share stays.
    pub(crate) fn remove(&self, owner: usize, all: usize) {
        if all <= Self::BITS {
            self.0.store(self.0.load(Ordering::Relaxed) & !(1 << owner), Ordering::Relaxed);
        }
    }

    /// Whether the owner may have some.
    pub(crate) fn may_have(&self, owner: Owner) -> bool {
        self.0.load(Ordering::Relaxed) >> (owner as usize % Self::BITS) & 1 == 1
    }
}
