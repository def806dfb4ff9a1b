//! Scopes for captured graphs that make a chosen mistake.

use std::sync::Arc;

use millpond_core::driver::{DriverResult, Event, EventFlags};
use millpond_core::{DevicePtr, DriverHandle, StreamId, StreamRef};

use crate::captured::Scopes;

/// A mistake of scopes for captured graphs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WrongScopes {
    /// If a capture frees a block, all uses of the block count as captured, even uses before the capture
    /// (millpond's issue 29).
    FreedMeansCaptured,
}

impl WrongScopes {
    /// Every mistake.
    pub const ALL: &'static [Self] = &[Self::FreedMeansCaptured];
}

/// A scope's block, whose size never changes.
#[derive(Debug)]
struct Entry {
    ptr: DevicePtr,
    bytes: u64,
    scope: usize,
    born: Option<u64>,
    state: State,
}

/// Which streams may take a block.
#[derive(Clone, Copy, Debug)]
enum State {
    Used,
    Any,
    /// This stream outside of captures; any stream after the event.
    Ordinary(StreamId, Event),
    /// This stream, in this capture.
    Captured(StreamId, u64),
    /// No stream before a wait for the device.
    Parked,
    /// No stream before the scope ends.
    Withheld,
}

/// Scopes over plain memory: small and slow, but correct without a mistake.
#[derive(Debug)]
pub struct CanaryScopes {
    driver: DriverHandle,
    wrong: Option<WrongScopes>,
    entries: Vec<Entry>,
    open: Vec<(usize, StreamRef)>,
}

impl CanaryScopes {
    /// Creates scopes on a device that make this mistake.
    pub fn new(driver: &DriverHandle, wrong: Option<WrongScopes>) -> Self {
        Self { driver: Arc::clone(driver), wrong, entries: Vec::new(), open: Vec::new() }
    }

    fn scope_of(&self, stream: StreamRef) -> DriverResult<Option<usize>> {
        if let Some((scope, _)) = self.open.iter().find(|(_, open)| open.id() == stream.id()) {
            return Ok(Some(*scope));
        }
        let Some(capture) = self.driver.stream_capture_id(stream)? else { return Ok(None) };
        for (scope, open) in &self.open {
            if self.driver.stream_capture_id(*open)? == Some(capture) {
                return Ok(Some(*scope));
            }
        }
        Ok(None)
    }

    /// Whether the stream may take the block now.
    fn is_free_for(&self, entry: &Entry, stream: StreamRef, capture: Option<u64>) -> DriverResult<bool> {
        Ok(match entry.state {
            State::Any => true,
            State::Ordinary(id, _) if id == stream.id() && capture.is_none() => true,
            State::Ordinary(_, event) => self.driver.event_query(event)?,
            State::Captured(id, number) => id == stream.id() && capture == Some(number),
            State::Parked => capture.is_none() && self.driver.synchronize_beside_captures()?,
            State::Used | State::Withheld => false,
        })
    }

    fn event_on(&self, stream: StreamRef) -> DriverResult<Event> {
        let event = self.driver.event_create(EventFlags::default())?;
        self.driver.event_record(event, stream)?;
        Ok(event)
    }

    fn set_state(&mut self, index: usize, state: State) -> DriverResult<()> {
        let old = std::mem::replace(&mut self.entries[index].state, state);
        match (old, state) {
            (State::Ordinary(_, old), State::Ordinary(_, new)) if old == new => Ok(()),
            // SAFETY: only this entry used the event, and nothing waits for it.
            (State::Ordinary(_, event), _) => unsafe { self.driver.event_destroy(event) },
            _ => Ok(()),
        }
    }

    fn state_after_free(&self, entry: &Entry, stream: StreamRef) -> DriverResult<State> {
        let Some(capture) = self.driver.stream_capture_id(stream)? else {
            return Ok(State::Ordinary(stream.id(), self.event_on(stream)?));
        };
        if self.scope_of(stream)? != Some(entry.scope) {
            return Ok(State::Withheld);
        }
        let is_born_here = self.wrong == Some(WrongScopes::FreedMeansCaptured) || entry.born == Some(capture);
        Ok(if is_born_here { State::Captured(stream.id(), capture) } else { State::Parked })
    }
}

impl Scopes for CanaryScopes {
    fn open(&mut self, scope: usize, stream: StreamRef) {
        self.open.push((scope, stream));
    }

    fn close(&mut self, scope: usize, stream: StreamRef) -> DriverResult<()> {
        self.open.retain(|(_, open)| open.id() != stream.id());
        let is_last = self.open.iter().all(|(open, _)| *open != scope);
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if is_last && entry.scope == scope && matches!(entry.state, State::Captured(..)) {
                self.set_state(index, State::Any)?;
            }
        }
        Ok(())
    }

    fn allocate(&mut self, bytes: u64, stream: StreamRef) -> DriverResult<DevicePtr> {
        let Some(scope) = self.scope_of(stream)? else { return self.driver.mem_alloc(bytes) };
        let born = self.driver.stream_capture_id(stream)?;
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            let fits = entry.scope == scope && entry.bytes == bytes;
            if fits && self.is_free_for(entry, stream, born)? {
                self.set_state(index, State::Used)?;
                self.entries[index].born = born;
                return Ok(self.entries[index].ptr);
            }
        }
        let ptr = self.driver.mem_alloc(bytes)?;
        self.entries.push(Entry { ptr, bytes, scope, born, state: State::Used });
        Ok(ptr)
    }

    fn deallocate(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamRef) -> DriverResult<()> {
        let Some(index) = self.entries.iter().position(|entry| entry.ptr == ptr) else {
            // A block outside all scopes is leaked, because its free would wait for all work.
            return Ok(());
        };
        debug_assert_eq!(self.entries[index].bytes, bytes);
        let state = self.state_after_free(&self.entries[index], stream)?;
        self.set_state(index, state)
    }

    fn end(&mut self, scope: usize) -> DriverResult<()> {
        for index in (0..self.entries.len()).rev() {
            if self.entries[index].scope != scope || matches!(self.entries[index].state, State::Used) {
                continue;
            }
            self.set_state(index, State::Any)?;
            let entry = self.entries.swap_remove(index);
            // SAFETY: the block is free, and the driver waits for all uses.
            unsafe { self.driver.mem_free(entry.ptr) }?;
        }
        Ok(())
    }
}
