//! The pool's part of a state, and its translation to the model's beliefs.

use millpond_core::StreamRef;

use crate::pool::central::collect::{Donor, Outcome, Record, RecordedEvent};
use crate::stream_order::checker::model::{Call, Epochs, Id, Place, Stage, State, Stream};
use crate::stream_order::checker::{BLOCKS, Epoch as Small, STREAMS, THREADS};
use crate::stream_order::streams::{Slot, Streams};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};

/// What a thread holds between two steps.
#[derive(Clone)]
pub(super) enum Held {
    Nothing,
    /// The record, and its event once the device has reached it.
    Record(Record, Option<RecordedEvent>),
    Event(RecordedEvent, Stage),
    /// The ended epochs, and whether the wait is over.
    Device(Vec<Donor>, bool),
}

/// The place of a block.
#[derive(Clone, Copy)]
pub(super) enum Spot {
    Live,
    /// A thread frees it, and has read the owner and the epoch.
    Freeing(Owner, Epoch),
    Free(Owner, Epoch),
}

/// The pool's part of a state.
pub(super) struct World {
    pub(super) streams: Streams,
    /// The stream of each of the model's streams.
    pub(super) refs: [StreamRef; STREAMS],
    /// The number of streams that were created so far.
    pub(super) created: usize,
    pub(super) spots: [Spot; BLOCKS],
    pub(super) held: [Held; THREADS],
}

impl Clone for World {
    fn clone(&self) -> Self {
        let Self { streams, refs, created, spots, held } = self;
        let (refs, created, spots) = (*refs, *created, *spots);
        Self { streams: streams.copy(), refs, created, spots, held: held.clone() }
    }
}

impl World {
    /// Returns this state in the model's words, with the truth of `truth`. An error names all that the model
    /// has no word for.
    pub(super) fn in_words_of(&self, truth: &State) -> Result<State, String> {
        let mut state = *truth;
        for (id, it) in (0..).zip(&mut state.streams) {
            *it = self.stream(id, it.exists)?;
        }
        for (spot, block) in self.spots.iter().zip(&mut state.blocks) {
            block.place = match *spot {
                Spot::Live => Place::Live,
                Spot::Freeing(owner, epoch) => {
                    Place::Freeing { owner: self.id(owner)?, epoch: small(epoch)? }
                }
                Spot::Free(ANY_STREAM, _) => Place::Unowned,
                Spot::Free(owner, epoch) => Place::Free { owner: self.id(owner)?, epoch: small(epoch)? },
            };
        }
        for (held, call) in self.held.iter().zip(&mut state.calls) {
            *call = self.call(held)?;
        }
        Ok(state)
    }

    /// Returns the pool's number for a stream, and its slot.
    pub(super) fn slot(&self, id: Id) -> Option<(Owner, &Slot)> {
        self.streams.iter().find(|(_, slot)| slot.id == self.refs[id as usize].id())
    }

    fn stream(&self, id: Id, exists: bool) -> Result<Stream, String> {
        let Some((_, slot)) = self.slot(id) else { return Ok(Stream { exists, ..Stream::NEW }) };
        let is_pending = |held: &&Held| matches!(held, Held::Record(it, _) if it.pending.id == slot.id);
        let pending = self.held.iter().filter(is_pending).count();
        if slot.pending_records() as usize != pending {
            return Err(format!("stream {id} counts {} records, and {pending} are", slot.pending_records()));
        }
        Ok(Stream {
            exists,
            is_known: true,
            epoch: small(slot.epoch())?,
            has_event: slot.event.is_some(),
            recorded: small(slot.recorded_epoch.unwrap_or(0))?,
            recorded_seen: self.epochs(slot.recorded_seen.iter().copied())?,
            seen: self.epochs(slot.seen())?,
        })
    }

    fn call(&self, held: &Held) -> Result<Call, String> {
        Ok(match held {
            Held::Nothing => Call::Idle,
            Held::Record(Record { pending, outcome, .. }, reached) => {
                let stream = self.id_of(pending.id)?;
                let event = self.slot(stream).and_then(|(_, slot)| slot.event);
                Call::Record {
                    stream,
                    epoch: small(pending.epoch)?,
                    seen: self.epochs(pending.seen.iter().copied())?,
                    is_first: pending.event.is_none() || pending.event != event,
                    is_made: *outcome == Outcome::Recorded,
                    is_reached: reached.is_some(),
                }
            }
            Held::Event(RecordedEvent { donor, seen, .. }, stage) => Call::Event {
                stream: self.id_of(donor.id)?,
                epoch: small(donor.epoch)?,
                seen: self.epochs(seen.iter().copied())?,
                stage: *stage,
            },
            Held::Device(covered, is_made) => {
                let mut epochs = [0; STREAMS];
                for donor in covered {
                    epochs[self.id_of(donor.id)? as usize] = small(donor.epoch)?;
                }
                Call::Device { epochs, is_made: *is_made }
            }
        })
    }

    fn epochs(&self, seen: impl Iterator<Item = (Owner, Epoch)>) -> Result<Epochs, String> {
        let mut epochs = [0; STREAMS];
        for (owner, epoch) in seen {
            epochs[self.id(owner)? as usize] = small(epoch)?;
        }
        Ok(epochs)
    }

    /// Returns the model's name of the stream that has a number.
    fn id(&self, owner: Owner) -> Result<Id, String> {
        let slot = self.streams.iter().find(|(it, _)| *it == owner);
        self.id_of(slot.ok_or_else(|| format!("no stream has the number {owner}"))?.1.id)
    }

    fn id_of(&self, id: millpond_core::StreamId) -> Result<Id, String> {
        let at = self.refs.iter().position(|it| it.id() == id);
        at.map(|at| at as Id).ok_or_else(|| format!("{id:?} is no stream of the model"))
    }
}

fn small(epoch: Epoch) -> Result<Small, String> {
    epoch.try_into().map_err(|_| format!("epoch {epoch} is far in the future"))
}
