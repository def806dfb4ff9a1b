use crate::backing::paged::Pages;
use crate::backing::paged::aliases::Alias;
use crate::backing::paged::free_ends::FreeEnds;
use crate::backing::paged::handles::{AliasId, HandleId};

/// What a block is stitched from: handles that are mapped behind each other.
#[derive(Debug, Default)]
pub(super) struct Stitching {
    /// An alias that ends free, and the place from which on: its handles come first, and are mapped already.
    pub(super) base: Option<(AliasId, usize)>,
    /// Handles free to their ends; after the first they are wholly free. Those of the base included.
    pub(super) before: Vec<HandleId>,
    /// Bytes of new handles behind those.
    pub(super) new: u64,
    /// A handle that is free from its start on, behind all.
    pub(super) last: Option<HandleId>,
    /// Bytes in `before`.
    got: u64,
}

/// A handle and how many bytes of it are free in the place where it would serve.
type Candidate = (u64, HandleId);

/// What there is to choose from, each smallest first.
#[derive(Debug)]
struct Candidates {
    /// Handles in part free, up to their ends.
    firsts: Vec<Candidate>,
    /// Handles in part free, from their starts on.
    lasts: Vec<Candidate>,
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

    /// The smallest handle that ends a block which lacks this many bytes. One that is in part in use goes
    /// before one that is wholly free, which stays whole then (otherwise: bytes 1.064 instead of 1.061).
    fn ending(&self, bytes: u64, used: &[HandleId]) -> Option<HandleId> {
        let smallest = |list: &[Candidate]| {
            let from = list.partition_point(|(free, _)| *free < bytes);
            list[from..].iter().find(|(_, id)| !used.contains(id)).map(|(_, id)| *id)
        };
        smallest(&self.lasts).or_else(|| smallest(&self.wholes))
    }

    /// The free end that, with the largest free start of another handle, brings most; `None` where a start
    /// alone brings more.
    fn best_first(&self) -> Option<Candidate> {
        let last = |used: &[HandleId]| Self::largest(&self.lasts, used).map_or(0, |(free, _)| free);
        let both = |first: &Candidate| first.0 + last(&[first.1]);
        self.firsts.iter().copied().max_by_key(both).filter(|first| both(first) >= last(&[]))
    }

    /// The largest of a list that is not used.
    fn largest(list: &[Candidate], used: &[HandleId]) -> Option<Candidate> {
        list.iter().rev().find(|(_, id)| !used.contains(id)).copied()
    }
}

impl Pages {
    /// Chooses what a block of so many bytes is stitched from, where no run of an alias serves and the
    /// address range may not grow by all of it.
    ///
    /// The largest free end comes first (or the end of an alias, where that brings more), then whole handles,
    /// the largest first, until one handle's start completes the block or what is missing is within `room`.
    /// Where all that does not suffice, the rest is new, beyond the slack.
    pub(super) fn stitch(&self, ends: &FreeEnds, bytes: u64, room: u64, may_go_on: bool) -> Stitching {
        let candidates = Candidates::of(self, ends);
        let mut chosen = self.begin(ends, &candidates, bytes, may_go_on);
        while chosen.got < bytes {
            let missing = bytes - chosen.got;
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
                chosen.got += free;
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

    /// What a block begins with. Before memory is out, it is the end that leaves most for the rest.
    fn begin(&self, ends: &FreeEnds, candidates: &Candidates, bytes: u64, may_go_on: bool) -> Stitching {
        let first = if self.is_short { candidates.best_first() } else { candidates.firsts.last().copied() };
        let may_go_on = may_go_on && !self.is_short;
        let whole = candidates.wholes.last().map_or(0, |(free, _)| *free);
        if may_go_on
            && let Some((id, alias, (place, free))) = self.best_free_end(ends, bytes)
            && free >= first.map_or(0, |(free, _)| free)
            && free >= whole.min(bytes)
        {
            let before = alias.maps[place..].iter().map(|map| map.handle).collect();
            return Stitching { base: Some((id, place)), before, got: free, ..Stitching::default() };
        }
        match first {
            Some((free, id)) if free < bytes => {
                Stitching { before: vec![id], got: free, ..Stitching::default() }
            }
            _ => Stitching::default(),
        }
    }

    /// The alias that ends with most free bytes, though fewer than these.
    fn best_free_end(&self, ends: &FreeEnds, bytes: u64) -> Option<(AliasId, &Alias, (usize, u64))> {
        let aliases = self.aliases.iter().filter(|(_, alias)| alias.may_go_on());
        let free_ends = aliases.filter_map(|(id, alias)| Some((id, alias, ends.free_end(alias)?)));
        free_ends.filter(|(.., (_, free))| *free < bytes).max_by_key(|(id, _, (_, free))| (*free, *id))
    }

    pub(super) fn whole_granules(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.granularity)
    }
}
