//! Shares pools with other processes, which are simulated within one. A file descriptor or a fabric handle
//! names the pool. An import is another pool, whose pointers are second addresses of the exporter's memory.

use millpond_core::DevicePtr;
use millpond_core::driver::{FabricHandle, HandleTypes, MemPool, MemPoolPtrData};

use super::share::files;
use crate::sim::model::answer::{Answer, Refusal};
use crate::sim::model::clock::Slot;
use crate::sim::model::ipc::{check_owner, owner, pack, unpack};
use crate::sim::model::pools::Pool;
use crate::sim::model::space::Purpose;
use crate::sim::model::work::Operation;
use crate::sim::state::State;

const POOL: u64 = u64::from_le_bytes(*b"millpool");
const POINTER: u64 = u64::from_le_bytes(*b"millpptr");

impl State {
    /// Returns the words that name a pool to another process.
    fn name_of_pool(&mut self, pool: MemPool, handle: HandleTypes) -> Answer<[u64; 3]> {
        let found = self.pools.alive(pool)?;
        if !found.props.handles.contains(handle) || found.imported_from.is_some() {
            return Err(Refusal::invalid_value("the pool was not created for handles of this type"));
        }
        Ok([POOL, owner(self.openings.device), pool.0])
    }

    pub(crate) fn mem_pool_export_to_fd(&mut self, pool: MemPool) -> Answer<i32> {
        files::write(self.name_of_pool(pool, HandleTypes::POSIX_FD)?)
    }

    pub(crate) fn mem_pool_export_to_fabric(&mut self, pool: MemPool) -> Answer<FabricHandle> {
        Ok(FabricHandle(pack(&self.name_of_pool(pool, HandleTypes::FABRIC)?)))
    }

    pub(crate) fn mem_pool_import_from_fd(&mut self, fd: i32) -> Answer<MemPool> {
        self.import_named(Some(files::read(fd)?))
    }

    pub(crate) fn mem_pool_import_from_fabric(&mut self, handle: &FabricHandle) -> Answer<MemPool> {
        self.import_named(unpack(&handle.0))
    }

    fn import_named(&mut self, name: Option<[u64; 3]>) -> Answer<MemPool> {
        let device = self.openings.device;
        let unknown = || Refusal::invalid_value(format!("the handle does not name a pool of {device}"));
        let Some([POOL, from, exported]) = name else { return Err(unknown()) };
        check_owner(from)?;
        if from != owner(device) {
            return Err(unknown());
        }
        let exported = MemPool(exported);
        let props = self.pools.alive(exported)?.props;
        let index = self.pools.pools.len();
        self.note(index as u64);
        Ok(self.pools.add(Pool { imported_from: Some(exported), ..Pool::new(props) }))
    }

    pub(crate) fn mem_pool_export_pointer(&mut self, ptr: DevicePtr) -> Answer<MemPoolPtrData> {
        let found = self.space.at(ptr.address()).copied();
        let Some((Purpose::Pool(pool), mapping)) = found.map(|mapping| (mapping.purpose, mapping)) else {
            return Err(Refusal::invalid_value(format!("{ptr} is not an allocation of a pool")));
        };
        if self.pools.get(pool)?.props.handles.is_none() {
            return Err(Refusal::invalid_value("the pool was not created for export"));
        }
        let device = owner(self.openings.device);
        let base = ptr.address();
        let words = [POINTER, device, pool.0, base, mapping.generation, mapping.end - base];
        Ok(MemPoolPtrData(pack(&words)))
    }

    pub(crate) fn mem_pool_import_pointer(
        &mut self,
        pool: MemPool,
        data: &MemPoolPtrData,
    ) -> Answer<DevicePtr> {
        let Some(exported_from) = self.pools.alive(pool)?.imported_from else {
            return Err(Refusal::invalid_value("the pool was not imported"));
        };
        let Some([POINTER, device, from, base, generation, bytes]) = unpack(&data.0) else {
            return Err(Refusal::invalid_value("the data describes no allocation of a simulated device"));
        };
        check_owner(device)?;
        if MemPool(from) != exported_from {
            return Err(Refusal::invalid_value("the allocation belongs to another pool"));
        }
        let exported = self.space.at(base).filter(|mapping| mapping.generation == generation).copied();
        let exported = exported.ok_or_else(|| Refusal::invalid_value("the allocation was freed"))?;
        let start = self.space.reserve(bytes, 0)?;
        self.space.map(start, bytes, exported.physical, exported.host, Purpose::Imported(pool));
        self.pools.imports.insert(start, generation);
        let found = self.pools.get(pool)?;
        found.used += bytes;
        found.reserved += bytes;
        found.used_high = found.used_high.max(found.used);
        found.reserved_high = found.reserved_high.max(found.reserved);
        self.note(start);
        Ok(DevicePtr::new(start))
    }

    /// Frees an imported pointer: in stream order, or after all work if no stream is given.
    pub(crate) fn end_imported(
        &mut self,
        ptr: DevicePtr,
        pool: MemPool,
        slot: Option<Slot>,
        call: &str,
    ) -> Answer<()> {
        if let Some(slot) = slot {
            let place = self.place(slot);
            self.submit(place, Operation::Nothing, 0);
        }
        let Some(mapping) = self.space.unmap(ptr.address()) else { return Ok(()) };
        self.pools.imports.remove(&ptr.address());
        let (addresses, bytes) = (ptr.address()..mapping.end, mapping.end - ptr.address());
        let piece = mapping.piece(ptr.address());
        let kind = self.oracle.unmapped(&piece, addresses, |epoch| match slot {
            Some(slot) => self.order.covers(slot, epoch),
            None => self.order.host_knows(epoch),
        });
        self.report_return(kind, ptr, bytes, call);
        self.space.unreserve(ptr.address(), bytes);
        let found = self.pools.get(pool)?;
        found.used -= bytes;
        found.reserved -= bytes;
        self.remove_ended(pool);
        Ok(())
    }
}
