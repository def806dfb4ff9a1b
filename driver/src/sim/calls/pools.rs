//! The calls about the driver's pools.

use millpond_core::driver::{
    AccessFlags, AccessLocation, GraphMemAttribute, HandleTypes, MemLocation, MemPool, MemPoolAttribute,
    MemPoolProps,
};
use millpond_core::{DevicePtr, DriverError, StreamRef};

use crate::sim::model::answer::{Answer, Refusal, not_empty};
use crate::sim::model::clock::{Epoch, Slot};
use crate::sim::model::pieces::{Chunk, Piece, UNIT};
use crate::sim::model::pools::{Pool, check_place};
use crate::sim::model::space::{Purpose, Space};
use crate::sim::model::violation::ViolationKind;
use crate::sim::model::work::Operation;
use crate::sim::state::State;

impl State {
    /// The bytes that graphs hold: the simulated device keeps no graphs.
    pub(crate) const GRAPH_MEMORY: u64 = 0;

    /// Restarts a high of the graphs' memory, which is [`GRAPH_MEMORY`](Self::GRAPH_MEMORY) at all times.
    pub(crate) fn reset_graph_memory(attribute: GraphMemAttribute) -> Answer<()> {
        match attribute {
            GraphMemAttribute::UsedMemHigh | GraphMemAttribute::ReservedMemHigh => Ok(()),
            _ => Err(Refusal::invalid_value(format!("{attribute:?} is read-only"))),
        }
    }

    /// Returns the kinds of handles that the device's pools can have. NVIDIA's GPUs have fabric handles from
    /// compute capability 9.0 on.
    pub(crate) fn pool_handles(&self) -> HandleTypes {
        match self.profile.compute_capability() {
            _ if !cfg!(unix) => HandleTypes::NONE,
            (9.., _) => HandleTypes::POSIX_FD | HandleTypes::FABRIC,
            _ => HandleTypes::POSIX_FD,
        }
    }

    pub(crate) fn mem_pool_create(&mut self, props: MemPoolProps) -> Answer<MemPool> {
        check_place(props.location)?;
        if !self.pool_handles().contains(props.handles) {
            return Err(Refusal::not_supported("the device has no such handles"));
        }
        if props.location == MemLocation::Host && !props.handles.is_none() {
            return Err(Refusal::invalid_value("pools of HOST memory cannot be exported"));
        }
        let pool = Pool::new(props);
        if pool.is_managed() && (!props.handles.is_none() || props.max_bytes > 0) {
            let text = "pools of managed memory cannot be exported and have no maximum size";
            return Err(Refusal::invalid_value(text));
        }
        let index = self.pools.pools.len();
        self.note(index as u64);
        Ok(self.pools.add(pool))
    }

    pub(crate) fn mem_pool_destroy(&mut self, pool: MemPool) -> Answer<()> {
        match self.pools.get(pool)? {
            Pool { is_default: true, .. } => {
                return Err(Refusal::invalid_value("the default pool cannot be destroyed"));
            }
            Pool { ended: true, .. } => return Err(Refusal::invalid_value("the pool was destroyed")),
            found => found.ended = true,
        }
        self.pools.forget_current(pool);
        self.shrink(pool, 0, true);
        Ok(())
    }

    pub(crate) fn mem_pool_set_access(
        &mut self,
        pool: MemPool,
        access: AccessFlags,
        from: &[AccessLocation],
    ) -> Answer<()> {
        let me = self.openings.device;
        let found = self.pools.alive(pool)?;
        from.iter().try_for_each(|from| found.check_access(access, *from, me))?;
        for from in from {
            let place = if from.device().is_some() { *from } else { AccessLocation::Host };
            found.access.retain(|(known, _)| *known != place);
            found.access.push((place, access));
            if found.is_on_host() && place.device() == Some(me) {
                self.space.set_accessible(pool, access != AccessFlags::None);
            }
        }
        Ok(())
    }

    pub(crate) fn mem_pool_get_access(&mut self, pool: MemPool, from: AccessLocation) -> Answer<AccessFlags> {
        let me = self.openings.device;
        let found = self.pools.alive(pool)?;
        if from == AccessLocation::HostNumaCurrent {
            return Err(Refusal::invalid_value("name the NUMA node by number"));
        }
        Ok(found.fixed_access(from, me).unwrap_or_else(|| found.access_of(from)))
    }

    /// The pool that an address belongs to.
    pub(crate) fn pointer_mem_pool(&self, ptr: DevicePtr) -> Option<MemPool> {
        match self.space.holding(ptr.address())?.1.purpose {
            Purpose::Pool(pool) | Purpose::Imported(pool) => Some(pool),
            _ => None,
        }
    }

    pub(crate) fn mem_pool_trim_to(&mut self, pool: MemPool, keep_bytes: u64) -> Answer<()> {
        self.pools.alive(pool)?.refuse_import()?;
        self.shrink(pool, keep_bytes, false);
        Ok(())
    }

    pub(crate) fn mem_pool_get_attribute(
        &mut self,
        pool: MemPool,
        attribute: MemPoolAttribute,
    ) -> Answer<u64> {
        let me = self.openings.device;
        let pool = self.pools.alive(pool)?;
        if let Some(fixed) = pool.fixed_attribute(attribute, me) {
            return Ok(fixed);
        }
        pool.refuse_import()?;
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
        pool.refuse_import()?;
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
        if self.pools.alive(pool)?.imported_from.is_some() {
            return Err(Refusal::invalid_value("cannot allocate from an imported pool"));
        }
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
        let (start, physical, host) = (memory.start, memory.physical(), memory.host());
        self.oracle.begin(physical..physical + size, epoch);
        self.space.map(start, bytes, physical, host, Purpose::Pool(pool));
        self.pools.blocks.insert(start, memory);
        let me = self.openings.device;
        let pool = self.pools.get(pool)?;
        if pool.is_on_host()
            && pool.access_of(me) == AccessFlags::None
            && let Some(mapping) = self.space.at_mut(start)
        {
            mapping.accessible = false;
        }
        pool.used += size;
        pool.used_high = pool.used_high.max(pool.used);
        // The address of host-visible memory depends on the process.
        self.note(if host == 0 { start } else { size });
        Ok(DevicePtr::new(start))
    }

    /// Takes a cached piece, as the pool's reuse attributes allow.
    fn reuse(&mut self, pool: MemPool, size: u64, slot: Slot) -> Answer<Option<Piece>> {
        let Self { pools, order, work, .. } = self;
        let pool = pools.get(pool)?;
        let (follow_events, opportunistic) = (pool.follow_events, pool.opportunistic);
        let is_done = |epoch| opportunistic && work.is_done(epoch);
        let is_ordered = |piece: &Piece| match follow_events {
            true => order.covers(slot, piece.freed),
            false => piece.freed.slot() == slot || piece.is_fresh(),
        };
        loop {
            let found = pool.cached.take(size, |piece| is_done(piece.freed) || is_ordered(piece));
            if found.is_some() || !pool.cached.join(is_done) {
                return Ok(found);
            }
        }
    }

    /// Takes a piece with unfinished work, if the pool may insert a wait for it.
    fn reuse_by_waiting(&mut self, pool: MemPool, size: u64) -> Answer<Option<Piece>> {
        let pool = self.pools.get(pool)?;
        Ok(if pool.internal { pool.cached.take(size, |_| true) } else { None })
    }

    /// Takes a chunk and returns the requested piece of it. If a whole chunk does not fit, takes one as large
    /// as the piece.
    fn grow(&mut self, pool: MemPool, size: u64) -> Answer<Piece> {
        let bytes = Chunk::bytes_for(size, self.space.capacity());
        let chunk = self.take_chunk(pool, bytes).or_else(|_| self.take_chunk(pool, size))?;
        let pool = self.pools.get(pool)?;
        pool.reserved += chunk.bytes;
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        let whole = chunk.piece();
        if size < whole.bytes {
            pool.cached.insert(Piece { start: whole.start + size, bytes: whole.bytes - size, ..whole });
        }
        Ok(Piece { bytes: size, ..whole })
    }

    fn take_chunk(&mut self, pool: MemPool, bytes: u64) -> Answer<Chunk> {
        let found = self.pools.get(pool)?;
        let (reserved, most) = (found.reserved, found.props.max_bytes);
        if most > 0 && reserved.saturating_add(bytes) > most {
            let text = format!("the pool holds at most {most} bytes");
            return Err(Refusal::new(DriverError::OUT_OF_MEMORY, text));
        }
        let (start, host) = match (found.is_managed(), found.is_on_host()) {
            (true, _) => {
                let host = self.host.allocate_managed(bytes)?;
                self.space.add_live(bytes);
                (host as u64, host)
            }
            (false, true) => {
                let host = self.host.allocate_pinned(bytes)?;
                self.space.add_live(bytes);
                (host as u64, host)
            }
            (false, false) => {
                self.charge(bytes)?;
                (self.space.reserve(bytes, 0).inspect_err(|_| self.space.credit(bytes))?, 0)
            }
        };
        Ok(Chunk { start, bytes, physical: self.space.new_physical(bytes), host })
    }

    pub(crate) fn mem_free_async(&mut self, ptr: DevicePtr, stream: StreamRef) -> Answer<()> {
        let slot = self.stream_slot(stream, "cuMemFreeAsync")?;
        match self.space.at(ptr.address()).map(|mapping| mapping.purpose) {
            Some(Purpose::Pool(_)) => self.end_pooled(ptr, Some(slot)),
            Some(Purpose::Imported(pool)) => self.end_imported(ptr, pool, Some(slot), "cuMemFreeAsync"),
            _ => Err(self.unknown_pointer(ptr, "cuMemFreeAsync")),
        }
    }

    /// Frees pooled memory of a context that was reset. Its streams and all their work are gone.
    pub(crate) fn mem_free_after_reset(&mut self, ptr: DevicePtr) -> Answer<()> {
        match self.space.at(ptr.address()).map(|mapping| mapping.purpose) {
            Some(Purpose::Pool(_)) => self.end_pooled(ptr, None),
            _ => Err(self.unknown_pointer(ptr, "cuMemFreeAsync")),
        }
    }

    /// Frees pooled memory: in stream order, or after all work if no stream is given.
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
        let block = self.pools.blocks.remove(&ptr.address());
        let (Purpose::Pool(pool), Some(block)) = (mapping.purpose, block) else { return Ok(()) };
        let bytes = block.bytes;
        let call = if slot.is_some() { "cuMemFreeAsync" } else { "cuMemFree" };
        if self.pools.imports.values().any(|generation| *generation == mapping.generation) {
            self.violation(ViolationKind::EarlyReturn, || {
                format!("{call}: another process imported the allocation at {ptr} and has not freed it")
            });
        }
        let range = mapping.physical..mapping.physical + bytes;
        let kind = self.oracle.retire(range, |epoch| match slot {
            Some(slot) => self.order.covers(slot, epoch),
            None => self.order.host_knows(epoch),
        });
        self.report_return(kind, ptr, bytes, call);
        let Self { pools, work, .. } = self;
        let found = pools.get(pool)?;
        found.used -= bytes;
        let opportunistic = found.opportunistic;
        found.cached.put(Piece { freed, ..block }, |epoch| opportunistic && work.is_done(epoch));
        if found.ended {
            self.shrink(pool, 0, true);
        }
        Ok(())
    }

    /// Releases finished cached memory above the pools' release thresholds to the device, as CUDA does at
    /// every synchronisation.
    pub(crate) fn trim_pools(&mut self) {
        for index in 0..self.pools.pools.len() {
            let Some(pool) = &self.pools.pools[index] else { continue };
            if pool.reserved > pool.threshold && !pool.cached.is_empty() {
                let keep = pool.threshold;
                self.shrink(self.pools.handle(index), keep, false);
            }
        }
    }

    /// Takes bytes from the capacity. If too few are left, first releases the pools' cached memory.
    pub(crate) fn charge(&mut self, bytes: u64) -> Answer<()> {
        self.taking(|space| space.charge(bytes))
    }

    /// Takes a range or a place from the capacity. If too little is left, first releases the pools' cached
    /// memory.
    pub(crate) fn taking<T>(&mut self, take: impl Fn(&mut Space) -> Answer<T>) -> Answer<T> {
        if let Ok(taken) = take(&mut self.space) {
            return Ok(taken);
        }
        for index in 0..self.pools.pools.len() {
            self.shrink(self.pools.handle(index), 0, false);
        }
        take(&mut self.space)
    }

    /// Releases memory until `keep` bytes are held. Releases only finished memory, unless it may `wait`.
    /// Removes a destroyed pool that holds no memory. A pool shared between processes releases nothing before
    /// its end, as in CUDA.
    fn shrink(&mut self, pool: MemPool, keep: u64, wait: bool) {
        let Self { pools, work, effects, space, host, .. } = self;
        let Ok(found) = pools.get(pool) else { return };
        if found.is_shared() && !found.ended {
            return;
        }
        if (found.is_managed() || found.is_on_host()) && !found.cached.is_empty() {
            // The memory is real, so no work may touch it any more, whatever the order of submission.
            work.finish_all(effects);
        }
        if wait {
            found.cached.iter().for_each(|piece| work.finish(piece.freed, effects));
        }
        found.cached.join(|epoch| work.is_done(epoch));
        let Pool { cached, reserved, .. } = found;
        cached.retain(|piece| {
            if *reserved <= keep || !piece.is_whole_chunk() || !work.is_done(piece.freed) {
                return true;
            }
            let Chunk { start, bytes, physical, host: address } = piece.chunk;
            *reserved -= bytes;
            effects.contents.forget(physical..physical + bytes);
            if address == 0 {
                space.credit(bytes);
                space.unreserve(start, bytes);
                return false;
            }
            host.free(address);
            space.remove_live(bytes);
            false
        });
        self.remove_ended(pool);
    }

    /// Removes a destroyed pool that holds no memory.
    pub(crate) fn remove_ended(&mut self, pool: MemPool) {
        if self.pools.get(pool).is_ok_and(|found| found.ended && found.reserved == 0) {
            self.pools.remove(pool);
        }
    }
}
