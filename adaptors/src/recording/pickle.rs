//! Writes Python's pickle format, as far as plain data needs it: protocol 2, which every reader knows.

use rustc_hash::FxHashMap;

/// The most items that one opcode appends. PyTorch's viewer passes them to a function of JavaScript, which
/// takes about 100,000 arguments.
const BATCH: usize = 1000;

/// A value that was written before, and is named by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Memo(u32);

/// A pickle in the making.
#[derive(Debug)]
pub(super) struct Pickle {
    bytes: Vec<u8>,
    texts: FxHashMap<String, Memo>,
    memos: u32,
    /// For each open list: the items since its last batch.
    counts: Vec<usize>,
}

impl Pickle {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0x80, 2], texts: FxHashMap::default(), memos: 0, counts: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    /// Lets later places name the value that was written last.
    pub(super) fn remember(&mut self) -> Memo {
        let memo = self.memos;
        self.memos += 1;
        match u8::try_from(memo) {
            Ok(memo) => self.bytes.extend([b'q', memo]),
            Err(_) => {
                self.bytes.push(b'r');
                self.bytes.extend(memo.to_le_bytes());
            }
        }
        Memo(memo)
    }

    pub(super) fn again(&mut self, Memo(memo): Memo) {
        match u8::try_from(memo) {
            Ok(memo) => self.bytes.extend([b'h', memo]),
            Err(_) => {
                self.bytes.push(b'j');
                self.bytes.extend(memo.to_le_bytes());
            }
        }
    }

    /// Writes a text. Only its first place has its bytes.
    pub(super) fn text(&mut self, text: &str) {
        if let Some(memo) = self.texts.get(text) {
            return self.again(*memo);
        }
        // A text of 4 GiB is no name of a file or function.
        let end = (0..=text.len().min(1 << 16)).rev().find(|at| text.is_char_boundary(*at));
        let kept = &text[..end.unwrap_or(0)];
        self.bytes.push(b'X');
        self.bytes.extend((kept.len() as u32).to_le_bytes());
        self.bytes.extend(kept.as_bytes());
        let memo = self.remember();
        self.texts.insert(text.to_owned(), memo);
    }

    pub(super) fn int(&mut self, number: u64) {
        if let Ok(number) = u8::try_from(number) {
            self.bytes.extend([b'K', number]);
        } else if let Ok(number) = u16::try_from(number) {
            self.bytes.push(b'M');
            self.bytes.extend(number.to_le_bytes());
        } else if let Ok(number) = i32::try_from(number) {
            self.bytes.push(b'J');
            self.bytes.extend(number.to_le_bytes());
        } else {
            // The highest bit is the sign, so a number may need a ninth byte.
            let len = (u64::BITS - number.leading_zeros()) as usize / 8 + 1;
            self.bytes.extend([0x8a, len as u8]);
            self.bytes.extend(&u128::from(number).to_le_bytes()[..len]);
        }
    }

    /// Writes -1, for "none".
    pub(super) fn minus_one(&mut self) {
        self.bytes.extend([b'J', 0xff, 0xff, 0xff, 0xff]);
    }

    pub(super) fn float(&mut self, number: f64) {
        self.bytes.push(b'G');
        self.bytes.extend(number.to_be_bytes());
    }

    pub(super) fn bool(&mut self, is_true: bool) {
        self.bytes.push(if is_true { 0x88 } else { 0x89 });
    }

    /// Writes a pair of numbers.
    pub(super) fn pair(&mut self, one: u64, other: u64) {
        self.int(one);
        self.int(other);
        self.bytes.push(0x86);
    }

    pub(super) fn list_begin(&mut self) {
        self.bytes.extend([b']', b'(']);
        self.counts.push(0);
    }

    /// Ends an item of a list.
    pub(super) fn item(&mut self) {
        let count = self.counts.last_mut().expect("an item is in a list");
        *count += 1;
        if *count == BATCH {
            *count = 0;
            self.bytes.extend([b'e', b'(']);
        }
    }

    pub(super) fn list_end(&mut self) {
        self.counts.pop();
        self.bytes.push(b'e');
    }

    pub(super) fn dict_begin(&mut self) {
        self.bytes.extend([b'}', b'(']);
    }

    /// Writes a key of a dictionary. Its value comes next.
    pub(super) fn key(&mut self, key: &str) -> &mut Self {
        self.text(key);
        self
    }

    pub(super) fn dict_end(&mut self) {
        self.bytes.push(b'u');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_shortest_form() {
        for (number, bytes) in [
            (0, &b"K\x00"[..]),
            (255, b"K\xff"),
            (256, b"M\x00\x01"),
            (65_536, b"J\x00\x00\x01\x00"),
            (1 << 31, b"\x8a\x05\x00\x00\x00\x80\x00"),
            (1 << 40, b"\x8a\x06\x00\x00\x00\x00\x00\x01"),
            (u64::MAX, b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00"),
        ] {
            let mut pickle = Pickle::new();
            pickle.int(number);
            assert_eq!(&pickle.finish()[2..], [bytes, b"."].concat(), "{number}");
        }
    }

    #[test]
    fn a_text_is_written_once_and_lists_in_batches() {
        let mut pickle = Pickle::new();
        pickle.list_begin();
        for _ in 0..2001 {
            pickle.text("alloc");
            pickle.item();
        }
        pickle.list_end();
        let bytes = pickle.finish();
        assert_eq!(bytes.windows(5).filter(|it| it == b"alloc").count(), 1);
        assert_eq!(bytes.iter().filter(|byte| **byte == b'e').count(), 3);
    }
}
