//! The calls of the driver's pools.

use millpond_core::driver::{MemPool, MemPoolAttribute, MemPoolProps};
use millpond_core::{DevicePtr, DriverError, StreamRef};

use crate::sim::model::answer::{Answer, Refusal, not_empty};
use crate::sim::model::clock::{Epoch, Slot};
use crate::sim::model::pools::{Cached, FIRST_POOL, Pool, Pools, UNIT};
use crate::sim::model::space::{Purpose, Space};
use crate::sim::model::work::Operation;
use crate::sim::state::State;

impl State {
    pub(crate) fn mem_pool_create(&mut self, props: MemPoolProps) -> MemPool {
        let pool = MemPool(FIRST_POOL + self.pools.pools.len() as u64);
        self.pools.pools.push(Some(Pool::new(props.max_bytes)));
        self.note(pool.0);
        pool
    }

    pub(crate) fn mem_pool_destroy(&mut self, pool: MemPool) -> Answer<()> {
        if pool == Pools::default_pool() {
            return Err(Refusal::invalid_value("the default pool cannot be destroyed"));
        }
        match self.pools.get(pool)? {
            Pool { ended: true, .. } => return Err(Refusal::invalid_value("the pool was destroyed")),
            found => found.ended = true,
        }
        self.shrink(pool, 0, true);
        Ok(())
    }

    pub(crate) fn mem_pool_trim_to(&mut self, pool: MemPool, keep_bytes: u64) -> Answer<()> {
        self.pools.alive(pool)?;
        self.shrink(pool, keep_bytes, false);
        Ok(())
    }

    pub(crate) fn mem_pool_get_attribute(
        &mut self,
        pool: MemPool,
        attribute: MemPoolAttribute,
    ) -> Answer<u64> {
        let pool = self.pools.alive(pool)?;
        Ok(match pool.switch(attribute) {
            Some(switch) => u64::from(*switch),
            None => *pool.attribute(attribute),
        })
    }

    pub(crate) fn mem_pool_set_attribute(
        &mut self,
        pool: MemPool,
        attribute: MemPoolAttribute,
        value: u64,
    ) -> Answer<()> {
        let pool = self.pools.alive(pool)?;
        if let Some(switch) = pool.switch(attribute) {
            *switch = value != 0;
            return Ok(());
        }
        match attribute {
            MemPoolAttribute::ReleaseThreshold => pool.threshold = value,
            MemPoolAttribute::ReservedMemHigh if value == 0 => pool.reserved_high = pool.reserved,
            MemPoolAttribute::UsedMemHigh if value == 0 => pool.used_high = pool.used,
            _ => return Err(Refusal::invalid_value(format!("{attribute:?} cannot be set to {value}"))),
        }
        Ok(())
    }

    pub(crate) fn mem_alloc_from_pool(
        &mut self,
        bytes: u64,
        pool: MemPool,
        stream: StreamRef,
        call: &str,
    ) -> Answer<DevicePtr> {
        not_empty(bytes)?;
        self.pools.alive(pool)?;
        let slot = self.stream_slot(stream, call)?;
        let size =
            bytes.checked_next_multiple_of(UNIT).ok_or_else(|| Refusal::invalid_value("too many bytes"))?;
        let mut wait = None;
        let memory = match self.reuse(pool, size, slot)? {
            Some(memory) => memory,
            None => match self.grow(pool, size) {
                Ok(memory) => memory,
                Err(refusal) => {
                    let memory = self.reuse_by_waiting(pool, size)?.ok_or(refusal)?;
                    wait = Some(memory.freed);
                    memory
                }
            },
        };
        let (epoch, mut waits) = self.place(slot);
        waits.extend(wait);
        self.submit((epoch, waits), Operation::Nothing, 0);
        let Cached { start, bytes: size, physical, .. } = memory;
        self.oracle.begin(physical..physical + size, epoch);
        self.space.map(start, bytes, physical, 0, Purpose::Pool(pool));
        self.pools.sizes.insert(start, size);
        let pool = self.pools.get(pool)?;
        pool.used += size;
        pool.used_high = pool.used_high.max(pool.used);
        self.note(start);
        Ok(DevicePtr::new(start))
    }

    /// Takes one of the pool's cached blocks, as its reuse attributes allow.
    fn reuse(&mut self, pool: MemPool, size: u64, slot: Slot) -> Answer<Option<Cached>> {
        let Self { pools, order, work, .. } = self;
        let pool = pools.get(pool)?;
        let ordered = |cached: &Cached| match pool.follow_events {
            true => order.covers(slot, cached.freed),
            false => cached.freed.slot() == slot,
        };
        let done = |cached: &Cached| pool.opportunistic && work.is_done(cached.freed);
        let found = pool.best(size, ordered).or_else(|| pool.best(size, done));
        Ok(found.map(|index| pool.cached.swap_remove(index)))
    }

    /// Takes a cached block whose work is not done, if the pool may insert a wait for it.
    fn reuse_by_waiting(&mut self, pool: MemPool, size: u64) -> Answer<Option<Cached>> {
        let pool = self.pools.get(pool)?;
        let found = pool.best(size, |_| pool.internal);
        Ok(found.map(|index| pool.cached.swap_remove(index)))
    }

    fn grow(&mut self, pool: MemPool, size: u64) -> Answer<Cached> {
        let Pool { max_bytes, reserved, .. } = *self.pools.get(pool)?;
        if max_bytes > 0 && reserved.saturating_add(size) > max_bytes {
            return Err(Refusal::new(
                DriverError::OUT_OF_MEMORY,
                format!("the pool holds at most {max_bytes} bytes"),
            ));
        }
        self.charge(size)?;
        let start = self.space.reserve(size, 0).inspect_err(|_| self.space.credit(size))?;
        let physical = self.space.new_physical(size);
        let pool = self.pools.get(pool)?;
        pool.reserved += size;
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        Ok(Cached { start, bytes: size, physical, freed: Epoch::new(0, 0) })
    }

    pub(crate) fn mem_free_async(&mut self, ptr: DevicePtr, stream: StreamRef) -> Answer<()> {
        let slot = self.stream_slot(stream, "cuMemFreeAsync")?;
        if !matches!(self.space.at(ptr.address()).map(|mapping| mapping.purpose), Some(Purpose::Pool(_))) {
            return Err(self.unknown_pointer(ptr, "cuMemFreeAsync"));
        }
        self.end_pooled(ptr, Some(slot))
    }

    /// Frees pooled memory: in the order of a stream, or, without one, after all work.
    pub(crate) fn end_pooled(&mut self, ptr: DevicePtr, slot: Option<Slot>) -> Answer<()> {
        let freed = match slot {
            Some(slot) => {
                let place = self.place(slot);
                let epoch = place.0;
                self.submit(place, Operation::Nothing, 0);
                epoch
            }
            None => Epoch::new(0, 0),
        };
        let Some(mapping) = self.space.unmap(ptr.address()) else { return Ok(()) };
        let (Purpose::Pool(pool), Some(bytes)) = (mapping.purpose, self.pools.sizes.remove(&ptr.address()))
        else {
            return Ok(());
        };
        let range = mapping.physical..mapping.physical + bytes;
        let kind = self.oracle.retire(range, |epoch| match slot {
            Some(slot) => self.order.covers(slot, epoch),
            None => self.order.host_knows(epoch),
        });
        self.report_return(kind, ptr, bytes, if slot.is_some() { "cuMemFreeAsync" } else { "cuMemFree" });
        let found = self.pools.get(pool)?;
        found.used -= bytes;
        found.cached.push(Cached { start: ptr.address(), bytes, physical: mapping.physical, freed });
        if found.ended {
            self.shrink(pool, 0, true);
        }
        Ok(())
    }

    /// Releases to the device the cached memory above the pools' release thresholds whose work is done, as
    /// CUDA does at every synchronisation.
    pub(crate) fn trim_pools(&mut self) {
        for index in 0..self.pools.pools.len() {
            let Some(pool) = &self.pools.pools[index] else { continue };
            if pool.reserved > pool.threshold && !pool.cached.is_empty() {
                let keep = pool.threshold;
                self.shrink(MemPool(FIRST_POOL + index as u64), keep, false);
            }
        }
    }

    /// Takes bytes from the capacity; if there are too few, the pools' cached memory is released first.
    pub(crate) fn charge(&mut self, bytes: u64) -> Answer<()> {
        self.taking(|space| space.charge(bytes))
    }

    /// Takes a range or a place from the capacity; if there is too little, the pools' cached memory is
    /// released first.
    pub(crate) fn taking<T>(&mut self, take: impl Fn(&mut Space) -> Answer<T>) -> Answer<T> {
        if let Ok(taken) = take(&mut self.space) {
            return Ok(taken);
        }
        for index in 0..self.pools.pools.len() as u64 {
            self.shrink(MemPool(FIRST_POOL + index), 0, false);
        }
        take(&mut self.space)
    }

    /// Releases memory until `keep` bytes are held: only memory whose work is done, unless it may `wait`. A
    /// destroyed pool that holds nothing more is removed.
    fn shrink(&mut self, pool: MemPool, keep: u64, wait: bool) {
        let Self { pools, work, effects, space, .. } = self;
        let Ok(found) = pools.get(pool) else { return };
        let Pool { cached, reserved, .. } = found;
        cached.retain(|memory| {
            if wait {
                work.finish(memory.freed, effects);
            }
            if *reserved <= keep || !work.is_done(memory.freed) {
                return true;
            }
            *reserved -= memory.bytes;
            space.credit(memory.bytes);
            space.unreserve(memory.start, memory.bytes);
            effects.contents.forget(memory.physical..memory.physical + memory.bytes);
            false
        });
        if found.ended && found.reserved == 0 {
            let index = (pool.0 - FIRST_POOL) as usize;
            pools.pools[index] = None;
        }
    }
}
