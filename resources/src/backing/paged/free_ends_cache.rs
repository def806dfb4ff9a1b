use std::cell::RefMut;

use crate::backing::paged::Pages;
use crate::backing::paged::free_ends::{FreeEnds, OwnerFilter};
use crate::heap::Heap;

/// The free ends of all handles, as they were reclaimed last: good as long as nothing changed. As one request
/// goes down the ladder, it looks for its own several times.
#[derive(Debug, Default)]
pub(super) struct FreeEndsCache {
    filter: Option<OwnerFilter>,
    /// Changes of the pages until then.
    changes: u64,
    pub(super) ends: FreeEnds,
    /// A request of so many bytes found no run in an alias.
    pub(super) no_run: Option<u64>,
}

impl Pages {
    /// How often chunks came or went, or mappings in aliases were made.
    fn changes(&self) -> u64 {
        self.heaps.iter().map(Heap::changes).sum::<u64>() + self.aliases.made()
    }

    /// The free ends of all handles for somebody, reclaimed now unless they are as they were.
    pub(super) fn free_ends(&self, filter: OwnerFilter) -> RefMut<'_, FreeEndsCache> {
        let mut reclaimed = self.reclaimed.borrow_mut();
        let changes = self.changes();
        if reclaimed.filter != Some(filter) || reclaimed.changes != changes {
            reclaimed.filter = None;
            reclaimed.ends.collect(self, filter, self.policy.least_piece);
            (reclaimed.filter, reclaimed.changes, reclaimed.no_run) = (Some(filter), changes, None);
        }
        reclaimed
    }

    /// The same, for who is about to change something.
    pub(super) fn take_free_ends(&mut self, filter: OwnerFilter) -> FreeEnds {
        let mut reclaimed = self.free_ends(filter);
        reclaimed.filter = None;
        std::mem::take(&mut reclaimed.ends)
    }

    /// Panics where what was reclaimed passes for the present, and is not (7).
    pub(super) fn validate_free_ends_cache(&self) {
        let reclaimed = self.reclaimed.borrow();
        let Some(filter) = reclaimed.filter.filter(|_| reclaimed.changes == self.changes()) else { return };
        let mut ends = FreeEnds::default();
        ends.collect(self, filter, self.policy.least_piece);
        assert_eq!(reclaimed.ends, ends, "what was gathered is no more");
    }
}
