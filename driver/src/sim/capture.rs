//! Captures of graphs: which there are, and which calls they refuse. What is submitted to a stream that
//! captures takes its place in the order as if it ran; no graph is kept.

use std::thread::{self, ThreadId};

use millpond_core::driver::{CaptureMode, Event};
use millpond_core::{DriverError, StreamRef};

use super::answer::{Answer, Refusal};
use super::capture_rules::{self as rules, Outcome, Scope};
use super::clock::Slot;
use super::order::LEGACY;
use super::state::State;

/// Tells captures apart, also after their ends.
pub(super) type CaptureId = u64;

#[derive(Debug)]
struct Capture {
    id: CaptureId,
    by: ThreadId,
    mode: CaptureMode,
    /// The stream on which it began.
    origin: Slot,
    /// All streams that belong to it, with their ticks when they came to.
    streams: Vec<(Slot, u64)>,
    /// What ended it before its time.
    broken_by: Option<String>,
}

/// The captures that are under way, and the modes of threads.
#[derive(Debug, Default)]
pub(super) struct Captures {
    live: Vec<Capture>,
    begun: CaptureId,
    /// Of threads whose mode is not the first one.
    modes: Vec<(ThreadId, CaptureMode)>,
}

/// What a call is about, as far as captures are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) enum About {
    Nothing,
    Stream(StreamRef),
    Event(Event),
    /// A stream that is made to wait for an event.
    Wait(StreamRef, Event),
}

impl About {
    const fn stream(self) -> Option<StreamRef> {
        match self {
            Self::Stream(stream) | Self::Wait(stream, _) => Some(stream),
            Self::Nothing | Self::Event(_) => None,
        }
    }
}

impl Capture {
    fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.streams.iter().map(|(slot, _)| *slot)
    }
}

impl Captures {
    /// The capture that a stream belongs to.
    pub(super) fn of(&self, slot: Slot) -> Option<CaptureId> {
        self.live.iter().find(|capture| capture.slots().any(|of| of == slot)).map(|capture| capture.id)
    }

    /// Sets the calling thread's mode, and gives what it was.
    pub(super) fn exchange_mode(&mut self, mode: CaptureMode) -> CaptureMode {
        let me = this_thread();
        let at = self.modes.iter().position(|(thread, _)| *thread == me);
        let previous = at.map(|at| self.modes.swap_remove(at).1);
        if mode != CaptureMode::Global {
            self.modes.push((me, mode));
        }
        previous.unwrap_or_default()
    }

    /// The thread's mode.
    fn mode_of(&self, thread: ThreadId) -> CaptureMode {
        let mode = self.modes.iter().find(|(other, _)| *other == thread).map(|(_, mode)| *mode);
        mode.unwrap_or_default()
    }

    /// Makes the captures invalid for which `is_meant` says so; whether there were any.
    fn break_where(&mut self, call: &str, code: i32, is_meant: impl Fn(&Capture) -> bool) -> bool {
        let mut any = false;
        for capture in self.live.iter_mut().filter(|capture| is_meant(capture)) {
            capture.broken_by.get_or_insert_with(|| format!("{call} of {:?}: {code}", this_thread()));
            any = true;
        }
        any
    }

    /// The context is gone, and all captures with it.
    pub(super) fn clear(&mut self) {
        self.live.clear();
    }

    /// A stream is gone, and with it its capture if it began there.
    pub(super) fn forget(&mut self, slot: Slot, call: &str) {
        self.break_where(call, rules::FORBIDDEN, |capture| capture.slots().any(|of| of == slot));
        self.live.retain(|capture| capture.origin != slot);
        self.live.iter_mut().for_each(|capture| capture.streams.retain(|(of, _)| *of != slot));
    }
}

/// The calling thread. Kept for each: [`thread::current`] counts its references.
fn this_thread() -> ThreadId {
    thread_local!(static ID: ThreadId = thread::current().id());
    ID.with(|id| *id)
}

fn refusal(code: i32, call: &str) -> Refusal {
    Refusal::new(code, format!("{call} is refused while a graph is captured"))
}

impl State {
    /// Begins a capture of the calling thread (`cuStreamBeginCapture`).
    pub(super) fn begin_capture(&mut self, stream: StreamRef, mode: CaptureMode) -> Answer<()> {
        let slot = self.stream_slot(stream, "cuStreamBeginCapture")?;
        if slot == LEGACY {
            return Err(Refusal::new(rules::FORBIDDEN, "the legacy default stream cannot capture"));
        }
        if self.captures.of(slot).is_some() {
            return Err(Refusal::new(DriverError::ILLEGAL_STATE, "the stream captures already"));
        }
        self.captures.begun += 1;
        let id = self.captures.begun;
        let by = this_thread();
        self.captures.live.push(Capture {
            id,
            by,
            mode,
            origin: slot,
            streams: vec![(slot, self.order.end(slot).tick())],
            broken_by: None,
        });
        Ok(())
    }

    /// Ends a capture (`cuStreamEndCapture`).
    pub(super) fn end_capture(&mut self, stream: StreamRef) -> Answer<()> {
        let slot = self.stream_slot(stream, "cuStreamEndCapture")?;
        let at = self.captures.live.iter().position(|capture| capture.slots().any(|of| of == slot));
        let at = at.ok_or_else(|| Refusal::new(DriverError::ILLEGAL_STATE, "the stream does not capture"))?;
        let capture = &self.captures.live[at];
        if capture.mode != CaptureMode::Relaxed && capture.by != this_thread() {
            let code = DriverError::STREAM_CAPTURE_WRONG_THREAD;
            return Err(Refusal::new(code, "another thread began the capture"));
        }
        if capture.origin != slot {
            let text = "the capture began on another stream";
            return Err(Refusal::new(DriverError::STREAM_CAPTURE_UNMATCHED, text));
        }
        let Capture { origin, streams, broken_by, .. } = self.captures.live.swap_remove(at);
        if let Some(call) = broken_by {
            let text = format!("the capture was ended by {call}");
            return Err(Refusal::new(DriverError::STREAM_CAPTURE_INVALIDATED, text));
        }
        // What a stream has not done since it came to the capture need not be waited for.
        let is_joined = |&(slot, tick): &(Slot, u64)| {
            let end = self.order.end(slot);
            slot == origin || end.tick() <= tick + 1 || self.order.covers(origin, end)
        };
        if !streams.iter().all(is_joined) {
            let text = "a stream of the capture was not joined to the one where it began";
            return Err(Refusal::new(DriverError::STREAM_CAPTURE_UNJOINED, text));
        }
        Ok(())
    }

    /// Says whether captures let the calling thread make this call; where they do not, they may end by it.
    #[inline]
    pub(super) fn check_captures(&mut self, call: &str, about: About) -> Answer<()> {
        let is_about_event = matches!(about, About::Event(_) | About::Wait(..));
        if self.captures.live.is_empty() && !is_about_event { Ok(()) } else { self.meet(call, about) }
    }

    fn meet(&mut self, call: &str, about: About) -> Answer<()> {
        let rule = rules::rule(call);
        let slot = about.stream().and_then(|stream| self.names.slot(stream));
        let own = slot.and_then(|slot| self.captures.of(slot));
        let outcome = match (own, slot) {
            (Some(_), _) => rule.on_capturing,
            (None, Some(LEGACY)) if self.is_legacy_captured() => rule.on_legacy,
            _ => Outcome::Nothing,
        };
        match outcome {
            Outcome::Refused(code) => return Err(refusal(code, call)),
            Outcome::Ends(code) => {
                let order = &self.order;
                let is_blocking = |capture: &Capture| capture.slots().any(|slot| order.is_blocking(slot));
                self.captures.break_where(call, code, |capture| match own {
                    Some(id) => capture.id == id,
                    None => is_blocking(capture),
                });
                return Err(refusal(code, call));
            }
            Outcome::Captured | Outcome::Nothing => {}
        }
        match about {
            About::Event(event) => self.meet_event(call, event)?,
            About::Wait(_, event) => return self.meet_wait(call, slot, own, event),
            About::Nothing | About::Stream(_) => {}
        }
        if outcome == Outcome::Captured {
            return Ok(());
        }
        let me = this_thread();
        let mode = self.captures.mode_of(me);
        let is_refused = match rule.scope {
            Scope::Safe => false,
            Scope::Context => self.captures.break_where(call, rules::FORBIDDEN, |_| true),
            Scope::Unsafe => self.captures.break_where(call, rules::FORBIDDEN, |capture| {
                rules::forbids(capture.mode, mode, capture.by == me)
            }),
        };
        if is_refused { Err(refusal(rules::FORBIDDEN, call)) } else { Ok(()) }
    }

    /// A question about an event that was last recorded in a capture.
    fn meet_event(&mut self, call: &str, event: Event) -> Answer<()> {
        if !matches!(call, "cuEventQuery" | "cuEventSynchronize") {
            return Ok(());
        }
        let Some(id) = self.captured_in(event) else { return Ok(()) };
        let code = rules::ABOUT_CAPTURED_EVENT;
        self.captures.break_where(call, code, |capture| capture.id == id);
        Err(refusal(code, call))
    }

    /// A wait into a capture, or for what is in one: then the stream belongs to the capture, too.
    fn meet_wait(
        &mut self,
        call: &str,
        slot: Option<Slot>,
        own: Option<CaptureId>,
        event: Event,
    ) -> Answer<()> {
        let captured = self.captured_in(event);
        match (own, captured) {
            (own, captured) if own == captured => Ok(()),
            (Some(id), _) => {
                let code = rules::WAIT_FROM_OUTSIDE;
                self.captures.break_where(call, code, |capture| capture.id == id);
                Err(refusal(code, call))
            }
            (None, captured) => {
                let live = self.captures.live.iter_mut().find(|capture| Some(capture.id) == captured);
                let joined = live.zip(slot).map(|(capture, slot)| {
                    // The wait itself is a tick.
                    capture.streams.push((slot, self.order.end(slot).tick()));
                });
                joined.ok_or_else(|| refusal(rules::ABOUT_CAPTURED_EVENT, call))
            }
        }
    }

    fn captured_in(&self, event: Event) -> Option<CaptureId> {
        self.names.record(event).and_then(|record| record.captured_in)
    }

    /// Whether the stream captures, or is the legacy default stream while a blocking one does.
    pub(super) fn is_captured(&self, slot: Slot) -> bool {
        self.captures.of(slot).is_some() || (slot == LEGACY && self.is_legacy_captured())
    }

    fn is_legacy_captured(&self) -> bool {
        let mut slots = self.captures.live.iter().flat_map(Capture::slots);
        slots.any(|slot| self.order.is_blocking(slot))
    }
}
