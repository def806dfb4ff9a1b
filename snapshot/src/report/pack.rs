//! Packs columns of numbers into text. The bytes of equal weight are put together, compressed with deflate,
//! and encoded in base64.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;

/// The largest number that a column can hold. JavaScript's numbers are exact up to this number.
const MOST: u64 = (1 << 53) - 1;

/// Where a column lies in the unpacked bytes. The bytes are divided into `width` planes, and a number of
/// `width` bytes has one byte in each plane. The plane of the lowest bytes comes first.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Column {
    name: String,
    /// The offset of the column in bytes.
    offset: usize,
    /// How many numbers the column has.
    length: usize,
    /// The bytes of each number, from 1 to 7.
    width: usize,
    /// Whether the numbers are the differences to the previous numbers.
    steps: bool,
}

/// A sequence of columns.
#[derive(Debug)]
pub(super) struct Pack {
    bytes: usize,
    packed: ZlibEncoder<Vec<u8>>,
}

impl Pack {
    pub(super) fn new() -> Self {
        Self { bytes: 0, packed: ZlibEncoder::new(Vec::new(), Compression::default()) }
    }

    /// Adds a column. Numbers that are too large for JavaScript become the largest exact number.
    pub(super) fn numbers(
        &mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = u64>,
    ) -> io::Result<Column> {
        self.column(name.into(), &values.into_iter().collect::<Vec<u64>>(), false)
    }

    /// Adds a column of numbers that never decrease, as differences.
    pub(super) fn rising(
        &mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = u64>,
    ) -> io::Result<Column> {
        let mut last = 0;
        let step = |value: u64| {
            let step = value.saturating_sub(last);
            last = last.max(value);
            step
        };
        self.column(name.into(), &values.into_iter().map(step).collect::<Vec<u64>>(), true)
    }

    fn column(&mut self, name: String, values: &[u64], steps: bool) -> io::Result<Column> {
        let most = values.iter().copied().max().unwrap_or(0).min(MOST);
        let width = (u64::BITS - most.leading_zeros()).div_ceil(8).max(1) as usize;
        for plane in 0..width {
            let bytes: Vec<u8> =
                values.iter().map(|value| ((*value).min(MOST) >> (8 * plane)) as u8).collect();
            self.packed.write_all(&bytes)?;
        }
        let (offset, length) = (self.bytes, values.len());
        self.bytes += length * width;
        Ok(Column { name, offset, length, width, steps })
    }

    /// Returns all columns as base64.
    pub(super) fn base64(self) -> io::Result<String> {
        Ok(base64(&self.packed.finish()?))
    }
}

/// Encodes bytes as padded base64.
pub(super) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(group.get(at).copied().unwrap_or(0)));
        let bits = a << 16 | b << 8 | c;
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) & 63;
            let is_padding = digit > group.len() as u32;
            text.push(if is_padding { '=' } else { char::from(DIGITS[value as usize]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_the_vectors_of_its_standard() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }

    #[test]
    fn columns_are_planes_of_bytes_and_come_back() {
        let mut pack = Pack::new();
        let first = pack.numbers("a", [1, 0x203, 3]).unwrap();
        let second = pack.rising("b", [5, 5, 300]).unwrap();
        let third = pack.numbers("c", [u64::MAX]).unwrap();
        assert_eq!((first.offset, first.length, first.width, first.steps), (0, 3, 2, false));
        assert_eq!((second.offset, second.length, second.width, second.steps), (6, 3, 2, true));
        assert_eq!((third.offset, third.length, third.width), (12, 1, 7));
        let packed = pack.packed.finish().unwrap();
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(&packed[..]), &mut bytes).unwrap();
        assert_eq!(bytes[..6], [1, 3, 3, 0, 2, 0]);
        assert_eq!(bytes[6..12], [5, 0, 295_u16.to_le_bytes()[0], 0, 0, 1]);
        assert_eq!(bytes[12..], [255, 255, 255, 255, 255, 255, 31]);
    }
}
