//! Says which owners have free blocks in a heap. Threads can read it without the heap's lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::stream_order::Owner;

/// A bit for each owner that has free blocks. Beyond 64, owners share bits. A thread stores only under the
/// heap's lock. A reader without the lock may see a stale value.
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

    /// Clears the bit of an owner that has no free blocks, unless owners share bits. All owners are below
    /// `all`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_may_have_blocks_from_its_first_to_its_last() {
        let owners = OwnerBits::default();
        let of = |owners: &OwnerBits| (0..64).filter(|owner| owners.may_have(*owner)).collect::<Vec<_>>();
        [3, 0, 63, 3].into_iter().for_each(|owner| owners.add(owner));
        assert_eq!(of(&owners), [0, 3, 63]);
        owners.remove(3, 64);
        owners.remove(5, 64);
        assert_eq!(of(&owners), [0, 63]);
        owners.remove(0, 64);
        owners.remove(63, 64);
        assert!(of(&owners).is_empty());
    }

    /// A shared bit stays set: the other owner may still have blocks.
    #[test]
    fn owners_that_share_a_bit_keep_it() {
        let owners = OwnerBits::default();
        owners.add(65);
        assert!(owners.may_have(65) && owners.may_have(1) && !owners.may_have(2));
        owners.add(1);
        owners.remove(1, 66);
        assert!(owners.may_have(65));
    }
}
