//! A program's captures, its scopes for captured graphs, and the duties of a careful caller.

use millpond_core::driver::CaptureMode;

use super::FailureKind;
use super::broken::{Broken, Checks, unexpected};
use super::capture::Capture;
use super::execution::Execution;
use super::op::{Block, Event, MAX_EVENTS, MAX_SCOPES, Scope, Stream};
use super::scope::{Open, Owned, ScopeId};
use crate::watch;

/// The watchdog's name for the layer that creates scopes.
const SCOPES: &str = "capture_scopes";

/// The event that joins a capture's streams at its end.
const JOINS: Event = MAX_EVENTS as Event - 1;

impl Execution {
    pub(super) fn begin_capture(&mut self, stream: Stream, mode: CaptureMode) -> Checks {
        let handle = self.stream(stream)?;
        let is_relaxed = self.config.habits.captures_in_scopes;
        let mode = if is_relaxed { CaptureMode::Relaxed } else { mode };
        self.device.begin_capture(handle, mode).map_err(unexpected)?;
        self.tell_of_capture(true);
        self.captures.note_begin(stream, self.thread);
        self.order.join_capture(stream);
        Ok(())
    }

    /// Joins the capture's streams and ends the capture. The uses in it are over then.
    pub(super) fn end_capture(&mut self, stream: Stream) -> Checks {
        let found = self.captures.live.iter().find(|capture| capture.origin == stream);
        let Some(others) = found.map(|capture| capture.streams[1..].to_vec()) else { return Ok(()) };
        for other in others {
            self.record(JOINS, other)?;
            self.wait(stream, JOINS)?;
        }
        let handle = self.stream(stream)?;
        if let Some(Capture { id, streams, pieces, .. }) = self.captures.take(stream) {
            streams.iter().for_each(|member| self.order.leave_capture(*member));
            self.blocks.values_mut().for_each(|live| live.leave_capture(id));
            self.graphs.add(pieces);
        }
        self.summary.captures += 1;
        let ended = self.device.end_capture(handle);
        self.tell_of_capture(false);
        ended.map_err(|error| Broken::new(FailureKind::Capture, error))
    }

    fn tell_of_capture(&self, begins: bool) {
        let _watch = watch::call("on_capture");
        self.config.on_capture.into_iter().for_each(|tell| tell(self.resource.inner(), begins));
    }

    /// Whether the allocator serves captures of the stream.
    pub(super) fn serves_captures(&self, stream: Stream) -> bool {
        !self.config.habits.captures_in_scopes || self.scopes.is_open(stream)
    }

    /// Whether the wait leaves each capture with one scope.
    pub(super) fn keeps_one_scope(&self, stream: Stream, event: Event) -> bool {
        let Some(mates) = self.captures.joined_by(stream, event) else { return true };
        let scope = |stream: Stream| self.scopes.of(|open| open == stream);
        !self.config.habits.captures_in_scopes
            || (scope(stream).is_none_or(|own| mates.iter().any(|mate| scope(*mate) == Some(own)))
                && self.thread_of(stream).is_none())
    }

    /// Whether the stream's next work may use the block: in the order of its capture, if it captures.
    /// `written_only` means that the work only reads. A block that a capture allocated belongs to the capture
    /// until it ends.
    pub(super) fn may_use(&self, stream: Stream, block: Block, written_only: bool) -> bool {
        let Some(live) = self.blocks.get(&block) else { return false };
        let capture = self.captures.of(stream);
        let mut uses = [Some(&live.uses), live.uses_in(capture)].into_iter().flatten();
        let is_after = |work| self.order.is_after(stream, work);
        let follows = || live.scope.is_none_or(|scope| self.follows_launches(stream, scope));
        self.can_name(stream)
            && (capture.is_some() || follows())
            && (live.born.is_none() || live.born == capture)
            && uses.all(|uses| is_after(if written_only { &uses.written } else { &uses.all }))
    }

    /// Whether the block may be freed on the stream. In a capture, the uses outside it must come before the
    /// stream by an order outside it too. For a scope's block, it suffices that they come before one of the
    /// scope's streams.
    pub(super) fn may_free(&self, stream: Stream, block: Block) -> bool {
        let Some(live) = self.blocks.get(&block) else { return false };
        let capture = self.captures.of(stream);
        let mut streams = vec![stream];
        if let Some(scope) = live.scope
            && !self.config.habits.frees_on_own_stream
        {
            streams.push(live.stream);
            streams.extend(self.scopes.open_in(scope));
        }
        self.may_use(stream, block, false)
            && live.captured.iter().all(|(id, _)| capture == Some(*id))
            && (capture.is_none() || self.order.runs_before(&live.uses.all, &streams))
    }

    /// Whether the stream's next work comes after the launches of a scope's graphs.
    pub(super) fn follows_launches(&self, stream: Stream, scope: ScopeId) -> bool {
        self.scopes.work(scope).is_none_or(|work| self.order.is_after(stream, &work.launched))
    }

    /// A stream that `stream` must wait for before it may use the block.
    pub(super) fn missing(&self, stream: Stream, block: Block) -> Option<Stream> {
        let live = self.blocks.get(&block)?;
        let mut uses = [Some(&live.uses), live.uses_in(self.captures.of(stream))].into_iter().flatten();
        let launched = || live.scope.and_then(|scope| self.scopes.work(scope)).map(|work| &work.launched);
        let of_uses = uses.find_map(|uses| self.order.missing(stream, &uses.all));
        of_uses.or_else(|| self.order.missing(stream, launched()?))
    }

    pub(super) fn can_open(&self, scope: Scope, stream: Stream) -> bool {
        self.config.new_scope.is_some()
            && usize::from(scope) < MAX_SCOPES
            && !self.scopes.is_open(stream)
            && !(self.config.habits.captures_in_scopes && self.captures.is_capturing(stream))
    }

    pub(super) fn has_scope(&self, scope: Scope) -> bool {
        self.scopes.alive.get(usize::from(scope)).is_some_and(Option::is_some)
    }

    pub(super) fn open_scope(&mut self, scope: Scope, stream: Stream) -> Checks {
        let Some(new_scope) = self.config.new_scope else { return Ok(()) };
        let _watch = watch::call(SCOPES);
        let handle = self.stream(stream)?;
        let id = self.scopes.new_id();
        let slot = &mut self.scopes.alive[usize::from(scope)];
        let owned = match slot {
            Some(owned) => owned,
            None => {
                let made = new_scope(self.resource.inner()).map_err(unexpected)?;
                slot.insert(Owned { scope: made, id })
            }
        };
        let opened = owned.scope.open(handle).map_err(unexpected)?;
        let scope = owned.id;
        self.scopes.open.push(Open { stream, scope, _opened: opened });
        self.summary.scopes += 1;
        Ok(())
    }

    pub(super) fn close_scope(&mut self, stream: Stream) {
        let _watch = watch::call(SCOPES);
        self.scopes.open.retain(|open| open.stream != stream);
    }

    pub(super) fn drop_scope(&mut self, scope: Scope) {
        let _watch = watch::call(SCOPES);
        // Streams that are open in the scope keep it alive.
        drop(self.scopes.alive[usize::from(scope)].take());
    }

    /// The scope that a block for the stream comes from, if the program can be sure of it.
    pub(super) fn scope_of(&self, stream: Stream) -> Option<ScopeId> {
        if self.scopes.open.is_empty() || !self.config.direct_scopes {
            return None;
        }
        let mates = self.captures.streams_with(stream);
        // No other thread can query a per-thread stream.
        let is_mate = |open: Stream| mates.contains(&open) && self.thread_of(open).is_none();
        self.scopes.of(|open| open == stream).or_else(|| self.scopes.of(is_mate))
    }
}
