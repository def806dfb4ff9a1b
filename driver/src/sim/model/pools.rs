//! Stream-ordered memory and its pools.
//!
//! A plain model of CUDA's: a pool keeps freed blocks and hands them out again, best fit and whole (never
//! split, and never where more than an eighth would be wasted). A request is served, in this order, by
//! 1. blocks whose free the asking stream is ordered after (`ReuseFollowEventDependencies`; without it, only
//!    blocks freed on that very stream);
//! 2. blocks whose work is done already (`ReuseAllowOpportunistic`);
//! 3. new memory; if the device has none left, all pools release the blocks whose work is done, once;
//! 4. blocks that a wait on the device makes available (`ReuseAllowInternalDependencies`): only if there is
//!    no new memory, as CUDA documents it.

use millpond_core::driver::{MemPool, MemPoolAttribute};
use rustc_hash::FxHashMap;

use super::answer::{Answer, Refusal};
use super::clock::Epoch;

pub(crate) const FIRST_POOL: u64 = 0x53_0000_0000;

/// The unit in bytes that pooled memory is rounded up to.
pub(crate) const UNIT: u64 = 512;

/// A cached block: its address, its size, and the epoch at which it is free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cached {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) physical: u64,
    pub(crate) freed: Epoch,
}

#[derive(Debug)]
pub(crate) struct Pool {
    /// Destroyed; removed with the last block that is still handed out.
    pub(crate) ended: bool,
    /// Made in a context that was reset: it can only be destroyed.
    pub(crate) is_of_old_context: bool,
    pub(crate) max_bytes: u64,
    pub(crate) follow_events: bool,
    pub(crate) opportunistic: bool,
    pub(crate) internal: bool,
    pub(crate) threshold: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) cached: Vec<Cached>,
}

/// The pools, by number; the first is the device's default.
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) pools: Vec<Option<Pool>>,
    /// The size of the memory behind each handed-out pointer, in bytes.
    pub(crate) sizes: FxHashMap<u64, u64>,
}

impl Pool {
    pub(crate) const fn new(max_bytes: u64) -> Self {
        Self {
            ended: false,
            is_of_old_context: false,
            max_bytes,
            follow_events: true,
            opportunistic: true,
            internal: true,
            threshold: 0,
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            cached: Vec::new(),
        }
    }

    pub(crate) fn attribute(&mut self, attribute: MemPoolAttribute) -> &mut u64 {
        match attribute {
            MemPoolAttribute::ReservedMemCurrent => &mut self.reserved,
            MemPoolAttribute::ReservedMemHigh => &mut self.reserved_high,
            MemPoolAttribute::UsedMemCurrent => &mut self.used,
            MemPoolAttribute::UsedMemHigh => &mut self.used_high,
            _ => &mut self.threshold,
        }
    }

    pub(crate) fn switch(&mut self, attribute: MemPoolAttribute) -> Option<&mut bool> {
        match attribute {
            MemPoolAttribute::ReuseFollowEventDependencies => Some(&mut self.follow_events),
            MemPoolAttribute::ReuseAllowOpportunistic => Some(&mut self.opportunistic),
            MemPoolAttribute::ReuseAllowInternalDependencies => Some(&mut self.internal),
            _ => None,
        }
    }

    /// The smallest cached block that fits and may be used; of equal ones the one freed last.
    pub(crate) fn best(&self, bytes: u64, may: impl Fn(&Cached) -> bool) -> Option<usize> {
        let fits = |cached: &Cached| cached.bytes >= bytes && cached.bytes - bytes <= bytes / 8;
        let candidates =
            self.cached.iter().enumerate().rev().filter(|(_, cached)| fits(cached) && may(cached));
        candidates.min_by_key(|(_, cached)| cached.bytes).map(|(index, _)| index)
    }
}

impl Pools {
    pub(crate) fn new() -> Self {
        Self { pools: vec![Some(Pool::new(0))], sizes: FxHashMap::default() }
    }

    pub(crate) const fn default_pool() -> MemPool {
        MemPool(FIRST_POOL)
    }

    pub(crate) fn get(&mut self, pool: MemPool) -> Answer<&mut Pool> {
        let index = usize::try_from(pool.0.wrapping_sub(FIRST_POOL)).unwrap_or(usize::MAX);
        let unknown = || Refusal::invalid_value(format!("there is no pool {:#x}", pool.0));
        self.pools.get_mut(index).and_then(Option::as_mut).ok_or_else(unknown)
    }

    pub(crate) fn alive(&mut self, pool: MemPool) -> Answer<&mut Pool> {
        match self.get(pool)? {
            Pool { ended: true, .. } => Err(Refusal::invalid_value("the pool was destroyed")),
            Pool { is_of_old_context: true, .. } => {
                Err(Refusal::invalid_value("the pool is of a context that was reset"))
            }
            found => Ok(found),
        }
    }

    /// Marks the pools of a context that was reset: their cached memory stays, and the default pool goes on.
    pub(crate) fn end_of_context(&mut self) {
        self.pools[1..].iter_mut().flatten().for_each(|pool| pool.is_of_old_context = true);
    }

    pub(crate) fn for_each_epoch(&self, mut each: impl FnMut(Epoch)) {
        self.pools.iter().flatten().flat_map(|pool| &pool.cached).for_each(|cached| each(cached.freed));
    }

    /// The number of pools that were created and not destroyed, without the default pool.
    pub(crate) fn created(&self) -> usize {
        self.pools[1..].iter().flatten().filter(|pool| !pool.ended).count()
    }
}
