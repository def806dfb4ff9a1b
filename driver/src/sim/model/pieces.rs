//! The chunks that a simulated driver pool takes from its device, and their free pieces, found by place and
//! by size.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::clock::Epoch;

/// Pooled memory is rounded up to multiples of this many bytes.
pub(crate) const UNIT: u64 = 512;

/// The fewest bytes that a pool takes from a large device at once, as in CUDA on an H200.
const CHUNK: u64 = 32 << 20;
/// A pool takes at most one part in this many of a small device at once.
const CHUNK_SHARE: u64 = 32;
/// Larger chunks are a multiple of this many bytes: the driver's page.
const PAGE: u64 = 2 << 20;

/// Memory that a pool took from the device or the host at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) physical: u64,
    /// The real address behind it, for memory that the host can see; otherwise 0.
    pub(crate) host: usize,
}

/// A free piece of a chunk: its start, its size, and the epoch from which it is free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) chunk: Chunk,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) freed: Epoch,
}

impl Chunk {
    /// The whole chunk, free from the start.
    pub(crate) fn piece(self) -> Piece {
        Piece { chunk: self, start: self.start, bytes: self.bytes, freed: Epoch::new(0, 0) }
    }

    /// The size of the chunk to take for a request.
    pub(crate) fn bytes_for(size: u64, capacity: u64) -> u64 {
        let least = CHUNK.min(capacity / CHUNK_SHARE);
        if size < least {
            least
        } else {
            size.checked_next_multiple_of(PAGE.min(least.max(UNIT))).unwrap_or(size)
        }
    }
}

impl Piece {
    pub(crate) const fn physical(&self) -> u64 {
        self.chunk.physical + (self.start - self.chunk.start)
    }

    /// The real address behind the piece; 0 if there is none.
    pub(crate) const fn host(&self) -> usize {
        if self.chunk.host == 0 { 0 } else { self.chunk.host + (self.start - self.chunk.start) as usize }
    }

    /// Whether the piece was never handed out, or may now go to any stream.
    pub(crate) fn is_fresh(&self) -> bool {
        self.freed.tick() == 0
    }

    pub(crate) const fn is_whole_chunk(&self) -> bool {
        self.bytes == self.chunk.bytes
    }

    /// Joins both pieces, if the second follows in the same chunk and both were freed on the same stream or
    /// are done.
    pub(crate) fn joined_with(&self, next: &Self, is_done: &impl Fn(Epoch) -> bool) -> Option<Self> {
        if self.chunk.start != next.chunk.start || self.start + self.bytes != next.start {
            return None;
        }
        let freed = if is_done(self.freed) && is_done(next.freed) {
            Epoch::new(0, 0)
        } else if self.freed.slot() == next.freed.slot() {
            if self.freed.tick() > next.freed.tick() { self.freed } else { next.freed }
        } else {
            return None;
        };
        Some(Self { bytes: self.bytes + next.bytes, freed, ..*self })
    }
}

/// The free pieces of one pool, which do not overlap.
#[derive(Debug, Default)]
pub(crate) struct FreePieces {
    /// By start, each with the number of its insertion. Each allocation and free changes it, and few calls
    /// need the order.
    by_start: FxHashMap<u64, (Piece, u64)>,
    /// The start of each piece, by its end.
    by_end: FxHashMap<u64, u64>,
    /// Size, insertion number, start.
    by_size: BTreeSet<(u64, Reverse<u64>, u64)>,
    insertions: u64,
}

impl FreePieces {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// The pieces, in the order of their starts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Piece> {
        let mut pieces: Vec<&Piece> = self.by_start.values().map(|(piece, _)| piece).collect();
        pieces.sort_unstable_by_key(|piece| piece.start);
        pieces.into_iter()
    }

    pub(crate) fn insert(&mut self, piece: Piece) {
        self.insertions += 1;
        self.by_start.insert(piece.start, (piece, self.insertions));
        self.by_end.insert(piece.start + piece.bytes, piece.start);
        self.by_size.insert((piece.bytes, Reverse(self.insertions), piece.start));
    }

    fn remove(&mut self, start: u64) -> Option<Piece> {
        let (piece, insertion) = self.by_start.remove(&start)?;
        self.by_end.remove(&(start + piece.bytes));
        self.by_size.remove(&(piece.bytes, Reverse(insertion), start));
        Some(piece)
    }

    /// Takes the first bytes of the smallest usable piece that fits; of equal ones, the one inserted last.
    /// The rest of the piece stays.
    pub(crate) fn take(&mut self, bytes: u64, may: impl Fn(&Piece) -> bool) -> Option<Piece> {
        let fitting = self.by_size.range((bytes, Reverse(u64::MAX), 0)..);
        let start = fitting.map(|(_, _, start)| *start).find(|start| may(&self.by_start[start].0))?;
        let piece = self.remove(start)?;
        if piece.bytes > bytes {
            self.insert(Piece { start: piece.start + bytes, bytes: piece.bytes - bytes, ..piece });
        }
        Some(Piece { bytes, ..piece })
    }

    /// Keeps a returned piece, joined with its neighbours.
    pub(crate) fn put(&mut self, mut piece: Piece, is_done: impl Fn(Epoch) -> bool) {
        let before = self.by_end.get(&piece.start).map(|start| self.by_start[start].0);
        if let Some(before) = before
            && let Some(joined) = before.joined_with(&piece, &is_done)
        {
            self.remove(before.start);
            piece = joined;
        }
        let after = self.by_start.get(&(piece.start + piece.bytes)).map(|(after, _)| *after);
        if let Some(after) = after
            && let Some(joined) = piece.joined_with(&after, &is_done)
        {
            self.remove(after.start);
            piece = joined;
        }
        self.insert(piece);
    }

    /// Joins all neighbours that are done by now; returns whether there were any.
    pub(crate) fn join(&mut self, is_done: impl Fn(Epoch) -> bool) -> bool {
        let before = self.by_start.len();
        let mut last: Option<Piece> = None;
        for piece in self.iter().copied().collect::<Vec<_>>() {
            let joined = last.and_then(|last| last.joined_with(&piece, &is_done));
            if let (Some(last), Some(joined)) = (last, joined) {
                self.remove(last.start);
                self.remove(piece.start);
                self.insert(joined);
            }
            last = Some(joined.unwrap_or(piece));
        }
        self.by_start.len() < before
    }

    /// Keeps the pieces that `keep` selects.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Piece) -> bool) {
        for piece in self.iter().copied().collect::<Vec<_>>() {
            if !keep(&piece) {
                self.remove(piece.start);
            }
        }
    }
}
