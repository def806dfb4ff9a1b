//! Packs columns of numbers into text: deflated, then in base64.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Serialize;

/// The place of a column in the unpacked bytes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Column {
    name: String,
    /// `u32` or `f64`, little-endian.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The offset in bytes; a multiple of 8.
    offset: usize,
    /// The length in numbers.
    length: usize,
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

    pub(super) fn u32s(&mut self, name: &str, values: impl Iterator<Item = u32>) -> io::Result<Column> {
        self.column(name, "u32", values.map(u32::to_le_bytes))
    }

    pub(super) fn f64s(&mut self, name: &str, values: impl Iterator<Item = f64>) -> io::Result<Column> {
        self.column(name, "f64", values.map(f64::to_le_bytes))
    }

    fn column<const N: usize>(
        &mut self,
        name: &str,
        kind: &'static str,
        values: impl Iterator<Item = [u8; N]>,
    ) -> io::Result<Column> {
        let (offset, mut length) = (self.bytes, 0);
        for value in values {
            self.packed.write_all(&value)?;
            length += 1;
        }
        let end = offset + length * N;
        self.bytes = end.next_multiple_of(8);
        self.packed.write_all(&[0; 8][..self.bytes - end])?;
        Ok(Column { name: name.to_owned(), kind, offset, length })
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
    fn columns_start_at_multiples_of_eight_and_come_back() {
        let mut pack = Pack::new();
        let first = pack.u32s("a", [1, 2, 3].into_iter()).unwrap();
        let second = pack.f64s("b", [0.5].into_iter()).unwrap();
        assert_eq!((first.offset, first.length, second.offset, second.length), (0, 3, 16, 1));
        let packed = pack.packed.finish().unwrap();
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut flate2::read::ZlibDecoder::new(&packed[..]), &mut bytes).unwrap();
        assert_eq!(bytes.len(), 24);
        assert_eq!((&bytes[4..8], &bytes[16..]), (&2_u32.to_le_bytes()[..], &0.5_f64.to_le_bytes()[..]));
    }
}
