//! The streams of a run, and how far the host runs ahead of each stream.

use millpond_core::driver::{Event, EventFlags, StreamFlags};
use millpond_core::{DriverHandle, Error, StreamRef};
use millpond_engine::Result;
use millpond_engine::log::StreamKey;

use super::host::Host;

/// One stream for each stream of the log. Dropping this value destroys them.
pub(super) struct Lanes {
    driver: DriverHandle,
    lanes: Vec<Lane>,
}

/// A stream.
struct Lane {
    stream: StreamRef,
    /// The events after the stream's last kernels. `next` is the index of the oldest event. With the host
    /// mode `level`, there are as many events as kernels may be unfinished.
    ends: Vec<Event>,
    next: usize,
    launched: usize,
}

impl Lanes {
    /// Makes one non-blocking stream for each stream of the log. The log's legacy default stream becomes the
    /// device's legacy default stream.
    pub(super) fn create(driver: &DriverHandle, streams: &[StreamKey], host: Host) -> Result<Self> {
        let mut all = Self { driver: driver.clone(), lanes: Vec::with_capacity(streams.len()) };
        let failed = |error| Error::from(error).context("making the log's streams and their events");
        for key in streams {
            let stream = match key {
                StreamKey::Legacy => StreamRef::LEGACY,
                _ => driver.stream_create(StreamFlags::NON_BLOCKING).map_err(failed)?,
            };
            all.lanes.push(Lane { stream, ends: Vec::new(), next: 0, launched: 0 });
            let Some(lane) = all.lanes.last_mut() else { continue };
            for _ in 0..if host == Host::Level { Host::LEVEL_KERNELS } else { 0 } {
                lane.ends.push(driver.event_create(EventFlags::default()).map_err(failed)?);
            }
        }
        Ok(all)
    }

    #[inline]
    pub(super) fn stream(&self, index: u32) -> StreamRef {
        self.lanes[index as usize].stream
    }

    /// Called before an allocation. With the host mode `level`, waits until the stream may have one more
    /// kernel.
    #[inline]
    pub(super) fn before(&self, index: u32) -> Result<()> {
        let lane = &self.lanes[index as usize];
        if !lane.ends.is_empty() && lane.launched >= lane.ends.len() {
            self.driver.event_synchronize(lane.ends[lane.next]).map_err(Error::from)?;
        }
        Ok(())
    }

    /// Called after a launch. With the host mode `sync`, waits for the stream. With `level`, records an
    /// event.
    #[inline]
    pub(super) fn after(&mut self, index: u32, host: Host) -> Result<()> {
        let lane = &mut self.lanes[index as usize];
        match host {
            Host::Ahead => {}
            Host::Level => {
                self.driver.event_record(lane.ends[lane.next], lane.stream).map_err(Error::from)?;
                lane.next = (lane.next + 1) % lane.ends.len();
                lane.launched += 1;
            }
            Host::Sync => self.driver.stream_synchronize(lane.stream).map_err(Error::from)?,
        }
        Ok(())
    }

    /// Waits for all streams.
    pub(super) fn synchronize(&self) -> Result<()> {
        for lane in &self.lanes {
            self.driver.stream_synchronize(lane.stream).map_err(Error::from)?;
        }
        Ok(())
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        let warn = |error| tracing::warn!(target: "millpond::replay", %error, "a stream or event leaked");
        for Lane { stream, ends, .. } in self.lanes.drain(..) {
            for event in ends {
                // SAFETY: the event is ours, and nothing names it after this.
                unsafe { self.driver.event_destroy(event) }.unwrap_or_else(warn);
            }
            if !stream.is_legacy() {
                // SAFETY: the stream is ours, and everything that used it is gone.
                unsafe { self.driver.stream_destroy(stream) }.unwrap_or_else(warn);
            }
        }
    }
}
