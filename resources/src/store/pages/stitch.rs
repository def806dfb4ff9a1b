//! Chooses the handles from which a block is stitched.

use crate::store::pages::aliases::Alias;
use crate::store::pages::free_ends::{FreeEnds, Piece};
use crate::store::pages::handles::{AliasId, HandleId};
use crate::store::pages::state::Pages;
use crate::tuning::LEAST_PIECE;

/// The handles from which a block is stitched, in the order of their mappings.
#[derive(Debug, Default)]
pub(super) struct Stitching {
    /// An alias with a free end, and the first mapping of that end: its handles come first, and are mapped
    /// already.
    pub(super) base: Option<(AliasId, usize)>,
    /// Handles that are free to their ends, including the handles of the base. All except the first are
    /// wholly free.
    pub(super) before: Vec<HandleId>,
    /// Bytes of new handles after those.
    pub(super) new: u64,
    /// The last handle, which is free at its start.
    pub(super) last: Option<HandleId>,
    /// Free bytes in `before`.
    found: u64,
}

impl Stitching {
    /// Returns the free pieces of a block of `bytes`, in the order of the handles.
    pub(super) fn pieces(&self, ends: &FreeEnds, bytes: u64) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = self.before.iter().map(|id| ends.get(*id).suffix).collect();
        let missing = bytes - pieces.iter().map(|piece| piece.bytes).sum::<u64>();
        pieces.extend(self.last.map(|id| ends.start_of(id, missing.saturating_sub(self.new))));
        pieces
    }
}

/// A handle's free bytes at the end that would serve, and its number.
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
        let least = LEAST_PIECE;
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

    /// Returns the smallest handle that completes a block which lacks this many bytes. Prefers a partly used
    /// handle, so that wholly free ones stay whole (otherwise: bytes 1.064 instead of 1.061).
    fn ending(&self, bytes: u64, used: &[HandleId]) -> Option<HandleId> {
        let smallest = |list: &[Candidate]| {
            let from = list.partition_point(|(free, _)| *free < bytes);
            list[from..].iter().find(|(_, id)| !used.contains(id)).map(|(_, id)| *id)
        };
        smallest(&self.lasts).or_else(|| smallest(&self.wholes))
    }

    /// Returns the free end that has the most bytes together with the largest free start of another handle;
    /// `None` if a start alone has more.
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
    /// Chooses the handles of a block of `bytes`, if no run of an alias serves and the pool may not grow by
    /// the whole block.
    ///
    /// The largest free end comes first, or the free end of an alias if it has more bytes. Then come wholly
    /// free handles, the largest first. This ends when one handle's start completes the block, or when at
    /// most `room` bytes are missing. If bytes are still missing, they are new memory beyond the slack.
    pub(super) fn stitch(&self, ends: &FreeEnds, bytes: u64, room: u64, may_extend: bool) -> Stitching {
        let candidates = Candidates::of(self, ends);
        let mut chosen = self.choose_first(ends, &candidates, bytes, may_extend);
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

    /// Chooses the first handles. Before an out-of-memory error, it chooses the end that needs the fewest new
    /// bytes.
    fn choose_first(
        &self,
        ends: &FreeEnds,
        candidates: &Candidates,
        bytes: u64,
        may_extend: bool,
    ) -> Stitching {
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
    use millpond_core::Layout;
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::block_map::ChunkId;
    use crate::heap::request::{Request, Whose};
    use crate::store::Store;
    use crate::stream_order::ANY_STREAM;
    use crate::tuning::Policy;

    const PART: HandleId = 1;
    const OTHER: HandleId = 2;

    fn candidates(firsts: &[Candidate], lasts: &[Candidate]) -> Candidates {
        Candidates { firsts: firsts.to_vec(), lasts: lasts.to_vec(), wholes: Vec::new() }
    }

    /// A handle cannot serve at both ends of a block: its end counts only together with another handle's
    /// start.
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

    const MIB: u64 = 1 << 20;

    /// A free end begins a block of several pieces only if it is too small for the block alone.
    #[test]
    fn an_end_that_is_large_enough_alone_is_not_stitched() {
        let pages = Pages::new(2 * MIB, 1 << 30, u64::MAX, Policy::default());
        let candidates = candidates(&[(8 * MIB, PART)], &[]);
        for (mib, before) in [(8, &[][..]), (9, &[PART][..])] {
            let chosen = pages.with_free_ends(Whose::Joined(1), false, |ends| {
                pages.choose_first(ends, &candidates, mib * MIB, false)
            });
            assert_eq!(chosen.before, before, "for {mib} MiB");
        }
    }

    /// Takes a block for the first stream: from new memory, or stitched if the pool may not grow.
    fn take(pages: &mut Pages, device: &SimDevice, mib: u64, may_grow: bool) -> ChunkId {
        let request = Request::new(Layout::new(mib * MIB)).expect("not too large");
        let most_new = if may_grow { u64::MAX } else { 0 };
        let mut plan = pages.plan_block(1, &request, false, 0, most_new).expect("there is room");
        plan.work.make_calls(device).expect("the device has room");
        let (block, _) = pages.commit_block(plan);
        pages.validate_all();
        block
    }

    /// The alias with the largest free end is extended, if the block is larger than that end.
    #[test]
    fn the_alias_with_the_largest_free_end_that_is_too_small_is_extended() {
        let device = SimDevice::new(SimConfig::h200());
        let policy = Policy { handle_bytes: 4 * MIB, ..Policy::default() };
        let mut pages = Pages::new(2 * MIB, 1 << 30, u64::MAX, policy);
        let blocks: Vec<ChunkId> = (0..6).map(|_| take(&mut pages, &device, 8, true)).collect();
        // Three holes of 8 MiB, two handles each.
        blocks.iter().step_by(2).for_each(|block| pages.free_block(*block, 1, 1));
        let stitched = [12, 10].map(|mib| take(&mut pages, &device, mib, false));
        let best = |pages: &Pages, bytes| {
            pages.with_free_ends(Whose::Joined(1), false, |ends| {
                let best = pages.best_free_end(ends, bytes);
                best.map(|(id, alias, (place, free))| {
                    assert_eq!(ends.free_end(alias), Some((place, free)));
                    assert_eq!(pages.aliases.get(id).base, alias.base);
                    free / MIB
                })
            })
        };
        assert_eq!(best(&pages, u64::MAX), Some(2), "the rest of the last handle");
        assert_eq!((best(&pages, 2 * MIB), best(&pages, 2 * MIB + 1)), (None, Some(2)));
        stitched.iter().for_each(|block| pages.free_block(*block, 1, 2));
        let mut free: Vec<u64> = pages.with_free_ends(Whose::Joined(1), false, |ends| {
            pages.aliases.iter().filter_map(|(_, alias)| Some(ends.free_end(alias)?.1)).collect()
        });
        free.sort_unstable();
        assert_eq!(free.len(), 2, "two aliases have free ends");
        for bytes in free.iter().flat_map(|free| [*free, free + 1, free + MIB]) {
            let expected = free.iter().rfind(|free| **free < bytes).map(|free| free / MIB);
            assert_eq!(best(&pages, bytes), expected, "{bytes} bytes, free are {free:?}");
        }
        let aliases = pages.aliases.iter().count();
        let more = free[1] / MIB + 4;
        take(&mut pages, &device, more, false);
        assert_eq!(pages.aliases.iter().count(), aliases, "no new alias");
    }

    /// After a stitched block is freed, other streams find a block of that size, if they may use the freeing
    /// stream's blocks up to that epoch.
    #[test]
    fn a_stitched_block_is_found_for_its_owner() {
        let device = SimDevice::new(SimConfig::h200());
        let policy = Policy { handle_bytes: 4 * MIB, ..Policy::default() };
        let mut pages = Pages::new(2 * MIB, 1 << 30, u64::MAX, policy);
        let blocks: Vec<ChunkId> = (0..4).map(|_| take(&mut pages, &device, 8, true)).collect();
        blocks.iter().step_by(2).for_each(|block| pages.free_block(*block, 1, 1));
        let stitched = take(&mut pages, &device, 12, false);
        pages.free_block(stitched, 1, 5);
        let request = |mib| Request::new(Layout::new(mib * MIB)).expect("not too large");
        for (owner, upto, mib, is_found) in [
            (1, 5, 12, true),
            (1, u64::MAX, 9, true),
            (1, 4, 12, false),
            (2, 5, 12, false),
            (ANY_STREAM, 5, 12, false),
            (1, 5, 13, false),
        ] {
            let found = pages.find_best(Whose::Of(owner, upto), &request(mib));
            let found = found.map(|found| (found.owner, found.epoch, found.bytes >= mib * MIB));
            assert_eq!(found, is_found.then_some((1, 5, true)), "{mib} MiB of {owner}, up to {upto}");
        }
        let taken = pages.take_best(Whose::Of(1, 5), &request(12)).expect("as before");
        assert_eq!(pages.bytes_of(taken.chunk), 12 * MIB);
        pages.validate_all();
    }
}
