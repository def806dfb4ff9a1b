//! The events that order the uses of a [`CudaBuffer`](crate::CudaBuffer) on several streams.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use millpond_core::{DriverHandle, StreamId, StreamRef};
use millpond_driver::CurrentDeviceGuard;

use crate::cuda_stream::is_lost;

/// The events of one buffer.
///
/// cudarc gives a kernel launch no other events than a slice's, and a slice remembers only its last read. So
/// kernels and all writes are recorded in a slice, and copies and library calls that read are recorded here,
/// one event for each stream: such calls are safe, so none may be forgotten.
pub(crate) struct Events<T> {
    /// A slice over the buffer's memory. It frees nothing.
    pub(crate) slice: ManuallyDrop<CudaSlice<T>>,
    pub(crate) reads: ManuallyDrop<Reads>,
    driver: DriverHandle,
}

impl<T> Events<T> {
    /// The slice is over the buffer's memory, on the buffer's stream. Its last write is a point after all
    /// earlier uses of the memory.
    pub(crate) fn new(slice: ManuallyDrop<CudaSlice<T>>, driver: DriverHandle) -> Self {
        Self { slice, reads: ManuallyDrop::new(Reads::default()), driver }
    }
}

/// Orders the slice's stream after all uses, on the device.
impl<T> Drop for Events<T> {
    fn drop(&mut self) {
        // The driver has destroyed the events of a lost context.
        if is_lost(&self.driver) {
            return;
        }
        let _current = CurrentDeviceGuard::new(self.driver.device());
        // SAFETY: neither is used again.
        let (slice, reads) =
            unsafe { (ManuallyDrop::take(&mut self.slice), ManuallyDrop::take(&mut self.reads)) };
        let stream = slice.stream().clone();
        let context = stream.context();
        // An error that cudarc has stored would fail the waits.
        let earlier = context.check_err();
        if reads.are_managed(&stream, &stream) {
            reads.make_wait(&stream);
        }
        slice.leak();
        let outcome = context.check_err();
        if outcome.is_err() {
            context.record_err(context.synchronize());
        }
        context.record_err(outcome);
        context.record_err(earlier);
    }
}

/// The reads by copies and library calls.
#[derive(Default)]
pub(crate) struct Reads {
    first: OnceLock<Box<Read>>,
    /// Whether a kernel that writes must wait for reads.
    are_new: AtomicBool,
    /// Whether another stream may be using the memory.
    are_pending: AtomicBool,
}

/// The last read on a stream. The list only grows, so an event can be borrowed from it without a lock.
struct Read {
    stream: Key,
    event: CudaEvent,
    next: OnceLock<Box<Self>>,
}

/// A stream's handle. The handle of the per-thread default stream means one stream for each thread.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key(usize, Option<StreamId>);

impl Key {
    fn of(stream: &CudaStream) -> Self {
        const PER_THREAD: usize = 2;
        let handle = stream.cu_stream() as usize;
        Self(handle, (handle == PER_THREAD).then(|| StreamRef::PER_THREAD.id()))
    }
}

impl Reads {
    /// Returns whether cudarc orders uses of the slice of `own` on `stream` by events now. If cudarc stopped
    /// because all other streams were dropped, the host waits once for the work that they left.
    pub(crate) fn are_managed(&self, own: &CudaStream, stream: &CudaStream) -> bool {
        let context = own.context();
        if context.is_managing_stream_synchronization() {
            self.are_pending.store(true, Ordering::Relaxed);
            return stream.context().is_managing_stream_synchronization();
        }
        if context.is_event_tracking() && self.are_pending.swap(false, Ordering::Relaxed) {
            context.record_err(context.synchronize());
        }
        false
    }

    /// Orders `stream` for a call that reads `part`, and records the read when the result is dropped.
    pub(crate) fn read_on<'a, T>(
        &'a self,
        part: &impl DevicePtr<T>,
        stream: &'a CudaStream,
    ) -> SyncOnDrop<'a> {
        // The stream waits for the last write. To record this read would forget the slice's last read.
        mem::forget(part.device_ptr(stream).1);
        self.are_new.store(true, Ordering::Release);
        match self.event_of(stream) {
            Ok(event) => {
                // A new stream can get the handle of one that was destroyed.
                wait(stream, event);
                SyncOnDrop::Record(Some((event, stream)))
            }
            // Not stored in the context, because cudarc does not wait while an error is stored.
            Err(error) => {
                tracing::debug!(target: "millpond::containers", code = error.0 as u32, "cudarc has no event \
                    for a read");
                SyncOnDrop::sync_stream(stream)
            }
        }
    }

    /// Orders `stream` for a call that writes `part`, and records the write when the result is dropped.
    pub(crate) fn write_on<'a, T>(
        &self,
        part: &'a mut impl DevicePtrMut<T>,
        stream: &'a CudaStream,
    ) -> SyncOnDrop<'a> {
        self.make_wait(stream);
        part.device_ptr_mut(stream).1
    }

    /// Prepares `part` for a kernel that writes it on a stream that cudarc does not name. The kernel waits
    /// for the last write, so a point after all reads becomes the last write.
    pub(crate) fn become_write<T>(&self, part: &mut impl DevicePtrMut<T>) {
        let own = part.stream().clone();
        if self.are_managed(&own, &own) && self.are_new.load(Ordering::Acquire) {
            // The launch returns an error that cudarc has stored. Here it would fail the waits.
            let earlier = own.context().check_err();
            drop(self.write_on(part, &own));
            own.context().record_err(earlier);
            // After the record: another thread may be preparing a disjoint part.
            self.are_new.store(false, Ordering::Release);
        }
    }

    fn make_wait(&self, stream: &CudaStream) {
        let mut next = self.first.get();
        while let Some(read) = next {
            wait(stream, &read.event);
            next = read.next.get();
        }
    }

    fn event_of(&self, stream: &CudaStream) -> Result<&CudaEvent, cudarc::driver::DriverError> {
        let key = Key::of(stream);
        let (mut place, mut new) = (&self.first, None);
        loop {
            if let Some(read) = place.get() {
                if read.stream == key {
                    return Ok(&read.event);
                }
                place = &read.next;
                continue;
            }
            let read = match new.take() {
                Some(read) => read,
                None => {
                    let event = stream.context().new_event(None)?;
                    Box::new(Read { stream: key, event, next: OnceLock::new() })
                }
            };
            // If another thread was first, its entry comes before this one.
            new = place.set(read).err();
        }
    }
}

impl fmt::Debug for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reads").finish_non_exhaustive()
    }
}

/// If the stream cannot wait, the host does.
fn wait(stream: &CudaStream, event: &CudaEvent) {
    let context = stream.context();
    if let Err(error) = stream.wait(event) {
        context.record_err(context.synchronize().map_err(|_| error));
    }
}
