//! The work of one thread in a race.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_core::driver::{EventFlags, StreamFlags};
use millpond_core::{AnyResource, DeviceMemoryResource, DevicePtr, Driver, DriverError, Layout, StreamRef};
use millpond_driver::sim::{Access, SimDevice};

use super::Race;
use super::hand_over::{HandOver, Handed};
use crate::conformance::{Decay, Subject};
use crate::program::{Habits, Summary};
use crate::{Checked, Rng, misuse_recorder};

/// A block of this thread.
struct Live {
    ptr: DevicePtr,
    layout: Layout,
    tag: u64,
    stream: StreamRef,
}

pub(super) struct Runner<'a> {
    rng: Rng,
    /// The thread's stream, which lives as long as the race.
    stream: StreamRef,
    /// In a wide race, a stream that is destroyed and created again from time to time.
    brief: Option<StreamRef>,
    device: &'a SimDevice,
    resource: &'a Checked<AnyResource>,
    hand_over: &'a HandOver,
    decay: Option<Decay>,
    habits: Habits,
    unit: u64,
    live: Vec<Live>,
    pub(super) summary: Summary,
}

fn text(error: DriverError) -> String {
    error.to_string()
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        race: &Race,
        index: u64,
        device: &'a SimDevice,
        resource: &'a Checked<AnyResource>,
        subject: &Subject,
        hand_over: &'a HandOver,
    ) -> Result<Self, String> {
        let stream = || device.stream_create(StreamFlags::NON_BLOCKING).map_err(text);
        // Together the threads want about twice the device's memory.
        let share = if race.wide { race.capacity_bytes / 40 } else { race.capacity_bytes / race.threads / 8 };
        Ok(Self {
            rng: Rng::new(race.seed ^ (index << 40)),
            stream: stream()?,
            brief: if race.wide { Some(stream()?) } else { None },
            device,
            resource,
            hand_over,
            decay: subject.decay,
            habits: race.habits,
            unit: share.min(subject.largest_bytes / 4).max(1),
            live: Vec::new(),
            summary: Summary::default(),
        })
    }

    pub(super) fn run_until(&mut self, upto: u64, stop: &AtomicBool) -> Result<(), String> {
        let (result, misuses) = misuse_recorder::record(|| self.run(upto, stop));
        if result.is_err() || !misuses.is_empty() {
            stop.store(true, Ordering::Relaxed);
        }
        match misuses.first() {
            Some(misuse) => Err(misuse.to_string()),
            None => result,
        }
    }

    fn run(&mut self, upto: u64, stop: &AtomicBool) -> Result<(), String> {
        while self.summary.operations < upto && !stop.load(Ordering::Relaxed) {
            self.summary.operations += 1;
            if let Some(decay) = self.decay
                && self.rng.percent(2)
            {
                self.device.advance(1_000_000_000);
                let now = Duration::from_nanos(self.device.virtual_time_ns());
                decay(self.resource.inner(), now).map_err(|error| error.to_string())?;
            }
            if self.brief.is_some() && self.rng.percent(30) {
                self.wide_step()?;
            } else if self.live.len() < 8 && self.rng.percent(60) {
                self.allocate()?;
            } else {
                self.free_one();
            }
            if let Some(violation) = self.habits.unexplained(&self.device.take_violations()) {
                return Err(violation.to_string());
            }
        }
        Ok(())
    }

    /// Frees the remaining blocks, and returns the streams, which nothing uses then. No other thread runs.
    pub(super) fn finish(&mut self) -> Result<impl Iterator<Item = StreamRef> + use<>, String> {
        while let Some(handed) = self.hand_over.take(0) {
            self.free_handed(&handed, false)?;
        }
        while !self.live.is_empty() {
            self.free_one();
        }
        Ok(self.brief.into_iter().chain([self.stream]))
    }

    fn wide_step(&mut self) -> Result<(), String> {
        match self.rng.below(100) {
            0..45 => self.give(),
            45..90 => match self.hand_over.take(self.rng.below(1 << 20)) {
                Some(handed) => {
                    let on_its_stream = self.rng.percent(50);
                    self.free_handed(&handed, on_its_stream)
                }
                None => Ok(()),
            },
            90..97 => self.renew(),
            _ => {
                let keep = if self.rng.percent(50) { 0 } else { self.unit * self.rng.below(20) };
                self.resource.trim(keep).map(drop).map_err(|error| error.to_string())
            }
        }
    }

    /// Hands a block of the lasting stream to any thread.
    fn give(&mut self) -> Result<(), String> {
        let Some(index) = self.live.iter().position(|live| live.stream == self.stream) else { return Ok(()) };
        let Live { ptr, layout, tag, stream } = self.live.swap_remove(index);
        let event = self.device.event_create(EventFlags::default()).map_err(text)?;
        self.device.event_record(event, stream).map_err(text)?;
        self.hand_over.give(Handed { ptr, layout, tag, stream, event });
        Ok(())
    }

    /// Checks a block that was handed over and frees it, on the block's stream or on the thread's own.
    fn free_handed(&mut self, handed: &Handed, on_its_stream: bool) -> Result<(), String> {
        let &Handed { ptr, layout, tag, stream, event } = handed;
        let stream = if on_its_stream { stream } else { self.stream };
        self.device.stream_wait_event(stream, event).map_err(text)?;
        // SAFETY: only this function uses the event.
        unsafe { self.device.event_destroy(event) }.map_err(text)?;
        self.touch(stream, Access::check(ptr, layout.bytes(), tag));
        self.summary.cross_stream_frees += u64::from(!on_its_stream);
        // SAFETY: the block came from this resource with this layout and is freed once. The stream's next
        // work comes after all uses of the block.
        unsafe { self.resource.deallocate(ptr, layout, stream) };
        Ok(())
    }

    /// Destroys the brief stream and creates another. The old stream's blocks now belong to the lasting
    /// stream.
    fn renew(&mut self) -> Result<(), String> {
        let Some(old) = self.brief else { return Ok(()) };
        let event = self.device.event_create(EventFlags::default()).map_err(text)?;
        self.device.event_record(event, old).map_err(text)?;
        self.device.stream_wait_event(self.stream, event).map_err(text)?;
        for live in self.live.iter_mut().filter(|live| live.stream == old) {
            live.stream = self.stream;
        }
        // SAFETY: only this thread knows the event and the stream, and it uses neither again.
        unsafe {
            self.device.event_destroy(event).map_err(text)?;
            self.device.stream_destroy(old).map_err(text)?;
        }
        self.summary.streams_destroyed += 1;
        self.brief = Some(self.device.stream_create(StreamFlags::NON_BLOCKING).map_err(text)?);
        Ok(())
    }

    /// Uses a block, if the device can reach it.
    fn touch(&self, stream: StreamRef, access: Access) {
        if self.resource.accessibility().device {
            self.device.launch(stream, &[access]);
        }
    }

    fn allocate(&mut self) -> Result<(), String> {
        let stream = self.brief.filter(|_| self.rng.percent(40)).unwrap_or(self.stream);
        let layout = Layout::new(self.unit * self.rng.between(1, 4));
        match self.resource.allocate(layout, stream) {
            Ok(ptr) => {
                let tag = ptr.address() ^ stream.id().get();
                self.touch(stream, Access::write(ptr, layout.bytes(), tag));
                self.live.push(Live { ptr, layout, tag, stream });
                self.summary.allocations += 1;
                Ok(())
            }
            Err(error) if error.is_out_of_memory() => {
                self.summary.out_of_memory += 1;
                self.free_one();
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn free_one(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let index = self.rng.below(self.live.len() as u64) as usize;
        let Live { ptr, layout, tag, stream } = self.live.swap_remove(index);
        self.touch(stream, Access::check(ptr, layout.bytes(), tag));
        // SAFETY: the block came from this resource with this layout and is freed once. The stream's next
        // work comes after all uses of the block.
        unsafe { self.resource.deallocate(ptr, layout, stream) }
    }
}
