use std::cell::RefMut;

use super::Pages;
use super::ends::{FreeEnds, Whose};
use crate::pool::heap::Heap;

/// The free ends of all handles, as they were gathered last: good as long as nothing changed. As one request
/// goes down the ladder, it looks for its own several times.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    whose: Option<Whose>,
    /// Changes of the pages until then.
    changes: u64,
    pub(super) ends: FreeEnds,
    /// A request of so many bytes found no run in a view.
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
            gathered.whose = None;
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

    /// Panics where what was gathered passes for the present, and is not (7).
    pub(super) fn validate_gathered(&self) {
        let gathered = self.gathered.borrow();
        let Some(whose) = gathered.whose.filter(|_| gathered.changes == self.changes()) else { return };
        let mut ends = FreeEnds::default();
        ends.gather(self, whose, self.policy.least_piece);
        assert_eq!(gathered.ends, ends, "what was gathered is no more");
    }
}
