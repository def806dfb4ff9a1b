//! The calls of the tests on a driver.

use millpond_core::driver::{DeviceAttribute, DriverResult, Event, EventFlags, StreamFlags};
use millpond_core::{DevicePtr, Driver, DriverError, DriverHandle, StreamRef};

pub(super) const S: StreamRef = StreamRef::LEGACY;
pub(super) const MIB: u64 = 1 << 20;

/// The driver under test. Each test passes each of its blocks, streams and events to `free` and `end` once.
pub(super) struct Device<'a>(pub(super) &'a DriverHandle);

impl std::ops::Deref for Device<'_> {
    type Target = dyn Driver;

    fn deref(&self) -> &Self::Target {
        &**self.0
    }
}

impl Device<'_> {
    pub(super) fn alloc<const N: usize>(&self, bytes: u64) -> [DevicePtr; N] {
        [(); N].map(|()| ok(self.mem_alloc(bytes)))
    }

    pub(super) fn free(&self, blocks: impl IntoIterator<Item = DevicePtr>) {
        // SAFETY: the test passes each block once, after its work.
        blocks.into_iter().for_each(|block| ok(unsafe { self.mem_free(block) }));
    }

    pub(super) fn stream(&self) -> StreamRef {
        ok(self.stream_create(StreamFlags::NON_BLOCKING))
    }

    pub(super) fn end(&self, streams: impl IntoIterator<Item = StreamRef>) {
        // SAFETY: the test passes each stream once.
        streams.into_iter().for_each(|stream| ok(unsafe { self.stream_destroy(stream) }));
    }

    pub(super) fn event(&self) -> Event {
        ok(self.event_create(EventFlags::default()))
    }

    pub(super) fn end_event(&self, event: Event) {
        // SAFETY: the test passes each event once.
        ok(unsafe { self.event_destroy(event) });
    }

    /// Makes the next work of `after` wait for the present work of `before`.
    pub(super) fn order(&self, before: StreamRef, after: StreamRef) {
        let event = self.event();
        ok(self.event_record(event, before));
        ok(self.stream_wait_event(after, event));
        self.end_event(event);
    }

    pub(super) fn put(&self, block: DevicePtr, data: &[u8], on: StreamRef) {
        // SAFETY: the block holds the bytes. The tests keep the data until the copy is done.
        ok(unsafe { self.memcpy_htod_async(block, data.as_ptr(), data.len() as u64, on) });
    }

    pub(super) fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: u64, on: StreamRef) {
        // SAFETY: both blocks hold the bytes.
        ok(unsafe { self.memcpy_dtod_async(to, from, bytes, on) });
    }

    pub(super) fn fill(&self, block: DevicePtr, value: u8, bytes: u64, on: StreamRef) {
        // SAFETY: the block holds the bytes.
        ok(unsafe { self.memset_d8_async(block, value, bytes, on) });
    }

    /// Reads the block in the order of the stream, and waits.
    pub(super) fn get(&self, block: DevicePtr, bytes: u64, on: StreamRef) -> Vec<u8> {
        let mut data = vec![0; bytes as usize];
        // SAFETY: the block and `data` hold the bytes, and the copy is waited for.
        ok(unsafe { self.memcpy_dtoh_async(data.as_mut_ptr(), block, bytes, on) });
        ok(self.stream_synchronize(on));
        data
    }

    /// Writes to a block and reads it back, on one stream.
    pub(super) fn holds_bytes(&self, block: DevicePtr, bytes: u64, on: StreamRef) {
        let data = pattern(bytes, bytes);
        self.put(block, &data, on);
        assert!(self.get(block, bytes, on) == data, "other bytes came back");
    }

    pub(super) fn has(&self, attribute: DeviceAttribute) -> bool {
        self.attribute(attribute) == Ok(1)
    }
}

#[track_caller]
pub(super) fn ok<T>(answer: DriverResult<T>) -> T {
    answer.unwrap_or_else(|error| panic!("{error}"))
}

/// Asserts that a call fails with this code.
#[track_caller]
pub(super) fn refused<T>(answer: DriverResult<T>, code: i32, call: &str) {
    let Err(error) = answer else { panic!("{call} succeeded") };
    let expected = DriverError::new(code, "");
    assert!(error.code() == code, "{call} failed with `{error}` instead of {}", expected.name());
}

pub(super) fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|index| (index.wrapping_mul(31) ^ seed.wrapping_mul(97) ^ (index >> 8)) as u8).collect()
}
