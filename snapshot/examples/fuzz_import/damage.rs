//! Damages files at random.

/// A pseudo-random sequence of numbers, by splitmix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `bound`; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % (bound as u64).max(1)) as usize
    }
}

/// Opcodes of pickles that make, keep or end something, and other bytes that matter.
const INTERESTING: &[u8] =
    b"(.]})eaustld\x85\x86\x87\x94\x95\x8a\x8b\x8c\x8d\x80qrhjXKMJGN\x88\x89cR\x93\x00\x7f\xff,;%\n";

/// Returns one of the files, or a start of it, with some damage.
pub(crate) fn file(files: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let Some(file) = files.get(random.below(files.len())) else { return Vec::new() };
    let mut bytes = file.clone();
    for _ in 0..=random.below(8) {
        let (at, len) = (random.below(bytes.len()), 1 + random.below(64));
        let end = (at + len).min(bytes.len());
        match random.below(8) {
            _ if bytes.is_empty() => bytes.push(random.next() as u8),
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 | 3 => bytes[at] = INTERESTING[random.below(INTERESTING.len())],
            4 => drop(bytes.drain(at..end)),
            5 => {
                let copied = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copied);
            }
            6 => {
                let byte = INTERESTING[random.below(INTERESTING.len())];
                bytes.splice(at..at, vec![byte; 1 << random.below(17)]);
            }
            _ if random.below(4) == 0 => bytes.truncate(at),
            _ => {}
        }
    }
    bytes
}
