use std::cell::RefMut;

use super::Pages;
use super::ends::{FreeEnds, Whose};
use crate::pool::heap::Heap;

/// The free ends of all handles, as they were gathered last: good as long as nothing changed. One request
/// looks for them several times, as it goes down the ladder.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    whose: Option<Whose>,
    /// Changes of the pages until then.
    changes: u64,
    pub(super) ends: FreeEnds,
    /// No run of a view has so many bytes, as far as somebody looked.
    pub(super) no_run: Option<u64>,
}

impl Pages {
    /// How often chunks came or went, or mappings in views were made.
    fn changes(&self) -> u64 {
        self.heaps.iter().map(Heap::changes).sum::<u64>() + self.views.made()
    }

    /// The free ends of all handles for somebody, gathered now unless they are as they were.
    pub(super) fn free_ends(&self, whose: Whose) -> RefMut<'_, Gathered> {
        let mut gathered = self.gathered.borrow_mut();
        let changes = self.changes();
        if gathered.whose != Some(whose) || gathered.changes != changes {
            gathered.ends.gather(self, whose, self.policy.least_piece);
            (gathered.whose, gathered.changes, gathered.no_run) = (Some(whose), changes, None);
        }
        gathered
    }

    /// The same, for who is about to change something.
    pub(super) fn take_free_ends(&mut self, whose: Whose) -> FreeEnds {
        let mut gathered = self.free_ends(whose);
        gathered.whose = None;
        std::mem::take(&mut gathered.ends)
    }
}
