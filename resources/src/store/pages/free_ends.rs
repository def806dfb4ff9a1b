//! Finds the free bytes at the ends of handles, and runs of them in alias mappings.

use crate::block_map::ChunkId;
use crate::store::pages::aliases::{Alias, Aliases};
use crate::store::pages::handles::{AddressRange, AliasId, HandleId, Handles, NONE};
use crate::stream_order::Epoch;

/// Contiguous free bytes in the primary mapping: the free end of a handle, or a piece for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Piece {
    pub(super) range: AddressRange,
    pub(super) addr: u64,
    pub(super) bytes: u64,
    /// The first chunk of the run of free chunks that holds these bytes.
    pub(super) run: ChunkId,
    /// Whether the run has more than one chunk.
    pub(super) joins: bool,
    pub(super) epoch: Epoch,
}

/// The free bytes at the start and at the end of a handle; a wholly free handle has both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ends {
    pub(super) prefix: Piece,
    pub(super) suffix: Piece,
}

/// Contiguous free mappings of an alias: the end of one handle, whole handles, and the start of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) alias: AliasId,
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) bytes: u64,
}

/// The free ends of handles, for one owner.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct FreeEnds {
    /// Whether only handles with an alias count.
    is_for_aliases: bool,
    /// By handle: the number of its entry, from 1; 0 for none.
    index: Vec<u32>,
    entries: Vec<(HandleId, Ends)>,
}

impl FreeEnds {
    /// Empties the collection, which keeps its memory. `handles` is a bound above all numbers of handles.
    /// With `is_for_aliases`, only handles with an alias will count.
    pub(super) fn restart(&mut self, handles: usize, is_for_aliases: bool) {
        for (id, _) in self.entries.drain(..) {
            self.index[id as usize] = 0;
        }
        self.index.resize(handles, 0);
        self.is_for_aliases = is_for_aliases;
    }

    /// Adds the ends of handles in a free extent.
    pub(super) fn add(&mut self, handles: &Handles, extent: Piece) {
        let (start, end) = (extent.addr, extent.addr + extent.bytes);
        for (id, handle) in handles.within(start, end) {
            let (from, to) = (start.max(handle.primary), end.min(handle.end()));
            if extent.range == AddressRange::Small && to - from < handle.bytes {
                continue;
            }
            let is_end = from == handle.primary || to == handle.end();
            if !is_end || (self.is_for_aliases && handle.aliases.is_empty()) {
                continue;
            }
            let piece = Piece { addr: from, bytes: to - from, ..extent };
            let ends = self.entry(id);
            if from == handle.primary {
                ends.prefix = piece;
            }
            if to == handle.end() {
                ends.suffix = piece;
            }
        }
    }

    pub(super) fn get(&self, handle: HandleId) -> Ends {
        match self.index[handle as usize] {
            0 => Ends::default(),
            entry => self.entries[entry as usize - 1].1,
        }
    }

    fn entry(&mut self, handle: HandleId) -> &mut Ends {
        let entry = &mut self.index[handle as usize];
        if *entry == 0 {
            self.entries.push((handle, Ends::default()));
            *entry = self.entries.len() as u32;
        }
        &mut self.entries[*entry as usize - 1].1
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (HandleId, &Ends)> {
        self.entries.iter().map(|(id, ends)| (*id, ends))
    }

    /// Returns the oldest run of at least `bytes`, over all aliases.
    ///
    /// It does not return the tightest run, because a program that repeats its requests then gets the same
    /// runs each time, without a driver call.
    pub(super) fn oldest_run(&self, handles: &Handles, aliases: &Aliases, bytes: u64) -> Option<Run> {
        let starts = self.iter().filter(|(_, ends)| ends.suffix.bytes > 0);
        let mut best: Option<(u64, Run)> = None;
        for (alias, first) in starts.flat_map(|(id, _)| &handles.get(id).aliases) {
            let (id, first) = (*alias, *first as usize);
            let alias = aliases.get(id);
            // A run is as old as its last mapping, which is younger than its first.
            if best.is_some_and(|(number, _)| alias.maps[first].number >= number) {
                continue;
            }
            let Some(run) = self.run_from(alias, id, first, bytes) else { continue };
            let number = alias.maps[run.last].number;
            if best.is_none_or(|(least, best)| (number, run.first) < (least, best.first)) {
                best = Some((number, run));
            }
        }
        best.map(|(_, run)| run)
    }

    /// Returns the shortest run of at least `bytes` that starts at a mapping of an alias.
    fn run_from(&self, alias: &Alias, id: AliasId, first: usize, bytes: u64) -> Option<Run> {
        let mut run =
            Run { alias: id, first, last: first, bytes: self.get(alias.maps[first].handle).suffix.bytes };
        while run.bytes < bytes {
            let before = &alias.maps[first..=run.last];
            let next = alias.maps.get(run.last + 1).filter(|next| next.handle != NONE)?;
            let prefix = self.get(next.handle).prefix.bytes;
            if prefix == 0 || before.iter().any(|map| map.handle == next.handle) {
                return None;
            }
            run.bytes += prefix;
            run.last += 1;
            if prefix < next.bytes && run.bytes < bytes {
                return None;
            }
        }
        (run.last > first).then_some(run)
    }

    /// Returns the first mapping and the bytes of the free end of an alias: the end of one handle, and whole
    /// handles.
    pub(super) fn free_end(&self, alias: &Alias) -> Option<(usize, u64)> {
        let (mut first, mut bytes) = (alias.maps.len(), 0);
        while let Some(place) = first.checked_sub(1) {
            let map = alias.maps[place];
            let suffix = if map.handle == NONE { 0 } else { self.get(map.handle).suffix.bytes };
            let again = alias.maps[first..].iter().any(|other| other.handle == map.handle);
            if suffix == 0 || again {
                break;
            }
            (first, bytes) = (place, bytes + suffix);
            if suffix < map.bytes {
                break;
            }
        }
        (bytes > 0).then_some((first, bytes))
    }

    /// Returns a piece of `bytes` at the free start of a handle.
    pub(super) fn start_of(&self, id: HandleId, bytes: u64) -> Piece {
        Piece { bytes, ..self.get(id).prefix }
    }

    /// Returns the pieces of a block in a run, and its address. The rest of the run stays free at its end.
    pub(super) fn pieces(&self, aliases: &Aliases, run: &Run, bytes: u64) -> (Vec<Piece>, u64) {
        let alias = aliases.get(run.alias);
        let first = alias.maps[run.first];
        let mut pieces = vec![self.get(first.handle).suffix];
        let of_first = pieces[0].bytes;
        let mut rest = bytes - of_first;
        for map in &alias.maps[run.first + 1..=run.last] {
            let piece = rest.min(self.get(map.handle).prefix.bytes);
            pieces.push(self.start_of(map.handle, piece));
            rest -= piece;
        }
        debug_assert_eq!(rest, 0);
        (pieces, alias.addr(run.first) + first.bytes - of_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::pages::aliases::Map;

    const UNIT: u64 = 2 << 20;

    fn alias(handles: &[HandleId]) -> Alias {
        let maps = (0..).zip(handles);
        let map = |(place, handle): (u64, &HandleId)| Map {
            handle: *handle,
            offset: place * UNIT,
            bytes: UNIT,
            number: place,
        };
        let bytes = handles.len() as u64 * UNIT;
        let maps = maps.map(map).collect();
        Alias { base: 0, slot: bytes, bytes, maps, busy: 0, is_closed: false, used: 0 }
    }

    /// Handle 0 is in use, the last half of handle 1 is free, and all others are free.
    fn ends() -> FreeEnds {
        let mut ends = FreeEnds { index: vec![0; 4], ..FreeEnds::default() };
        ends.entry(1).suffix = Piece { bytes: UNIT / 2, ..Piece::default() };
        for handle in [2, 3] {
            let whole = Piece { bytes: UNIT, ..Piece::default() };
            *ends.entry(handle) = Ends { prefix: whole, suffix: whole };
        }
        ends
    }

    #[test]
    fn the_free_end_of_an_alias_has_each_handle_once() {
        let free_end = |handles: &[HandleId]| ends().free_end(&alias(handles));
        assert_eq!(free_end(&[0, 1, 2, 3]), Some((1, 2 * UNIT + UNIT / 2)));
        assert_eq!(free_end(&[2, 0, 3]), Some((2, UNIT)));
        assert_eq!(free_end(&[2, 3, 2]), Some((1, 2 * UNIT)));
        assert_eq!(free_end(&[3, NONE]), None);
        assert_eq!(free_end(&[3, 0]), None);
    }
}
