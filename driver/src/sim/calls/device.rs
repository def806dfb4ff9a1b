//! Queries about the device and its streams.

use millpond_core::driver::{DeviceAttribute, MemoryInfo};
use millpond_core::{DriverError, StreamRef};

use crate::sim::model::answer::{Answer, Refusal};
use crate::sim::model::violation::ViolationKind;
use crate::sim::state::State;

impl State {
    pub(crate) fn attribute(&self, attribute: DeviceAttribute) -> i64 {
        let (major, minor) = self.profile.compute_capability();
        match attribute {
            DeviceAttribute::MultiprocessorCount => self.profile.multiprocessors(),
            DeviceAttribute::ComputeCapabilityMajor => major,
            DeviceAttribute::ComputeCapabilityMinor => minor,
            DeviceAttribute::MemoryPoolsSupported
            | DeviceAttribute::VirtualMemoryManagementSupported
            | DeviceAttribute::ConcurrentManagedAccess
            | DeviceAttribute::CanMapHostMemory
            | DeviceAttribute::RdmaOfPhysicalMemorySupported
            | DeviceAttribute::IpcEventSupported => 1,
            DeviceAttribute::PosixFdHandlesSupported => i64::from(cfg!(unix)),
            DeviceAttribute::MemPoolSupportedHandleTypes => i64::from(self.pool_handles().bits()),
            DeviceAttribute::PageableMemoryAccess => i64::from(self.pageable_access),
            _ => 0,
        }
    }

    pub(crate) fn mem_get_info(&self) -> MemoryInfo {
        let total = self.space.capacity();
        MemoryInfo { free: total - self.space.used(), total }
    }

    pub(crate) fn synchronize_all(&mut self) -> Answer<()> {
        self.synchronize();
        Ok(())
    }

    pub(crate) fn stream_is_capturing(&mut self, stream: StreamRef) -> Answer<bool> {
        let slot = self.stream_slot(stream, "cuStreamIsCapturing")?;
        Ok(self.captures.of(slot).is_some())
    }

    pub(crate) fn stream_capture_id(&mut self, stream: StreamRef) -> Answer<Option<u64>> {
        let slot = self.stream_slot(stream, "cuStreamGetCaptureInfo")?;
        match self.captures.of(slot) {
            Some(id) if self.captures.is_broken(id) => {
                let text = "a call that cannot be captured invalidated the stream's capture";
                Err(Refusal::new(DriverError::STREAM_CAPTURE_INVALIDATED, text))
            }
            known => Ok(known),
        }
    }

    pub(crate) fn stream_ref(&mut self, handle: u64) -> Answer<StreamRef> {
        if let Some(stream) = self.names.stream(handle) {
            return Ok(stream);
        }
        self.violation(ViolationKind::DeadHandle, || {
            format!("stream {handle:#x} never existed or was destroyed")
        });
        Err(Refusal::new(DriverError::INVALID_HANDLE, format!("stream {handle:#x} does not exist")))
    }
}
