//! Views of blocks: a buffer's state at one time, and the work on it.

use std::ptr::without_provenance_mut;
use std::sync::Arc;

use crate::api::api;
use crate::block::{Block, Source};
use crate::device::{DeviceHandle, StreamHandle};
use crate::error::{Failure, check};
use crate::handle::ResourceHandle;
use crate::oracle::{Mistake, makes};

/// The state of a buffer at one time.
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

    /// Returns the number of bytes that the view can grow to.
    pub(crate) fn capacity(&self) -> u64 {
        self.block.bytes - self.offset
    }

    /// Waits on the host for a stream.
    pub(crate) fn synchronize(&self, stream: &StreamHandle) -> Result<(), Failure> {
        // SAFETY: the device's handle and the stream are live.
        check(unsafe { (api().stream_synchronize)(self.device()?.0, stream.ptr()) })
    }

    /// Shortens the view to its first bytes.
    fn first(&self, bytes: u64) -> Self {
        Self { size: bytes, ..self.clone() }
    }

    /// Returns whether the first bytes of both overlap and start at different addresses.
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
            // SAFETY: the device's handle, the stream and the block are live; the target may be written.
            let copied = unsafe { (api().copy_to_host)(device, target, source, self.size, stream.ptr()) };
            // A failed copy is awaited too, because the host's memory belongs to the caller.
            check(copied).and(self.synchronize(stream))
        })
    }

    /// Copies from the host and waits, because the host's memory belongs to the caller.
    ///
    /// # Safety
    /// `bytes` bytes may be read at `source`, and `bytes` is at most the view's size.
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
            // SAFETY: the device's handle, the stream and the block are live; the source may be read.
            let copied = unsafe { (api().copy_to_device)(device, target, source, bytes, stream.ptr()) };
            check(copied).and(self.synchronize(stream))
        })
    }

    /// Copies on the device in the order of `stream`. The caller orders the source.
    pub(crate) fn copy_from(&self, source: usize, bytes: u64, stream: &StreamHandle) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        let device = self.device()?.0;
        let (target, source) = (without_provenance_mut(self.address()), without_provenance_mut(source));
        self.block.on(stream, || {
            // SAFETY: the device's handle, the stream and the block are live, and the block is large enough.
            // The caller vouches for the source.
            check(unsafe { (api().copy_on_device)(device, target, source, bytes, stream.ptr()) })
        })
    }

    /// Fills the view from a device address or a host address in the order of `stream`, like
    /// `cudaMemcpyDefault`.
    ///
    /// # Safety
    /// `self.size` bytes may be read at `source`, and pinned host memory until the copy is done.
    pub(crate) unsafe fn copy_from_anywhere(
        &self,
        source: usize,
        stream: &StreamHandle,
    ) -> Result<(), Failure> {
        if self.size == 0 {
            return Ok(());
        }
        let (device, target) = (self.device()?.0, without_provenance_mut(self.address()));
        let (source, bytes) = (std::ptr::with_exposed_provenance_mut(source), self.size);
        self.block.on(stream, || {
            // SAFETY: the device's handle, the stream and the block are live; the source may be read.
            check(unsafe { (api().copy_from_anywhere)(device, target, source, bytes, stream.ptr()) })
        })
    }

    /// Copies the first bytes of another view in the order of `stream`. The other view's block is freed after
    /// the copy.
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
        // The host orders streams of different devices.
        other.block.wait()?;
        let (target, source) =
            (without_provenance_mut(self.address()), without_provenance_mut(other.address()));
        self.block.on(stream, || {
            let (device, from, stream) = (device.0, of_other.0, stream.ptr());
            // SAFETY: the handles of both devices, the stream and both blocks are live, and the blocks are
            // large enough. The source's work is done.
            check(unsafe { (api().copy_from_device)(device, target, from, source, bytes, stream) })
        })
    }

    /// Sets each byte in the order of `stream`.
    pub(crate) fn fill(&self, value: u8, stream: &StreamHandle) -> Result<(), Failure> {
        if self.size == 0 {
            return Ok(());
        }
        let (device, target) = (self.device()?.0, without_provenance_mut(self.address()));
        // SAFETY: the device's handle, the stream and the block are live.
        self.block
            .on(stream, || check(unsafe { (api().fill)(device, target, value, self.size, stream.ptr()) }))
    }

    /// Moves managed memory to the device or the host in the order of `stream`.
    pub(crate) fn prefetch(&self, to_host: bool, stream: &StreamHandle) -> Result<(), Failure> {
        let (device, target) = (self.device()?.0, without_provenance_mut(self.address()));
        self.block.on(stream, || {
            // SAFETY: the device's handle, the stream and the block are live.
            check(unsafe { (api().prefetch)(device, target, self.size, to_host, stream.ptr()) })
        })
    }

    /// Copies the bytes to new memory from the same resource.
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

    /// Copies memory of another owner. The owner's stream waits for the copy, so the owner may end at once.
    pub(crate) fn copy_from_foreign(
        &self,
        source: usize,
        bytes: u64,
        of_source: usize,
        stream: &StreamHandle,
    ) -> Result<(), Failure> {
        let (device, of_source) = (self.device()?, without_provenance_mut(of_source));
        // SAFETY: the device's handle and both streams are live.
        check(unsafe { (api().stream_follow)(device.0, stream.ptr(), of_source) })?;
        let copied = self.copy_from(source, bytes, stream);
        // SAFETY: as above.
        let followed = check(unsafe { (api().stream_follow)(device.0, of_source, stream.ptr()) });
        // The owner may end its memory at once.
        copied.and(followed.or_else(|_| self.block.wait_for_device()))
    }

    /// Copies memory at an address whose owner is unknown, and waits. The owner cannot know when the copy is
    /// done.
    pub(crate) fn copy_from_unknown(
        &self,
        source: usize,
        bytes: u64,
        stream: &StreamHandle,
    ) -> Result<(), Failure> {
        self.copy_from(source, bytes, stream).and(self.synchronize(stream))
    }
}
