//! The pages that blocks of plain memory share, by the rule in [`crate::plain`].
//!
//! CUDA does not document which hole a block takes. Here it is the smallest that fits, the lowest of equal
//! ones.

use super::address::AddressSpace;
use crate::plain::{PAGE, UNIT};

/// The free room in the shared pages.
#[derive(Debug)]
pub(crate) struct SharedPages {
    room: AddressSpace,
}

impl SharedPages {
    /// A space without pages. Blocks are cut from a hole's lower end or from its upper one.
    pub(crate) fn new(from_above: bool) -> Self {
        Self { room: AddressSpace::in_pages(PAGE, UNIT, from_above) }
    }

    /// Finds a place for a block in an existing page.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        self.room.allocate(bytes, UNIT)
    }

    /// Adds a page because no other has room, and returns a place in it.
    pub(crate) fn allocate_in_new(&mut self, page: u64, bytes: u64) -> u64 {
        self.room.free(page, PAGE);
        self.room.allocate(bytes, UNIT).unwrap_or(page)
    }

    /// Frees a block. If it was the last block in its page, removes the page and returns its address.
    pub(crate) fn free(&mut self, start: u64, bytes: u64) -> Option<u64> {
        self.room.free(start, bytes);
        let page = start - start % PAGE;
        self.room.take(page, PAGE).then_some(page)
    }
}
