//! Shares pools with other processes, which are simulated within one. A file descriptor names the pool. An
//! import is another pool, whose pointers are second addresses of the exporter's memory.

use millpond_core::driver::{HandleTypes, MemPool, MemPoolPtrData};
use millpond_core::{DeviceId, DevicePtr};

use super::share::files;
use crate::sim::model::answer::{Answer, Refusal};
use crate::sim::model::clock::Slot;
use crate::sim::model::ipc::checksum;
use crate::sim::model::pools::Pool;
use crate::sim::model::space::Purpose;
use crate::sim::model::work::Operation;
use crate::sim::state::State;

const POOL: u64 = u64::from_le_bytes(*b"millpool");
const POINTER: u64 = u64::from_le_bytes(*b"millpptr");

/// The words of a description: magic, device, pool, base, generation, bytes, and their checksum.
const WORDS: usize = 7;

impl State {
    pub(crate) fn mem_pool_export(&mut self, pool: MemPool, device: DeviceId) -> Answer<i32> {
        let found = self.pools.alive(pool)?;
        if !found.props.handles.contains(HandleTypes::POSIX_FD) || found.imported_from.is_some() {
            return Err(Refusal::invalid_value("the pool was not created for export to a file"));
        }
        files::write([POOL, u64::from(device.ordinal()), pool.0])
    }

    pub(crate) fn mem_pool_import(&mut self, fd: i32, device: DeviceId) -> Answer<MemPool> {
        let [magic, ordinal, handle] = files::read(fd)?;
        if magic != POOL || ordinal != u64::from(device.ordinal()) {
            return Err(Refusal::invalid_value(format!(
                "file descriptor {fd} does not name a pool of {device}"
            )));
        }
        let exported = MemPool(handle);
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
        let device = u64::from(self.openings.device.ordinal());
        let base = ptr.address();
        let mut words = vec![POINTER, device, pool.0, base, mapping.generation, mapping.end - base];
        words.push(checksum(&words));
        let mut bytes = [0; 64];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(MemPoolPtrData(bytes))
    }

    pub(crate) fn mem_pool_import_pointer(
        &mut self,
        pool: MemPool,
        data: &MemPoolPtrData,
    ) -> Answer<DevicePtr> {
        let Some(exported_from) = self.pools.alive(pool)?.imported_from else {
            return Err(Refusal::invalid_value("the pool was not imported"));
        };
        let words: Vec<u64> = data
            .0
            .chunks_exact(8)
            .map(|c| c.iter().rev().fold(0, |word, b| word << 8 | u64::from(*b)))
            .collect();
        let [magic, _device, from, base, generation, bytes, sum] = words[..WORDS] else {
            return Err(Refusal::invalid_value("the data describes no allocation"));
        };
        if magic != POINTER || sum != checksum(&words[..WORDS - 1]) {
            return Err(Refusal::invalid_value("the data describes no allocation of a simulated device"));
        }
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
