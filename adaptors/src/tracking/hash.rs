//! Chooses the shard and the bucket of an address.

/// The number of shards: a power of two, well above the number of threads that allocate at the same moment.
pub(super) const SHARDS: usize = 64;

/// Returns the shard of an address: the upper bits of its hash.
#[inline]
pub(super) const fn shard_of(address: u64) -> usize {
    (hash(address) >> (u64::BITS - SHARDS.ilog2())) as usize
}

/// Returns the bits of the hash that do not choose the shard, shifted to the upper end.
#[inline]
pub(super) const fn bits_below_shard(address: u64) -> u64 {
    hash(address) << SHARDS.ilog2()
}

/// Fibonacci hashing: the upper bits depend on all bits of the address.
#[inline]
const fn hash(address: u64) -> u64 {
    address.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
