//! Launches kernels, copies and fills.

use millpond_core::{DevicePtr, StreamRef};
use smallvec::SmallVec;

use crate::sim::model::access::{Access, Action};
use crate::sim::model::answer::{Answer, Refusal};
use crate::sim::model::memory::Pieces;
use crate::sim::model::space::slice_of;
use crate::sim::model::work::Operation;
use crate::sim::state::State;

impl State {
    /// See [`SimDevice::launch_for`](crate::sim::SimDevice::launch_for). Without a duration, the profile
    /// gives the time for the bytes that the kernel touches.
    pub(crate) fn launch(&mut self, stream: StreamRef, accesses: &[Access], duration_ns: Option<u64>) {
        self.begin_step();
        let Some(slot) = self.slot(stream, "a launch") else { return };
        let place = self.place(slot);
        let mut todo = SmallVec::new();
        let mut bytes = 0_u64;
        for access in accesses {
            bytes = bytes.saturating_add(access.bytes);
            let pieces = self.access(access.ptr, access.bytes, place.0).unwrap_or_default();
            if access.action != Action::Read {
                todo.extend(pieces.into_iter().map(|piece| (piece, access.action)));
            }
        }
        let duration = duration_ns.unwrap_or_else(|| self.profile.kernel_ns(bytes));
        self.submit(place, Operation::Kernel(todo), duration);
    }

    /// Submits work that uses these ranges; `operation` receives the memory behind them.
    fn submit_on(
        &mut self,
        stream: StreamRef,
        call: &str,
        bytes: u64,
        ranges: &[DevicePtr],
        operation: impl FnOnce(SmallVec<[Pieces; 2]>) -> Operation,
    ) -> Answer<()> {
        let slot = self.stream_slot(stream, call)?;
        let place = self.place(slot);
        let found: Option<SmallVec<[Pieces; 2]>> =
            ranges.iter().map(|ptr| self.access(*ptr, bytes, place.0)).collect();
        let duration = self.profile.copy_ns(bytes);
        match found {
            Some(pieces) => {
                self.submit(place, operation(pieces), duration);
                Ok(())
            }
            None => {
                self.submit(place, Operation::Nothing, 0);
                Err(Refusal::invalid_value("a range does not lie in one accessible allocation"))
            }
        }
    }

    pub(crate) fn memset(&mut self, dst: DevicePtr, value: u8, bytes: u64, stream: StreamRef) -> Answer<()> {
        self.submit_on(stream, "cuMemsetD8Async", bytes, &[dst], |mut pieces| {
            Operation::Fill(pieces.pop().unwrap_or_default(), value)
        })
    }

    pub(crate) fn copy_on_device(
        &mut self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
        call: &str,
    ) -> Answer<()> {
        self.submit_on(stream, call, bytes, &[dst, src], |mut pieces| {
            let from = pieces.pop().unwrap_or_default();
            Operation::Copy { from, to: pieces.pop().unwrap_or_default() }
        })
    }

    /// Copies bytes that were read when the call was made, as CUDA does with pageable memory.
    pub(crate) fn copy_staged(&mut self, dst: DevicePtr, from: Box<[u8]>, stream: StreamRef) -> Answer<()> {
        let bytes = from.len() as u64;
        self.submit_on(stream, "cuMemcpyHtoDAsync", bytes, &[dst], |mut pieces| Operation::CopyStaged {
            from,
            to: pieces.pop().unwrap_or_default(),
        })
    }

    /// Waits for the stream and reads, as CUDA does with pageable memory; `take` receives the bytes in parts.
    pub(crate) fn copy_out(
        &mut self,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
        mut take: impl FnMut(&[u8]),
    ) -> Answer<()> {
        let mut found = Pieces::new();
        self.submit_on(stream, "cuMemcpyDtoHAsync", bytes, &[src], |mut pieces| {
            found = pieces.pop().unwrap_or_default();
            Operation::Nothing
        })?;
        let slot = self.stream_slot(stream, "cuMemcpyDtoHAsync")?;
        self.work.finish(self.order.end(slot), &mut self.effects);
        self.order.host_learns_stream(slot);
        let mut buffer = vec![0; bytes.min(64 << 10) as usize];
        for piece in found {
            let mut offset = 0;
            while offset < piece.bytes {
                let part = (piece.bytes - offset).min(buffer.len() as u64);
                self.effects.contents.read(&piece, offset, &mut buffer[..part as usize]);
                take(&buffer[..part as usize]);
                offset += part;
            }
        }
        Ok(())
    }

    /// Returns whether the device knows the host address of a copy, so that the copy may run later. It knows
    /// pinned and managed memory. As in CUDA, the address may also be an address of a device.
    pub(crate) fn is_known(&self, address: usize, bytes: u64) -> bool {
        let found = self.space.holding(address as u64);
        found.is_some_and(|(_, m)| m.host != 0 && bytes <= m.end - address as u64)
            || slice_of(address as u64).is_some()
    }

    pub(crate) fn prefetch(
        &mut self,
        ptr: DevicePtr,
        bytes: u64,
        to_host: bool,
        stream: StreamRef,
    ) -> Answer<()> {
        self.check_managed(ptr, bytes)?;
        self.submit_on(stream, "cuMemPrefetchAsync", bytes, &[ptr], |_| Operation::Nothing)?;
        self.last_prefetch = Some((ptr, bytes, to_host));
        Ok(())
    }
}
