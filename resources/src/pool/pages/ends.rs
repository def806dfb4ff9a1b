use super::handles::{HandleId, Handles, NONE, ViewId};
use super::views::{View, Views};
use super::{Line, Pages};
use crate::ordered::{ANYONE, Epoch, Owner};
use crate::pool::chunk::ChunkId;

/// Whose free bytes count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whose {
    /// Those of one owner, given back in this epoch or before.
    Only(Owner, Epoch),
    /// Those of an owner, and anyone's.
    With(Owner),
}

/// Free bytes in a row, at one end of a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Part {
    pub(super) bytes: u64,
    /// The first chunk of the run of free chunks that these are in.
    run: ChunkId,
    /// Whether the run has more chunks than one.
    joins: bool,
    epoch: Epoch,
}

/// What is free of a handle at its start and at its end. A handle that is wholly free has both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ends {
    pub(super) prefix: Part,
    pub(super) suffix: Part,
}

/// A piece of a block: bytes at home that are free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) line: Line,
    pub(super) addr: u64,
    pub(super) bytes: u64,
    pub(super) run: ChunkId,
    pub(super) joins: bool,
    pub(super) epoch: Epoch,
}

/// Mapped places of a view, one behind the other, that are free: the end of one handle, whole handles, and
/// the start of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) view: ViewId,
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) bytes: u64,
}

/// The free ends of all handles, for somebody.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct FreeEnds {
    /// By handle: which entry is its own, from 1; 0 for none.
    index: Vec<u32>,
    entries: Vec<(HandleId, Ends)>,
}

impl FreeEnds {
    /// Gathers them from free chunks of at least `least` bytes. Of the small line only whole handles count.
    pub(super) fn gather(&mut self, pages: &Pages, whose: Whose, least: u64) {
        self.index.clear();
        self.index.resize(pages.handles.numbers(), 0);
        self.entries.clear();
        for line in Line::ALL {
            match whose {
                Whose::Only(owner, upto) => self.gather_only(pages, line, owner, upto, least),
                Whose::With(owner) => {
                    self.gather_with(pages, line, owner, owner, least);
                    if owner != ANYONE {
                        self.gather_with(pages, line, owner, ANYONE, least);
                    }
                }
            }
        }
    }

    fn gather_only(&mut self, pages: &Pages, line: Line, owner: Owner, upto: Epoch, least: u64) {
        for (id, chunk) in pages.heap(line).free_from(owner, least) {
            if chunk.bytes >= least && chunk.epoch() <= upto {
                let part = Part { bytes: 0, run: id, joins: false, epoch: chunk.epoch() };
                self.enter(&pages.handles, line, chunk.addr, chunk.addr + chunk.bytes, part);
            }
        }
    }

    /// The runs that hold a chunk of `of` large enough.
    fn gather_with(&mut self, pages: &Pages, line: Line, owner: Owner, of: Owner, least: u64) {
        let heap = pages.heap(line);
        for (id, chunk) in heap.free_from(of, least).filter(|(_, chunk)| chunk.bytes >= least) {
            let first = heap.first_of_run(id, owner);
            // A run counts once: for the first of its chunks that are large enough.
            let counts = heap.run(first, owner).find(|chunk| chunk.bytes >= least);
            if counts.is_none_or(|counts| counts.addr != chunk.addr) {
                continue;
            }
            let (mut start, mut end, mut chunks, mut epoch) = (u64::MAX, 0, 0, 0);
            for chunk in heap.run(first, owner) {
                start = start.min(chunk.addr);
                end = chunk.addr + chunk.bytes;
                chunks += 1;
                epoch = chunk.epoch().max(epoch);
            }
            let part = Part { bytes: 0, run: first, joins: chunks > 1, epoch };
            self.enter(&pages.handles, line, start, end, part);
        }
    }

    fn enter(&mut self, handles: &Handles, line: Line, start: u64, end: u64, part: Part) {
        for (id, handle) in handles.within(start, end) {
            let (from, to) = (start.max(handle.home), end.min(handle.end()));
            if line == Line::Small && to - from < handle.bytes {
                continue;
            }
            let part = Part { bytes: to - from, ..part };
            if from == handle.home || to == handle.end() {
                let ends = self.entry(id);
                if from == handle.home {
                    ends.prefix = part;
                }
                if to == handle.end() {
                    ends.suffix = part;
                }
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

    /// The run of at least so many bytes that has been there longest, over all views.
    ///
    /// Not the tightest: a program that comes again then gets what it was given the first time, step by step,
    /// and asks the driver for nothing.
    pub(super) fn oldest_run(&self, handles: &Handles, views: &Views, bytes: u64) -> Option<Run> {
        let starts = self.iter().filter(|(_, ends)| ends.suffix.bytes > 0);
        let mut best: Option<(u64, Run)> = None;
        for (view, first) in starts.flat_map(|(id, _)| &handles.get(id).views) {
            let (id, first) = (*view, *first as usize);
            let view = views.get(id);
            // A run is as old as its last mapping, which is younger than its first.
            if best.is_some_and(|(number, _)| view.maps[first].number >= number) {
                continue;
            }
            let Some(run) = self.run_from(view, id, first, bytes) else { continue };
            let number = view.maps[run.last].number;
            if best.is_none_or(|(least, best)| (number, run.first) < (least, best.first)) {
                best = Some((number, run));
            }
        }
        best.map(|(_, run)| run)
    }

    /// The shortest run from a place of a view on that has so many bytes.
    fn run_from(&self, view: &View, id: ViewId, first: usize, bytes: u64) -> Option<Run> {
        let mut run =
            Run { view: id, first, last: first, bytes: self.get(view.maps[first].handle).suffix.bytes };
        while run.bytes < bytes {
            let before = &view.maps[first..=run.last];
            let next = view.maps.get(run.last + 1).filter(|next| next.handle != NONE)?;
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

    /// What is free at the end of a view, from which place on: the end of one handle, and whole ones.
    pub(super) fn free_end(&self, view: &View) -> Option<(usize, u64)> {
        let (mut first, mut bytes) = (view.maps.len(), 0);
        while let Some(place) = first.checked_sub(1) {
            let map = view.maps[place];
            let suffix = if map.handle == NONE { 0 } else { self.get(map.handle).suffix.bytes };
            let again = view.maps[first..].iter().any(|other| other.handle == map.handle);
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

    /// The free start of a handle, as a piece of so many bytes.
    pub(super) fn start_of(&self, handles: &Handles, id: HandleId, bytes: u64) -> Piece {
        let (handle, part) = (handles.get(id), self.get(id).prefix);
        debug_assert!(bytes <= part.bytes);
        let Part { run, joins, epoch, .. } = part;
        Piece { line: handle.line, addr: handle.home, bytes, run, joins, epoch }
    }

    /// The free end of a handle, as a piece of so many bytes.
    pub(super) fn end_of(&self, handles: &Handles, id: HandleId, bytes: u64) -> Piece {
        let (handle, part) = (handles.get(id), self.get(id).suffix);
        debug_assert!(bytes <= part.bytes);
        let Part { run, joins, epoch, .. } = part;
        Piece { line: handle.line, addr: handle.end() - bytes, bytes, run, joins, epoch }
    }

    /// The pieces of a block in a run, and its address; what is left over is the end of the last handle.
    pub(super) fn pieces(
        &self,
        handles: &Handles,
        views: &Views,
        run: &Run,
        bytes: u64,
    ) -> (Vec<Piece>, u64) {
        let view = views.get(run.view);
        let first = view.maps[run.first];
        let of_first = self.get(first.handle).suffix.bytes;
        let mut pieces = vec![self.end_of(handles, first.handle, of_first)];
        let mut rest = bytes - of_first;
        for map in &view.maps[run.first + 1..=run.last] {
            let piece = rest.min(self.get(map.handle).prefix.bytes);
            pieces.push(self.start_of(handles, map.handle, piece));
            rest -= piece;
        }
        debug_assert_eq!(rest, 0);
        (pieces, view.addr(run.first) + first.bytes - of_first)
    }
}
