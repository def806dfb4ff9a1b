//! The happens-before order: the clocks of all streams and of the host.
//!
//! The rule, exactly. Work `a` happens before work `b` if
//! - both are on one stream and `a` was submitted first;
//! - `b`'s stream waited, before `b`, on an event recorded after `a` on `a`'s stream;
//! - one of the two is on the legacy default stream, the other's stream is blocking, and `a` was submitted
//!   first (recording an event on the legacy stream and making it wait count as work on it);
//! - the host learned that `a` was done before it submitted `b`: by a synchronisation with the event, the
//!   stream or the device, by a query that returned true, or by a free that synchronises;
//! - or by any chain of these.
//!
//! All threads count as one host: every thread knows what one thread has learned. Work counts as finished
//! only after the host has asked. If 64 or more streams were destroyed, their finished work may be forgotten.
//! This happens only if the oracle keeps no history of the work's memory and no event stands for it. So a
//! million streams, each used once, take no more memory than a few.

use smallvec::SmallVec;

use super::clock::{Clock, Epoch, Epochs, MAX_SLOTS, Slot};

/// The slot of the legacy default stream.
pub(crate) const LEGACY: Slot = 0;

/// The epochs that work has to wait for, besides earlier work of its own stream.
pub(crate) type Waits = SmallVec<[Epoch; 2]>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamKind {
    Legacy,
    Blocking,
    NonBlocking,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Live,
    /// The stream was destroyed, but its work can still matter.
    Dead,
    Free,
}

/// One stream's place in the order.
#[derive(Debug)]
pub(crate) struct Lane {
    kind: StreamKind,
    state: State,
    pub(crate) handle: u64,
    tick: u64,
    /// The epochs that the stream's next work happens after. It omits those that the host knows and those
    /// that the legacy rule adds at submission. Its own entry is `tick`.
    clock: Clock,
}

impl Lane {
    fn new(kind: StreamKind) -> Self {
        Self { kind, state: State::Live, handle: 0, tick: 0, clock: Clock::default() }
    }
}

/// The clocks. A slot is reused when no call can refer to its stream any more; its ticks continue.
#[derive(Debug)]
pub(crate) struct Order {
    lanes: Vec<Lane>,
    host: Clock,
    /// The blocking streams, including destroyed ones whose work the legacy stream may still have to wait
    /// for.
    blocking: Vec<Slot>,
    dead: Vec<Slot>,
    free: Vec<Slot>,
    fold_at: usize,
}

/// The slot that stands for all forgotten blocking streams in the legacy stream's order.
const DEPARTED: Slot = 1;

/// Below this number of destroyed streams, none is forgotten.
const FOLD_AT_LEAST: usize = 64;

impl Order {
    pub(crate) fn new() -> Self {
        Self {
            lanes: vec![Lane::new(StreamKind::Legacy), Lane::new(StreamKind::Blocking)],
            host: Clock::default(),
            blocking: vec![DEPARTED],
            dead: Vec::new(),
            free: Vec::new(),
            fold_at: FOLD_AT_LEAST,
        }
    }

    /// A slot for a new stream; `None` if clocks can name no more.
    pub(crate) fn open(&mut self, kind: StreamKind, handle: u64) -> Option<Slot> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.lanes.len() == MAX_SLOTS => return None,
            None => {
                self.lanes.push(Lane::new(kind));
                self.lanes.len() - 1
            }
        };
        let lane = &mut self.lanes[slot];
        (lane.kind, lane.state, lane.handle) = (kind, State::Live, handle);
        lane.clock.clear();
        lane.clock.raise(slot, lane.tick);
        if kind == StreamKind::Blocking {
            self.blocking.push(slot);
        }
        Some(slot)
    }

    pub(crate) fn close(&mut self, slot: Slot) {
        self.lanes[slot].state = State::Dead;
        self.dead.push(slot);
    }

    pub(crate) fn lane(&self, slot: Slot) -> &Lane {
        &self.lanes[slot]
    }

    /// Whether the legacy default stream's work is ordered with this stream's work.
    pub(crate) fn is_blocking(&self, slot: Slot) -> bool {
        self.lanes[slot].kind == StreamKind::Blocking
    }

    pub(crate) const fn len(&self) -> usize {
        self.lanes.len()
    }

    /// The present end of a stream.
    pub(crate) fn end(&self, slot: Slot) -> Epoch {
        Epoch::new(slot, self.lanes[slot].tick)
    }

    /// Adds one tick to a stream, for work or for a wait on something new.
    pub(crate) fn advance(&mut self, slot: Slot) -> Epoch {
        let lane = &mut self.lanes[slot];
        lane.tick += 1;
        lane.clock.raise(slot, lane.tick);
        Epoch::new(slot, lane.tick)
    }

    /// Orders a stream's next work by the legacy rule, and adds the epochs to wait for to `waits`.
    pub(crate) fn join_implicit(&mut self, slot: Slot, waits: &mut Waits) {
        match self.lanes[slot].kind {
            StreamKind::NonBlocking => {}
            StreamKind::Blocking => {
                if let Some(end) = self.unjoined(slot, LEGACY) {
                    self.join(slot, LEGACY);
                    waits.push(end);
                }
            }
            StreamKind::Legacy => {
                let mut blocking = std::mem::take(&mut self.blocking);
                blocking.retain(|&other| {
                    if let Some(end) = self.unjoined(LEGACY, other) {
                        self.join(LEGACY, other);
                        waits.push(end);
                    }
                    self.lanes[other].state == State::Live
                });
                self.blocking = blocking;
            }
        }
    }

    /// The end of `other`, unless `slot` already happens after it.
    fn unjoined(&self, slot: Slot, other: Slot) -> Option<Epoch> {
        let end = self.end(other);
        (!self.lanes[slot].clock.knows(end) && !self.host.knows(end)).then_some(end)
    }

    fn join(&mut self, slot: Slot, other: Slot) {
        let clock = std::mem::take(&mut self.lanes[other].clock);
        self.lanes[slot].clock.join(&clock);
        self.lanes[other].clock = clock;
    }

    /// Orders a stream after an event's record; returns whether that is new.
    pub(crate) fn join_event(&mut self, slot: Slot, epoch: Epoch, clock: &Clock) -> bool {
        let lane = &mut self.lanes[slot];
        let new = !lane.clock.knows(epoch) && !self.host.knows_all(clock);
        if new {
            lane.clock.join(clock);
        }
        new
    }

    /// Drops the order that a capture gave a stream: its work comes after `before` and after itself.
    pub(crate) fn leave_capture(&mut self, slot: Slot, before: Clock) {
        let lane = &mut self.lanes[slot];
        lane.clock = before;
        lane.clock.raise(slot, lane.tick);
    }

    /// The clock of an event that is recorded on the stream now.
    pub(crate) fn clock(&self, slot: Slot) -> &Clock {
        &self.lanes[slot].clock
    }

    /// Whether the stream's next work happens after this point.
    pub(crate) fn covers(&self, slot: Slot, epoch: Epoch) -> bool {
        let lane = &self.lanes[slot];
        if lane.clock.knows(epoch) || self.host.knows(epoch) {
            return true;
        }
        match lane.kind {
            StreamKind::NonBlocking => false,
            StreamKind::Blocking => self.lanes[LEGACY].clock.knows(epoch),
            StreamKind::Legacy => self.blocking.iter().any(|&b| self.lanes[b].clock.knows(epoch)),
        }
    }

    /// The epochs that a clock must know to know everything that the stream's next work happens after. Empty
    /// if the host knows it all.
    pub(crate) fn position(&self, slot: Slot) -> Epochs {
        let mut position = Epochs::default();
        let end = self.end(slot);
        if !self.host.knows(end) {
            position.add(end);
        }
        match self.lanes[slot].kind {
            StreamKind::NonBlocking => {}
            StreamKind::Blocking => self.unjoined(slot, LEGACY).into_iter().for_each(|e| position.add(e)),
            StreamKind::Legacy => {
                for &other in &self.blocking {
                    let Some(end) = self.unjoined(slot, other) else { continue };
                    if other == DEPARTED {
                        // Only the legacy stream itself waits for this slot, so other streams get the epochs
                        // that the slot knows.
                        let known = self.lanes[other].clock.epochs().filter(|e| e.slot() != DEPARTED);
                        let open = |e: &Epoch| !self.lanes[slot].clock.knows(*e) && !self.host.knows(*e);
                        known.filter(open).for_each(|e| position.add(e));
                    } else {
                        position.add(end);
                    }
                }
            }
        }
        position
    }

    pub(crate) fn host_knows(&self, epoch: Epoch) -> bool {
        self.host.knows(epoch)
    }

    /// Adds an event's clock to the host's.
    pub(crate) fn host_learns(&mut self, clock: &Clock) {
        self.host.join(clock);
    }

    /// Adds the clock of a finished stream to the host's.
    pub(crate) fn host_learns_stream(&mut self, slot: Slot) {
        self.host.join(&self.lanes[slot].clock);
    }

    /// Lets the host know everything.
    pub(crate) fn host_learns_all(&mut self) {
        for (slot, lane) in self.lanes.iter().enumerate() {
            self.host.raise(slot, lane.tick);
        }
    }

    /// Whether enough streams were destroyed to forget some.
    pub(crate) const fn wants_folding(&self) -> bool {
        self.free.is_empty() && self.dead.len() >= self.fold_at
    }

    pub(crate) fn dead(&self) -> &[Slot] {
        &self.dead
    }

    /// Whether the slot is free for another stream.
    pub(crate) fn is_free(&self, slot: Slot) -> bool {
        self.lanes[slot].state == State::Free
    }

    /// Frees the slots of destroyed streams whose work is done, if no later call can refer to them. This
    /// holds if the host knows the stream's end, or if nothing refers to the stream.
    pub(crate) fn fold(&mut self, referenced: &[bool], done: impl Fn(Slot) -> bool) {
        let mut dead = std::mem::take(&mut self.dead);
        dead.retain(|&slot| {
            let end = self.end(slot);
            let known = self.host.knows(end);
            if !done(slot) || (!known && referenced[slot]) {
                return true;
            }
            if !known && self.lanes[slot].kind == StreamKind::Blocking {
                self.join(DEPARTED, slot);
                self.advance(DEPARTED);
            }
            self.host.raise(slot, end.tick());
            self.lanes[slot].state = State::Free;
            self.free.push(slot);
            false
        });
        self.dead = dead;
        self.blocking.retain(|slot| self.lanes[*slot].state != State::Free);
        self.fold_at = FOLD_AT_LEAST.max(2 * self.dead.len());
    }
}
