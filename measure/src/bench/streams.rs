//! The streams of a workload.

use millpond_core::driver::StreamFlags;
use millpond_core::{DriverHandle, StreamRef};
use millpond_engine::Result;

/// The streams of one workload. Dropping this value destroys them.
#[derive(Debug)]
pub(super) struct Streams<'a> {
    driver: &'a DriverHandle,
    streams: Vec<StreamRef>,
}

impl<'a> Streams<'a> {
    pub(super) fn create(driver: &'a DriverHandle, count: usize) -> Result<Self> {
        let mut all = Self { driver, streams: Vec::with_capacity(count) };
        for _ in 0..count {
            let stream = driver.stream_create(StreamFlags::NON_BLOCKING);
            all.streams.push(stream.map_err(|e| millpond_core::Error::from(e).context("making streams"))?);
        }
        Ok(all)
    }

    pub(super) fn all(&self) -> &[StreamRef] {
        &self.streams
    }
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        for stream in self.streams.drain(..) {
            // SAFETY: the stream is ours, and the resource that used it is gone.
            if let Err(error) = unsafe { self.driver.stream_destroy(stream) } {
                tracing::warn!(target: "millpond::replay", %error, "a stream could not be destroyed");
            }
        }
    }
}
