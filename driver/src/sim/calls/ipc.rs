//! Exports plain memory, and opens and closes it through IPC handles.

use millpond_core::DevicePtr;
use millpond_core::driver::IpcMemHandle;

use crate::sim::model::answer::{Answer, Refusal};
use crate::sim::model::ipc::{MAGIC, Opening, check_owner, owner, pack, unpack};
use crate::sim::model::space::Purpose;
use crate::sim::model::violation::ViolationKind;
use crate::sim::state::State;

impl State {
    pub(crate) fn ipc_get_mem_handle(&self, ptr: DevicePtr) -> Answer<IpcMemHandle> {
        let unknown = || Refusal::invalid_value(format!("{ptr} lies in no allocation"));
        let (base, mapping) = self.space.holding(ptr.address()).ok_or_else(unknown)?;
        if mapping.purpose != Purpose::Plain {
            return Err(Refusal::not_supported("other processes can open only memory from cuMemAlloc"));
        }
        Ok(IpcMemHandle(pack(&[
            MAGIC,
            owner(self.openings.device),
            base,
            mapping.generation,
            mapping.end - base,
        ])))
    }

    pub(crate) fn ipc_open_mem_handle(&mut self, handle: &IpcMemHandle) -> Answer<DevicePtr> {
        let Some([MAGIC, from, base, generation, bytes]) = unpack(&handle.0) else {
            return Err(Refusal::invalid_value("the handle is not from a simulated device"));
        };
        check_owner(from)?;
        if from != owner(self.openings.device) {
            let device = from as u32;
            return Err(Refusal::invalid_value(format!("the handle belongs to device sim:{device}")));
        }
        let exported = self.space.at(base).filter(|mapping| mapping.generation == generation).copied();
        let Some(exported) = exported else {
            return Err(Refusal::invalid_value("the handle's allocation was freed"));
        };
        let known = self.openings.open.iter_mut().find(|(_, opening)| opening.generation == generation);
        if let Some((&start, opening)) = known {
            opening.count += 1;
            return Ok(DevicePtr::new(start));
        }
        let start = self.space.reserve(bytes, 0)?;
        self.space.map(start, bytes, exported.physical, 0, Purpose::Ipc);
        self.openings.open.insert(start, Opening { generation, count: 1 });
        self.note(start);
        Ok(DevicePtr::new(start))
    }

    pub(crate) fn ipc_close_mem_handle(&mut self, ptr: DevicePtr) -> Answer<()> {
        let start = ptr.address();
        let Some(opening) = self.openings.open.get_mut(&start) else {
            return Err(self.unknown_pointer(ptr, "cuIpcCloseMemHandle"));
        };
        opening.count -= 1;
        if opening.count > 0 {
            return Ok(());
        }
        self.openings.open.remove(&start);
        if let Some(mapping) = self.space.unmap(start) {
            let bytes = mapping.end - start;
            let piece = mapping.piece(start);
            let kind: Option<ViolationKind> =
                self.oracle.unmapped(&piece, start..mapping.end, |epoch| self.order.host_knows(epoch));
            self.report_return(kind, ptr, bytes, "cuIpcCloseMemHandle");
            self.space.unreserve(start, bytes);
        }
        Ok(())
    }
}
