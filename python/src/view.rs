//! Views of blocks: what a buffer is at one time, and the work on it.

use std::ptr::without_provenance_mut;
use std::sync::Arc;

use crate::api::api;
use crate::block::{Block, Source};
use crate::device::{DeviceHandle, StreamHandle};
use crate::error::{Failure, check};
use crate::handle::ResourceHandle;
use crate::oracle::{Mistake, makes};

/// What a buffer is at one time.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) block: Arc<Block>,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) stream: Arc<StreamHandle>,
}

impl View {
    pub(crate) fn address(&self) -> usize {
        if self.block.address == 0 { 0 } else { self.block.address + self.offset as usize }
    }

    pub(crate) fn device(&self) -> Result<&Arc<DeviceHandle>, Failure> {
        self.block.device()
    }

    /// The bytes that the view can grow to.
    pub(crate) fn capacity(&self) -> u64 {
        self.block.bytes - self.offset
    }

    /// Waits on the host for a stream.
    pub(crate) fn synchronize(&self, stream: &StreamHandle) -> Result<(), Failure> {
        // SAFETY: the device's handle is live, and so is the stream.
        check(unsafe { (api().stream_synchronize)(self.device()?.0, stream.ptr()) })
    }

    /// The first bytes alone.
    fn first(&self, bytes: u64) -> Self {
        Self { size: bytes, ..self.clone() }
    }

    /// Whether the first bytes of both share memory, from different places on.
    fn overlaps(&self, other: &Self, bytes: u64) -> bool {
        let distance = self.address().abs_diff(other.address()) as u64;
        0 < distance && distance < bytes
    }

    /// Copies to the host, and waits for it.
    ///
    /// # Safety
    /// `self.size` bytes may be written at `target`.
    pub(crate) unsafe fn read(&self, target: *mut u8, stream: &StreamHandle) -> Result<(), Failure> {
        if self.size == 0 {
            return Ok(());
        }
        let (device, source) = (self.device()?.0, without_provenance_mut(self.address()));
        self.block.on(stream, || {
            let target = target.cast();
            // SAFETY: the device's handle is live, as are the stream and the block; the target may be
            // written.
            let copied = unsafe { (api().copy_to_host)(device, target, source, self.size, stream.ptr()) };
            // Also if that failed, as the host's memory is the caller's.
            check(copied).and(self.synchronize(stream))
        })
    }

    /// Copies from the host, and waits for it, as the host's memory is the caller's.
    ///
    /// # Safety
    /// `bytes` bytes may be read at `source`, and are at most the view's.
    pub(crate) unsafe fn write(
        &self,
        source: *const u8,
        bytes: u64,
        stream: &StreamHandle,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        let (device, target) = (self.device()?.0, without_provenance_mut(self.address()));
        self.block.on(stream, || {
            let source = source.cast_mut().cast();
            // SAFETY: the device's handle is live, and so are the stream and the block; the source may be
            // read.
            let copied = unsafe { (api().copy_to_device)(device, target, source, bytes, stream.ptr()) };
            check(copied).and(self.synchronize(stream))
        })
    }

    /// Copies on the device, in the order of `stream`. The caller orders the source.
    pub(crate) fn copy_from(&self, source: usize, bytes: u64, stream: &StreamHandle) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        let device = self.device()?.0;
        let (target, source) = (without_provenance_mut(self.address()), without_provenance_mut(source));
        self.block.on(stream, || {
            // SAFETY: the device's handle is live, and so are the stream and the block, which holds as many;
            // the source is the caller's promise.
            check(unsafe { (api().copy_on_device)(device, target, source, bytes, stream.ptr()) })
        })
    }

    /// Fills the view from an address of the device or, with CUDA, of the host, as `cudaMemcpyDefault` does:
    /// CUDA refuses to take an address of the host for one of the device. A simulated device refuses it for
    /// good, because it cannot tell such an address from one of memory that has ended.
    ///
    /// # Safety
    /// `self.size` bytes may be read at `source`.
    pub(crate) unsafe fn copy_from_anywhere(
        &self,
        source: usize,
        stream: &StreamHandle,
    ) -> Result<(), Failure> {
        match self.copy_from(source, self.size, stream) {
            Err(failure) if failure.is_invalid_value() && !self.device()?.is_simulated() => {
                // SAFETY: the caller's promise.
                unsafe { self.write(std::ptr::with_exposed_provenance(source), self.size, stream) }
            }
            done => done,
        }
    }

    /// Copies the first bytes of another view, in the order of `stream`; the other one's block goes back
    /// after the copy.
    pub(crate) fn copy_from_view(
        &self,
        other: &Self,
        bytes: u64,
        stream: &StreamHandle,
    ) -> Result<(), Failure> {
        let (device, of_other) = (self.device()?, other.device()?);
        if makes(Mistake::Source) {
            return self.copy_from(other.address(), bytes, stream);
        }
        if device.is_same(of_other) && self.overlaps(other, bytes) {
            // The device copies in no particular order.
            let between = other.first(bytes).duplicate(&self.block.stream)?;
            return between.block.on(stream, || self.copy_from(between.address(), bytes, stream));
        }
        if device.is_same(of_other) || bytes == 0 {
            return other.block.on(stream, || self.copy_from(other.address(), bytes, stream));
        }
        // The streams of two devices are ordered by the host.
        other.block.wait()?;
        let (target, source) =
            (without_provenance_mut(self.address()), without_provenance_mut(other.address()));
        self.block.on(stream, || {
            let (device, from, stream) = (device.0, of_other.0, stream.ptr());
            // SAFETY: the handles of both devices are live, and so are the stream and both blocks, which hold
            // as many; the source's work is done.
            check(unsafe { (api().copy_from_device)(device, target, from, source, bytes, stream) })
        })
    }

    /// Sets each byte, in the order of `stream`.
    pub(crate) fn fill(&self, value: u8, stream: &StreamHandle) -> Result<(), Failure> {
        if self.size == 0 {
            return Ok(());
        }
        let (device, target) = (self.device()?.0, without_provenance_mut(self.address()));
        // SAFETY: the device's handle is live, and so are the stream and the block.
        self.block
            .on(stream, || check(unsafe { (api().fill)(device, target, value, self.size, stream.ptr()) }))
    }

    /// Moves managed memory to the device, or to the host, in the order of `stream`.
    pub(crate) fn prefetch(&self, to_host: bool, stream: &StreamHandle) -> Result<(), Failure> {
        let (device, target) = (self.device()?.0, without_provenance_mut(self.address()));
        self.block.on(stream, || {
            // SAFETY: the device's handle is live, and so are the stream and the block.
            check(unsafe { (api().prefetch)(device, target, self.size, to_host, stream.ptr()) })
        })
    }

    /// The same bytes in memory of their own, from the same resource.
    pub(crate) fn duplicate(&self, stream: &Arc<StreamHandle>) -> Result<Self, Failure> {
        let resource = match &*self.block.source {
            Source::Resource(resource) => resource.clone(),
            Source::Foreign { device, .. } => ResourceHandle::of_device(device)?,
        };
        let block = Block::new(resource, self.size, stream.clone())?;
        let copy = Self { block, offset: 0, size: self.size, stream: stream.clone() };
        copy.copy_from_view(self, self.size, stream)?;
        Ok(copy)
    }

    /// Copies memory of another owner, whose stream waits for the copy: the owner may end at once.
    pub(crate) fn copy_from_foreign(
        &self,
        source: usize,
        bytes: u64,
        of_source: usize,
        stream: &StreamHandle,
    ) -> Result<(), Failure> {
        let (device, of_source) = (self.device()?, without_provenance_mut(of_source));
        // SAFETY: the device's handle is live, and so are both streams.
        check(unsafe { (api().stream_follow)(device.0, stream.ptr(), of_source) })?;
        let copied = self.copy_from(source, bytes, stream);
        // SAFETY: as above.
        let followed = check(unsafe { (api().stream_follow)(device.0, of_source, stream.ptr()) });
        // The owner may end its memory at once.
        copied.and(followed.or_else(|_| self.block.wait_for_device()))
    }

    /// Copies memory of which nothing but the address is known, and waits for it: its owner cannot know when
    /// the copy is done.
    pub(crate) fn copy_from_unknown(
        &self,
        source: usize,
        bytes: u64,
        stream: &StreamHandle,
    ) -> Result<(), Failure> {
        self.copy_from(source, bytes, stream).and(self.synchronize(stream))
    }
}
