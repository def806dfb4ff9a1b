//! A block that `millpond_malloc` returned.

use std::sync::Arc;

use millpond_core::{DeviceMemoryResource, DevicePtr, DriverHandle, Layout, StreamId, StreamRef};

use crate::history;
use crate::resource::Resource;

/// A stream that uses a block, with the stream's identity at the time of the use. The handle of the
/// per-thread default stream means another stream on another thread.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    pub(crate) stream: StreamRef,
    pub(crate) id: StreamId,
}

impl Use {
    pub(crate) fn of(stream: StreamRef) -> Self {
        Self { stream, id: stream.id() }
    }

    /// Returns a stream whose later work runs after this use, under its handle on the calling thread.
    /// Per-thread default streams are blocking streams, so the legacy default stream runs after the
    /// per-thread streams of all threads.
    pub(crate) fn here(self) -> StreamRef {
        if self.stream.id() == self.id { self.stream } else { StreamRef::LEGACY }
    }
}

/// A resource that serves a device, and the pool that is its outermost layer. Its blocks return to that pool.
pub(crate) struct Served(pub(crate) Resource);

/// A live block.
pub(crate) struct Block {
    pub(crate) ptr: DevicePtr,
    pub(crate) served: Arc<Served>,
    pub(crate) bytes: u64,
    pub(crate) stream: Use,
    /// The other streams that use the block.
    pub(crate) used_on: Vec<Use>,
    /// How many blocks at this address were lost in resets of the device, and may still be freed. A free
    /// names only the address, so the same number of frees is ignored.
    pub(crate) stale: u32,
    /// Whether a free was ignored that may have been for this block. In that case, the block's streams may
    /// have ended since then.
    pub(crate) may_be_free: bool,
}

impl Block {
    pub(crate) fn new(ptr: DevicePtr, served: Arc<Served>, bytes: u64, stream: StreamRef) -> Self {
        let (stream, used_on) = (Use::of(stream), Vec::new());
        Self { ptr, served, bytes, stream, used_on, stale: 0, may_be_free: false }
    }

    /// Returns the driver of the device that owns the memory.
    pub(crate) fn driver(&self) -> &DriverHandle {
        self.served.0.0.driver()
    }

    /// Returns whether one of the block's streams may have ended.
    pub(crate) fn names_ended(&self) -> bool {
        let may_end = |stream: StreamRef| !stream.is_legacy() && !stream.is_per_thread();
        self.may_be_free && (may_end(self.stream.stream) || !self.used_on.is_empty())
    }

    /// Returns whether the block can return to its resource at once: no other stream uses it, or the device
    /// is lost.
    pub(crate) fn is_passed(&self) -> bool {
        (self.used_on.is_empty() && !self.names_ended()) || self.driver().health().is_lost()
    }

    /// Records that the program freed the block.
    #[inline]
    pub(crate) fn note_free(&self) {
        if let Some(recorder) = history::recorder() {
            let (device, stream) = (self.driver().device(), self.stream.stream);
            match self.is_passed() {
                true => recorder.free(device, self.ptr, self.bytes, stream),
                false => recorder.free_requested(device, self.ptr, self.bytes, stream),
            }
        }
    }

    /// Records that the block returns to its resource, after it waited for other streams.
    pub(crate) fn note_passed(&self) {
        if let Some(recorder) = history::recorder() {
            recorder.free_completed(self.driver().device(), self.ptr, self.bytes, self.stream.stream);
        }
    }

    /// Returns the block to its resource, in the order of the stream that it was allocated on.
    pub(crate) fn give_back(self) {
        let stream = self.stream.here();
        // SAFETY: the block came from this resource with this layout. It left the table, which held it once.
        // By the rules of `millpond_free`, the stream is alive and comes after all uses: no other use was
        // recorded.
        unsafe { self.served.0.0.deallocate(self.ptr, Layout::new(self.bytes), stream) };
    }

    /// Returns a block to its resource after the device has finished its recorded uses. The block's stream
    /// may have ended since the free. A foreign stream, which another library made, always counts as ended.
    pub(crate) fn give_back_passed(self) {
        let own = self.stream.here();
        let may_be_gone = own.is_foreign() || self.driver().stream_is_gone(own);
        let stream = if may_be_gone { StreamRef::LEGACY } else { own };
        // SAFETY: as above, and the device has finished the recorded uses. Uses on the block's own stream
        // come before `stream`: either its own stream is a default stream, or those uses were recorded too.
        unsafe { self.served.0.0.deallocate(self.ptr, Layout::new(self.bytes), stream) };
    }
}
