//! The streams of a replay. Dropping this value destroys them.

use millpond_core::driver::{StreamFlags, call};
use millpond_core::{DriverHandle, StreamRef};

use crate::Result;
use crate::log::StreamKey;
use crate::program::Program;

/// The streams of a replay, destroyed at the end.
#[derive(Debug)]
pub(super) struct Streams<'a> {
    driver: &'a DriverHandle,
    /// The streams, by [`Lane::stream`](crate::program::Lane::stream).
    streams: Vec<Option<StreamRef>>,
}

impl<'a> Streams<'a> {
    /// Makes one non-blocking stream for each stream of the log. A per-thread default stream becomes a stream
    /// of its logged thread. So it stays the same, whatever the number of replaying threads.
    pub(super) fn create(program: &Program, driver: &'a DriverHandle) -> Result<Self> {
        let mut all = Self { driver, streams: vec![None; program.summary().streams] };
        for lane in program.lanes() {
            let stream = &mut all.streams[lane.stream as usize];
            if stream.is_none() {
                *stream = Some(match lane.key {
                    StreamKey::Legacy => StreamRef::LEGACY,
                    _ => call(&**driver, |driver| driver.stream_create(StreamFlags::NON_BLOCKING))
                        .map_err(|error| error.context("making the log's streams"))?,
                });
            }
        }
        Ok(all)
    }

    pub(super) fn get(&self, index: u32) -> StreamRef {
        self.streams[index as usize].unwrap_or(StreamRef::LEGACY)
    }
}

impl Drop for Streams<'_> {
    fn drop(&mut self) {
        for stream in self.streams.drain(..).flatten().filter(|stream| !stream.is_legacy()) {
            // SAFETY: the stream is ours, and no call names it after the replay.
            if let Err(error) = call(&**self.driver, |driver| unsafe { driver.stream_destroy(stream) }) {
                tracing::warn!(target: "millpond::replay", %error, "a stream could not be destroyed");
            }
        }
    }
}
