//! The scopes for captured graphs of a program.

use std::fmt;

use super::ScopeOfGraphs;
use super::op::{MAX_SCOPES, Scope, Stream};
use super::order::Clock;

/// The scopes that are alive, and the streams that are open in one.
#[derive(Default)]
pub(super) struct Scopes {
    pub(super) alive: [Option<Owned>; MAX_SCOPES],
    pub(super) open: Vec<Open>,
}

pub(super) struct Owned {
    pub(super) scope: Box<dyn ScopeOfGraphs>,
    /// The work of its captures, after which a later capture comes.
    pub(super) captured: Clock,
}

pub(super) struct Open {
    pub(super) stream: Stream,
    pub(super) scope: Scope,
    /// Closes the scope for the stream when it is dropped.
    pub(super) _opened: Box<dyn Send>,
}

impl Scopes {
    pub(super) fn is_open(&self, stream: Stream) -> bool {
        self.open.iter().any(|open| open.stream == stream)
    }

    /// The scope that serves one of these streams.
    pub(super) fn of(&self, streams: &[Stream]) -> Option<Scope> {
        self.open.iter().find(|open| streams.contains(&open.stream)).map(|open| open.scope)
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
