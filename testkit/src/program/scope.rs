//! A program's scopes for captured graphs.

use std::fmt;

use rustc_hash::FxHashMap;

use super::ScopeOfGraphs;
use super::op::{MAX_SCOPES, Stream};
use super::order::Clock;

/// The living scopes, and the streams that are open in one.
#[derive(Default)]
pub(super) struct Scopes {
    pub(super) alive: [Option<Owned>; MAX_SCOPES],
    pub(super) open: Vec<Open>,
    made: ScopeId,
    work: FxHashMap<ScopeId, Work>,
}

/// The work outside of captures on a scope's memory.
#[derive(Clone, Default, Debug)]
pub(super) struct Work {
    /// All of this work, and the work that came before the blocks' first streams got them.
    pub(super) all: Clock,
    /// The launches of graphs.
    pub(super) launched: Clock,
}

/// A scope's number, which no other scope of the program has.
pub(super) type ScopeId = u32;

pub(super) struct Owned {
    pub(super) scope: Box<dyn ScopeOfGraphs>,
    pub(super) id: ScopeId,
}

pub(super) struct Open {
    pub(super) stream: Stream,
    pub(super) scope: ScopeId,
    /// Dropping it closes the scope for the stream.
    pub(super) _opened: Box<dyn Send>,
}

impl Scopes {
    pub(super) fn is_open(&self, stream: Stream) -> bool {
        self.open.iter().any(|open| open.stream == stream)
    }

    /// The scope that is open for one of these streams.
    pub(super) fn of(&self, is_served: impl Fn(Stream) -> bool) -> Option<ScopeId> {
        self.open.iter().find(|open| is_served(open.stream)).map(|open| open.scope)
    }

    /// The streams that are open in a scope.
    pub(super) fn open_in(&self, scope: ScopeId) -> impl Iterator<Item = Stream> + '_ {
        self.open.iter().filter(move |open| open.scope == scope).map(|open| open.stream)
    }

    /// A number for a new scope.
    pub(super) fn new_id(&mut self) -> ScopeId {
        self.made += 1;
        self.made
    }

    /// Whether the scope has not ended.
    pub(super) fn has(&self, scope: ScopeId) -> bool {
        let mut alive = self.alive.iter().flatten();
        alive.any(|owned| owned.id == scope) || self.open.iter().any(|open| open.scope == scope)
    }

    pub(super) fn work(&self, scope: ScopeId) -> Option<&Work> {
        self.work.get(&scope)
    }

    pub(super) fn work_mut(&mut self, scope: ScopeId) -> &mut Work {
        self.work.entry(scope).or_default()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open.iter().map(|open| (open.stream, open.scope));
        f.debug_list().entries(open).finish()
    }
}
