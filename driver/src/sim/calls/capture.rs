//! Begins and ends captures, and checks calls against them.

use millpond_core::driver::{CaptureMode, Event};
use millpond_core::{DriverError, StreamRef};

use crate::sim::model::answer::{Answer, Refusal};
use crate::sim::model::capture::{About, Capture, CaptureId, Member, refusal, this_thread};
use crate::sim::model::capture_rules::{self as rules, Outcome, Scope};
use crate::sim::model::clock::{Clock, Slot};
use crate::sim::model::order::LEGACY;
use crate::sim::state::State;

impl State {
    /// Begins a capture from the calling thread (`cuStreamBeginCapture`).
    pub(crate) fn begin_capture(&mut self, stream: StreamRef, mode: CaptureMode) -> Answer<()> {
        let slot = self.stream_slot(stream, "cuStreamBeginCapture")?;
        if slot == LEGACY {
            return Err(Refusal::new(rules::FORBIDDEN, "the legacy default stream cannot capture"));
        }
        if self.captures.of(slot).is_some() {
            return Err(Refusal::new(DriverError::ILLEGAL_STATE, "the stream is already capturing"));
        }
        self.captures.begun += 1;
        let id = self.captures.begun;
        let by = this_thread();
        self.captures.live.push(Capture {
            id,
            by,
            mode,
            origin: slot,
            streams: vec![self.member(slot)],
            work: Vec::new(),
            broken_by: None,
        });
        Ok(())
    }

    /// Ends a capture (`cuStreamEndCapture`).
    pub(crate) fn end_capture(&mut self, stream: StreamRef) -> Answer<()> {
        let slot = self.stream_slot(stream, "cuStreamEndCapture")?;
        let at = self.captures.live.iter().position(|capture| capture.slots().any(|of| of == slot));
        let at = at.ok_or_else(|| Refusal::new(DriverError::ILLEGAL_STATE, "the stream is not capturing"))?;
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
        let joined = self.are_joined(origin, &streams);
        for member in streams {
            self.order.leave_capture(member.slot, member.clock);
        }
        if let Some(call) = broken_by {
            let text = format!("the capture was ended by {call}");
            return Err(Refusal::new(DriverError::STREAM_CAPTURE_INVALIDATED, text));
        }
        if !joined {
            let text = "a captured stream was not joined to the stream where the capture began";
            return Err(Refusal::new(DriverError::STREAM_CAPTURE_UNJOINED, text));
        }
        Ok(())
    }

    /// The calls that put work into the graph that the stream captures.
    pub(crate) fn captured_work(&self, stream: StreamRef) -> Vec<String> {
        let own = self.names.slot(stream).and_then(|slot| self.captures.of(slot));
        let capture = self.captures.live.iter().find(|capture| Some(capture.id) == own);
        capture.map_or_else(Vec::new, |capture| capture.work.clone())
    }

    fn member(&self, slot: Slot) -> Member {
        let mut clock = Clock::default();
        clock.copy_from(self.order.clock(slot));
        Member { slot, tick: self.order.end(slot).tick(), clock }
    }

    /// Whether the capture's first stream comes after everything captured. A stream that has done nothing
    /// since it joined the capture needs no wait.
    fn are_joined(&self, origin: Slot, streams: &[Member]) -> bool {
        streams.iter().all(|member| {
            let end = self.order.end(member.slot);
            member.slot == origin || end.tick() <= member.tick + 1 || self.order.covers(origin, end)
        })
    }

    /// Checks whether captures allow this call from the calling thread. A refused call may end a capture.
    #[inline]
    pub(crate) fn check_captures(&mut self, call: &str, about: About) -> Answer<()> {
        let is_about_event = matches!(about, About::Event(_) | About::Wait(..));
        if self.captures.live.is_empty() && !is_about_event { Ok(()) } else { self.meet(call, about) }
    }

    fn meet(&mut self, call: &str, about: About) -> Answer<()> {
        let rule = rules::rule(call);
        let slot = match about.stream() {
            // This may be the first time that the per-thread stream is named.
            Some(stream) if stream.is_per_thread() => self.slot(stream, call),
            named => named.and_then(|stream| self.names.slot(stream)),
        };
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
            self.captures.add_work(own, call);
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

    /// Checks a query of an event that was last recorded in a capture.
    fn meet_event(&mut self, call: &str, event: Event) -> Answer<()> {
        if !matches!(call, "cuEventQuery" | "cuEventSynchronize") {
            return Ok(());
        }
        let Some(id) = self.captured_in(event) else { return Ok(()) };
        let code = rules::ABOUT_CAPTURED_EVENT;
        self.captures.break_where(call, code, |capture| capture.id == id);
        Err(refusal(code, call))
    }

    /// Checks a wait that involves a capture. A stream that waits for captured work joins that capture.
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
                // The wait itself counts one tick.
                let member = slot.map(|slot| self.member(slot));
                let live = self.captures.live.iter_mut().find(|capture| Some(capture.id) == captured);
                let joined = live.zip(member).map(|(capture, member)| capture.streams.push(member));
                joined.ok_or_else(|| refusal(rules::ABOUT_CAPTURED_EVENT, call))
            }
        }
    }

    fn captured_in(&self, event: Event) -> Option<CaptureId> {
        self.names.record(event).and_then(|record| record.captured_in)
    }

    /// Whether the stream captures, or is the legacy default stream while a blocking stream captures.
    pub(crate) fn is_captured(&self, slot: Slot) -> bool {
        self.captures.of(slot).is_some() || (slot == LEGACY && self.is_legacy_captured())
    }

    fn is_legacy_captured(&self) -> bool {
        let mut slots = self.captures.live.iter().flat_map(Capture::slots);
        slots.any(|slot| self.order.is_blocking(slot))
    }
}
