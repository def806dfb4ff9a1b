//! A block that `millpond_malloc` handed out.

use std::sync::Arc;

use millpond_core::{DeviceMemoryResource, DevicePtr, DriverHandle, Layout, StreamId, StreamRef};

use crate::resource::Resource;

/// A stream that uses a block, with its identity at the time: the name of the per-thread stream is another
/// stream's on another thread.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    pub(crate) stream: StreamRef,
    pub(crate) id: StreamId,
}

impl Use {
    pub(crate) fn of(stream: StreamRef) -> Self {
        Self { stream, id: stream.id() }
    }

    /// A stream that comes after this use, as the present thread names it. Per-thread streams are blocking:
    /// the legacy default stream comes after those of all threads.
    pub(crate) fn here(self) -> StreamRef {
        if self.stream.id() == self.id { self.stream } else { StreamRef::LEGACY }
    }
}

/// A resource that serves a device, with its outermost pool, to which blocks go back.
pub(crate) struct Served(pub(crate) Resource);

/// A block that is handed out.
pub(crate) struct Block {
    pub(crate) ptr: DevicePtr,
    pub(crate) served: Arc<Served>,
    pub(crate) bytes: u64,
    pub(crate) stream: Use,
    /// Other streams that use it.
    pub(crate) used_on: Vec<Use>,
    /// How many blocks at this address were lost in resets of the device, and may yet be freed: a free says
    /// nothing but the address, so as many are ignored.
    pub(crate) stale: u32,
    /// Whether one was ignored. It may have been this block's own: then its streams may have ended since.
    pub(crate) may_be_free: bool,
}

impl Block {
    pub(crate) fn new(ptr: DevicePtr, served: Arc<Served>, bytes: u64, stream: StreamRef) -> Self {
        let (stream, used_on) = (Use::of(stream), Vec::new());
        Self { ptr, served, bytes, stream, used_on, stale: 0, may_be_free: false }
    }

    /// The driver of the device whose memory it is.
    pub(crate) fn driver(&self) -> &DriverHandle {
        self.served.0.0.driver()
    }

    /// Whether a stream that it names may have ended.
    pub(crate) fn names_ended(&self) -> bool {
        let may_end = |stream: StreamRef| !stream.is_legacy() && !stream.is_per_thread();
        self.may_be_free && (may_end(self.stream.stream) || !self.used_on.is_empty())
    }

    /// Gives the block back, in the order of the stream that it was allocated on.
    pub(crate) fn give_back(self) {
        let stream = self.stream.here();
        // SAFETY: the block came from this resource with this layout, and was taken out of the table, where
        // it was once. By the rules of `millpond_free` the stream is alive, and after all uses: none other
        // was recorded.
        unsafe { self.served.0.0.deallocate(self.ptr, Layout::new(self.bytes), stream) };
    }

    /// Gives a block back that the device has passed. Its stream may have ended since it was freed, which is
    /// not known of those that were made elsewhere.
    pub(crate) fn give_back_passed(self) {
        let own = self.stream.here();
        let may_be_gone = own.is_foreign() || self.driver().stream_is_gone(own);
        let stream = if may_be_gone { StreamRef::LEGACY } else { own };
        // SAFETY: as above, and the device has passed the uses that were recorded. Those of its own stream
        // are before the stream: that is a default stream's, or they were recorded as well.
        unsafe { self.served.0.0.deallocate(self.ptr, Layout::new(self.bytes), stream) };
    }
}
