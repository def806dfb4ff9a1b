//! Reads a file byte by byte, and counts the bytes.

use std::io::{self, Read};

/// The number of bytes that are read ahead.
const BUFFER_BYTES: usize = 64 << 10;

/// A reader that knows its position.
pub(crate) struct Bytes<'a> {
    source: Box<dyn Read + 'a>,
    buffer: Vec<u8>,
    at: usize,
    /// The number of bytes that were read before the buffer's bytes.
    before: u64,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(source: Box<dyn Read + 'a>) -> Self {
        Self { source, buffer: Vec::new(), at: 0, before: 0 }
    }

    /// Returns the number of bytes that the caller has taken.
    pub(crate) fn offset(&self) -> u64 {
        self.before + self.at as u64
    }

    /// Returns the next byte; `None` at the end of the source.
    ///
    /// # Errors
    /// The source cannot be read.
    #[inline]
    pub(crate) fn next(&mut self) -> io::Result<Option<u8>> {
        if self.at == self.buffer.len() && self.fill()? == 0 {
            return Ok(None);
        }
        self.at += 1;
        Ok(Some(self.buffer[self.at - 1]))
    }

    /// Fills `into`, and returns the number of bytes. The number is smaller than the buffer only at the end
    /// of the source.
    ///
    /// # Errors
    /// The source cannot be read.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < into.len() {
            if self.at == self.buffer.len() && self.fill()? == 0 {
                break;
            }
            let count = (self.buffer.len() - self.at).min(into.len() - taken);
            into[taken..taken + count].copy_from_slice(&self.buffer[self.at..self.at + count]);
            (self.at, taken) = (self.at + count, taken + count);
        }
        Ok(taken)
    }

    fn fill(&mut self) -> io::Result<usize> {
        self.before += self.buffer.len() as u64;
        self.at = 0;
        refill(&mut self.source, &mut self.buffer, BUFFER_BYTES)
    }
}

/// Reads at most `bytes` into a buffer, which loses its previous contents. Returns the number of bytes read;
/// 0 at the end of the source.
///
/// # Errors
/// The source cannot be read. In this case, the buffer is empty.
pub(super) fn refill(source: &mut impl Read, buffer: &mut Vec<u8>, bytes: usize) -> io::Result<usize> {
    buffer.resize(bytes, 0);
    let read = loop {
        match source.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other,
        }
    };
    buffer.truncate(*read.as_ref().unwrap_or(&0));
    read
}

impl Read for Bytes<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.take(into)
    }
}
