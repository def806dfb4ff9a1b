//! Chooses the handles from which a block is stitched.

use crate::backing::paged::aliases::Alias;
use crate::backing::paged::free_ends::FreeEnds;
use crate::backing::paged::handles::{AliasId, HandleId};
use crate::backing::paged::pages::Pages;

/// The handles from which a block is stitched, in the order of their mappings.
#[derive(Debug, Default)]
pub(super) struct Stitching {
    /// An alias with a free end, and the first mapping of that end: its handles come first, and are mapped
    /// already.
    pub(super) base: Option<(AliasId, usize)>,
    /// Handles that are free to their ends, those of the base included; after the first they are wholly free.
    pub(super) before: Vec<HandleId>,
    /// Bytes of new handles behind those.
    pub(super) new: u64,
    /// The last handle, which is free at its start.
    pub(super) last: Option<HandleId>,
    /// Free bytes in `before`.
    found: u64,
}

/// The free bytes of a handle where it would serve, and its number.
type Candidate = (u64, HandleId);

/// The handles to choose from; each list is sorted, the smallest first.
#[derive(Debug)]
struct Candidates {
    /// Handles in use in part, with a free end.
    firsts: Vec<Candidate>,
    /// Handles in use in part, with a free start.
    lasts: Vec<Candidate>,
    /// Wholly free handles.
    wholes: Vec<Candidate>,
}

impl Candidates {
    fn of(pages: &Pages, ends: &FreeEnds) -> Self {
        let least = pages.policy.least_piece;
        let (mut firsts, mut lasts, mut wholes) = (Vec::new(), Vec::new(), Vec::new());
        for (id, ends) in ends.iter() {
            if ends.prefix.bytes == pages.handles.get(id).bytes {
                wholes.push((ends.prefix.bytes, id));
                continue;
            }
            if ends.suffix.bytes >= least {
                firsts.push((ends.suffix.bytes, id));
            }
            if ends.prefix.bytes >= least {
                lasts.push((ends.prefix.bytes, id));
            }
        }
        firsts.sort_unstable();
        lasts.sort_unstable();
        wholes.sort_unstable();
        Self { firsts, lasts, wholes }
    }

    /// Returns the smallest handle that completes a block which lacks this many bytes. A handle in use in
    /// part is preferred, so that wholly free ones stay whole (otherwise: bytes 1.064 instead of 1.061).
    fn ending(&self, bytes: u64, used: &[HandleId]) -> Option<HandleId> {
        let smallest = |list: &[Candidate]| {
            let from = list.partition_point(|(free, _)| *free < bytes);
            list[from..].iter().find(|(_, id)| !used.contains(id)).map(|(_, id)| *id)
        };
        smallest(&self.lasts).or_else(|| smallest(&self.wholes))
    }

    /// Returns the free end that has the most bytes together with the largest free start of another handle;
    /// `None` where a start alone has more.
    fn best_first(&self) -> Option<Candidate> {
        let last = |used: &[HandleId]| Self::largest(&self.lasts, used).map_or(0, |(free, _)| free);
        let both = |first: &Candidate| first.0 + last(&[first.1]);
        self.firsts.iter().copied().max_by_key(both).filter(|first| both(first) >= last(&[]))
    }

    /// Returns the largest candidate that is not used.
    fn largest(list: &[Candidate], used: &[HandleId]) -> Option<Candidate> {
        list.iter().rev().find(|(_, id)| !used.contains(id)).copied()
    }
}

impl Pages {
    /// Chooses the handles of a block of `bytes`, where no run of an alias serves and the address range may
    /// not grow by all of it.
    ///
    /// The largest free end comes first, or the free end of an alias if it has more bytes; then wholly free
    /// handles, the largest first, until one handle's start completes the block or the missing bytes are
    /// within `room`. Bytes that are still missing are new, beyond the slack.
    pub(super) fn stitch(&self, ends: &FreeEnds, bytes: u64, room: u64, may_extend: bool) -> Stitching {
        let candidates = Candidates::of(self, ends);
        let mut chosen = self.begin(ends, &candidates, bytes, may_extend);
        while chosen.found < bytes {
            let missing = bytes - chosen.found;
            chosen.last = candidates.ending(missing, &chosen.before);
            if chosen.last.is_some() {
                break;
            }
            if self.whole_granules(missing) <= room {
                chosen.new = self.whole_granules(missing);
                break;
            }
            if let Some((free, id)) = Candidates::largest(&candidates.wholes, &chosen.before) {
                chosen.before.push(id);
                chosen.found += free;
                continue;
            }
            chosen.new = self.whole_granules(missing);
            if let Some((free, id)) = Candidates::largest(&candidates.lasts, &chosen.before) {
                let with_it = self.whole_granules(missing - free);
                if with_it < chosen.new {
                    (chosen.new, chosen.last) = (with_it, Some(id));
                }
            }
            break;
        }
        chosen
    }

    /// Chooses the first handles. Before an out-of-memory error, it is the end that needs the fewest new
    /// bytes.
    fn begin(&self, ends: &FreeEnds, candidates: &Candidates, bytes: u64, may_extend: bool) -> Stitching {
        let first = if self.is_short { candidates.best_first() } else { candidates.firsts.last().copied() };
        let whole = candidates.wholes.last().map_or(0, |(free, _)| *free);
        if may_extend
            && !self.is_short
            && let Some((id, alias, (place, free))) = self.best_free_end(ends, bytes)
            && free >= first.map_or(0, |(free, _)| free)
            && free >= whole.min(bytes)
        {
            let before = alias.maps[place..].iter().map(|map| map.handle).collect();
            return Stitching { base: Some((id, place)), before, found: free, ..Stitching::default() };
        }
        match first {
            Some((free, id)) if free < bytes => {
                Stitching { before: vec![id], found: free, ..Stitching::default() }
            }
            _ => Stitching::default(),
        }
    }

    /// Returns the alias whose free end has the most bytes, but fewer than `bytes`.
    fn best_free_end(&self, ends: &FreeEnds, bytes: u64) -> Option<(AliasId, &Alias, (usize, u64))> {
        let aliases = self.aliases.iter().filter(|(_, alias)| alias.may_extend());
        let free_ends = aliases.filter_map(|(id, alias)| Some((id, alias, ends.free_end(alias)?)));
        free_ends.filter(|(.., (_, free))| *free < bytes).max_by_key(|(id, _, (_, free))| (*free, *id))
    }

    pub(super) fn whole_granules(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.granularity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: HandleId = 1;
    const OTHER: HandleId = 2;

    fn candidates(firsts: &[Candidate], lasts: &[Candidate]) -> Candidates {
        Candidates { firsts: firsts.to_vec(), lasts: lasts.to_vec(), wholes: Vec::new() }
    }

    /// A handle cannot serve at both ends: its end counts together with the start of another one.
    #[test]
    fn the_best_end_has_the_most_together_with_the_start_of_another_handle() {
        let lasts = [(1, PART), (50, OTHER)];
        assert_eq!(candidates(&[(20, PART), (100, OTHER)], &lasts).best_first(), Some((100, OTHER)));
        assert_eq!(candidates(&[(60, PART), (100, OTHER)], &lasts).best_first(), Some((60, PART)));
    }

    #[test]
    fn there_is_no_best_end_where_a_start_alone_has_more() {
        let lasts = [(3, PART), (50, OTHER)];
        assert_eq!(candidates(&[(46, OTHER)], &lasts).best_first(), None);
        assert_eq!(candidates(&[(47, OTHER)], &lasts).best_first(), Some((47, OTHER)));
        assert_eq!(candidates(&[], &lasts).best_first(), None);
        assert_eq!(candidates(&[(1, PART)], &[]).best_first(), Some((1, PART)));
    }
}
