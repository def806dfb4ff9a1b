//! The contents of simulated memory.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::runs::RunMap;

const PAGE: u64 = 64 << 10;

/// The value of every byte of fresh device memory.
pub(crate) const POISON: u8 = 0xa5;

/// The part of a range that lies in one piece of physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// The physical address, which is the key for history and tags.
    pub(crate) physical: u64,
    pub(crate) bytes: u64,
    /// The real memory behind it, for managed and pinned memory; 0 for device memory.
    pub(crate) host: usize,
    /// The start of the mapping that was used, if the memory may have several; otherwise 0.
    pub(crate) via: u64,
}

impl Piece {
    pub(crate) const fn range(&self) -> Range<u64> {
        self.physical..self.physical + self.bytes
    }

    /// Removes the first `bytes` bytes.
    pub(crate) const fn advance(&mut self, bytes: u64) {
        self.physical += bytes;
        self.bytes -= bytes;
        if self.host != 0 {
            self.host += bytes as usize;
        }
    }
}

/// The parts of one range, in order; nearly always only one.
pub(crate) type Pieces = SmallVec<[Piece; 1]>;

/// The bytes behind physical memory.
///
/// A range with one pattern (a kernel's tag, or a fill) is kept as a run of that pattern. Other bytes are
/// kept in pages of 64 KiB, allocated on the first write. All remaining bytes are poison. In memory that the
/// host can see, fills and copies write the real bytes, but tags stay in their runs.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pages: BTreeMap<u64, Box<[u8]>>,
    patterns: RunMap<u64>,
}

/// The pattern of eight equal bytes.
pub(crate) const fn pattern_of(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

impl Contents {
    /// Removes the contents of physical memory that ends.
    pub(crate) fn forget(&mut self, range: Range<u64>) {
        self.patterns.remove(range.clone());
        let pages = range.start.div_ceil(PAGE)..range.end.div_ceil(PAGE);
        if self.pages.is_empty() {
            return;
        }
        while let Some((&page, _)) = self.pages.range(pages.clone()).next() {
            self.pages.remove(&page);
        }
    }

    /// Fills with a pattern, in phase with the physical address.
    pub(crate) fn write_pattern(&mut self, piece: &Piece, pattern: u64) {
        self.patterns.replace(piece.range(), pattern);
    }

    /// Fills with a byte.
    pub(crate) fn fill(&mut self, piece: &Piece, value: u8) {
        if piece.host == 0 {
            self.write_pattern(piece, pattern_of(value));
        } else {
            self.patterns.remove(piece.range());
            // SAFETY: `host` is live managed or pinned memory of at least `bytes` bytes. Freeing it first
            // finishes all work. The caller of `mem_host_register` vouched that registered memory is valid
            // until then.
            unsafe { host_pointer(piece.host).write_bytes(value, piece.bytes as usize) }
        }
    }

    /// Writes bytes at `offset` of a piece.
    pub(crate) fn write(&mut self, piece: &Piece, offset: u64, bytes: &[u8]) {
        let start = piece.physical + offset;
        self.patterns.remove(start..start + bytes.len() as u64);
        if piece.host != 0 {
            let target = host_pointer(piece.host + offset as usize);
            // SAFETY: as in `fill`. `copy` allows the source to be the same memory.
            unsafe { target.copy_from(bytes.as_ptr(), bytes.len()) }
            return;
        }
        for_pages(start, bytes.len(), |page, inside, part| {
            let memory =
                self.pages.entry(page).or_insert_with(|| vec![POISON; PAGE as usize].into_boxed_slice());
            memory[inside..inside + part.len()].copy_from_slice(&bytes[part]);
        });
    }

    /// Reads bytes at `offset` of a piece.
    pub(crate) fn read(&self, piece: &Piece, offset: u64, bytes: &mut [u8]) {
        let start = piece.physical + offset;
        if piece.host != 0 {
            let source = host_pointer(piece.host + offset as usize);
            // SAFETY: as in `fill`; only this function uses `bytes`, so the two do not overlap.
            unsafe { source.copy_to(bytes.as_mut_ptr(), bytes.len()) }
        } else {
            for_pages(start, bytes.len(), |page, inside, part| match self.pages.get(&page) {
                Some(memory) => bytes[part.clone()].copy_from_slice(&memory[inside..inside + part.len()]),
                None => bytes[part].fill(POISON),
            });
        }
        let end = start + bytes.len() as u64;
        for (run, pattern) in self.patterns.overlapping(start..end) {
            for at in run.start.max(start)..run.end.min(end) {
                bytes[(at - start) as usize] = pattern.to_le_bytes()[(at % 8) as usize];
            }
        }
    }

    /// Copies between pieces of the same size.
    pub(crate) fn copy(&mut self, source: &Piece, target: &Piece) {
        let mut buffer = vec![0; source.bytes.min(PAGE) as usize];
        let mut offset = 0;
        while offset < source.bytes {
            let size = (source.bytes - offset).min(PAGE);
            let at = source.physical + offset;
            match self.pattern_at(source, at..at + size) {
                Some((pattern, length)) if target.host == 0 => {
                    // Long runs stay runs. A shifted copy shifts the pattern's phase.
                    let length = length.min(source.bytes - offset);
                    let start = target.physical + offset;
                    let turned = pattern.rotate_left(8 * (start.wrapping_sub(at) % 8) as u32);
                    self.patterns.replace(start..start + length, turned);
                    offset += length;
                }
                _ => {
                    self.read(source, offset, &mut buffer[..size as usize]);
                    self.write(target, offset, &buffer[..size as usize]);
                    offset += size;
                }
            }
        }
    }

    /// The pattern of `range` if it has only one, and how many bytes it covers from the start of `range`.
    fn pattern_at(&self, piece: &Piece, range: Range<u64>) -> Option<(u64, u64)> {
        match self.patterns.overlapping(range.clone()).next() {
            Some((run, pattern)) => {
                (run.start <= range.start && run.end >= range.end).then(|| (*pattern, run.end - range.start))
            }
            None if piece.host == 0 => {
                let pattern = self.patterns.overlapping(range.start..u64::MAX).next();
                let page = self.pages.range(range.start / PAGE..).next();
                let end = pattern
                    .map_or(u64::MAX, |(run, _)| run.start)
                    .min(page.map_or(u64::MAX, |(p, _)| p * PAGE));
                (end >= range.end).then(|| (pattern_of(POISON), end - range.start))
            }
            None => None,
        }
    }

    /// Compares the whole piece with the pattern; returns the first bytes that differ, and their offset.
    pub(crate) fn check(&self, piece: &Piece, pattern: u64) -> Result<(), (u64, u64)> {
        let mut at = piece.physical;
        for (run, found) in self.patterns.overlapping(piece.range()) {
            self.check_bytes(piece, at..run.start.max(at), pattern)?;
            if *found != pattern {
                return Err((run.start.max(at) - piece.physical, *found));
            }
            at = run.end;
        }
        self.check_bytes(piece, at..piece.range().end.max(at), pattern)
    }

    fn check_bytes(&self, piece: &Piece, range: Range<u64>, pattern: u64) -> Result<(), (u64, u64)> {
        if range.is_empty() {
            return Ok(());
        }
        let mut at = range.start;
        let mut buffer = [0; 4096];
        while at < range.end {
            let size = (range.end - at).min(buffer.len() as u64);
            let bytes = &mut buffer[..size as usize];
            self.read(piece, at - piece.physical, bytes);
            let wrong =
                (at..).zip(&*bytes).find(|(at, byte)| **byte != pattern.to_le_bytes()[(at % 8) as usize]);
            if let Some((wrong, _)) = wrong {
                let first = (wrong - at) as usize & !7;
                let mut found = [0; 8];
                let shown = bytes.len().min(first + 8) - first;
                found[..shown].copy_from_slice(&bytes[first..first + shown]);
                return Err((wrong - piece.physical, u64::from_le_bytes(found)));
            }
            at += size;
        }
        Ok(())
    }

    /// The bytes of host memory that hold the contents.
    pub(crate) fn committed_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }
}

fn host_pointer(address: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Splits `bytes` bytes from `start` at page boundaries. Yields the page, the offset in it, and the part's
/// range.
fn for_pages(start: u64, bytes: usize, mut each: impl FnMut(u64, usize, Range<usize>)) {
    let mut done = 0;
    while done < bytes {
        let at = start + done as u64;
        let inside = at % PAGE;
        let size = ((PAGE - inside) as usize).min(bytes - done);
        each(at / PAGE, inside as usize, done..done + size);
        done += size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::model::rng::Rng;

    fn piece(physical: u64, bytes: u64) -> Piece {
        Piece { physical, bytes, host: 0, via: 0 }
    }

    /// The naive model: one byte for each address.
    #[test]
    fn agrees_with_plain_bytes() {
        const LENGTH: u64 = 3 * PAGE;
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut contents = Contents::default();
            let mut model = vec![POISON; LENGTH as usize];
            for _ in 0..200 {
                let a = rng.below(LENGTH - 1);
                let most = 1 << (1 + rng.below(17));
                let bytes = 1 + rng.below((LENGTH - a).min(most));
                let here = piece(a, bytes);
                let part = a as usize..(a + bytes) as usize;
                match rng.below(5) {
                    0 => {
                        let tag = rng.next();
                        contents.write_pattern(&here, tag);
                        for at in part {
                            model[at] = tag.to_le_bytes()[at % 8];
                        }
                    }
                    1 => {
                        let value = rng.below(256) as u8;
                        contents.fill(&here, value);
                        model[part].fill(value);
                    }
                    2 => {
                        let data: Vec<u8> = (0..bytes).map(|_| rng.below(256) as u8).collect();
                        contents.write(&here, 0, &data);
                        model[part].copy_from_slice(&data);
                    }
                    3 => {
                        let to = rng.below(LENGTH - bytes + 1);
                        if to.abs_diff(a) >= bytes {
                            contents.copy(&here, &piece(to, bytes));
                            model.copy_within(part, to as usize);
                        }
                    }
                    _ => {
                        let tag = rng.next();
                        let right = model[part]
                            .iter()
                            .zip(a..)
                            .all(|(b, at)| *b == tag.to_le_bytes()[(at % 8) as usize]);
                        assert_eq!(contents.check(&here, tag).is_ok(), right);
                    }
                }
                let mut read = vec![0; bytes as usize];
                contents.read(&here, 0, &mut read);
                assert_eq!(read, &model[a as usize..(a + bytes) as usize], "seed {seed}");
            }
        }
    }

    #[test]
    fn a_check_names_the_first_wrong_bytes() {
        let mut contents = Contents::default();
        let block = piece(4096, 1024);
        assert_eq!(contents.check(&block, 7), Err((0, pattern_of(POISON))));
        contents.write_pattern(&block, 7);
        assert_eq!(contents.check(&block, 7), Ok(()));
        contents.write_pattern(&piece(4096 + 256, 256), 9);
        assert_eq!(contents.check(&block, 7), Err((256, 9)));
        contents.write(&block, 256, &7_u64.to_le_bytes().repeat(32));
        assert_eq!(contents.check(&block, 7), Ok(()), "equal bytes are equal, however they are stored");
        contents.write(&block, 1000, &[1]);
        assert_eq!(contents.check(&block, 7), Err((1000, 1)));
    }

    #[test]
    fn fills_and_untouched_copies_commit_nothing() {
        let mut contents = Contents::default();
        contents.fill(&piece(0, 1 << 40), 3);
        contents.copy(&piece(0, 1 << 39), &piece(1 << 41, 1 << 39));
        contents.copy(&piece(1 << 42, 1 << 20), &piece(1 << 43, 1 << 20));
        assert_eq!(contents.committed_bytes(), 0);
        assert_eq!(contents.check(&piece(1 << 41, 1 << 39), pattern_of(3)), Ok(()));
        contents.write(&piece(5, 1), 0, &[1]);
        assert_eq!(contents.committed_bytes(), PAGE);
        contents.forget(0..PAGE);
        assert_eq!(contents.committed_bytes(), 0);
    }
}
