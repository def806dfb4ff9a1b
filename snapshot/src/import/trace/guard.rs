//! Bounds the data that a JSON parser may have to keep: the length of a text, and the depth of nested values.

use std::io::{self, Read};

/// The longest text in bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The deepest nesting.
const MAX_DEPTH: usize = 100;

/// A JSON text in which the length of texts and the depth are bounded.
pub(super) struct Guard<R> {
    source: R,
    depth: usize,
    /// The length of the current text so far; `None` outside of texts.
    text: Option<usize>,
    is_escaped: bool,
}

impl<R> Guard<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, depth: 0, text: None, is_escaped: false }
    }

    fn take(&mut self, byte: u8) -> Result<(), &'static str> {
        match &mut self.text {
            Some(_) if std::mem::take(&mut self.is_escaped) => {}
            Some(_) if byte == b'"' => self.text = None,
            Some(length) => {
                self.is_escaped = byte == b'\\';
                *length += 1;
                if *length > MAX_TEXT_BYTES {
                    return Err("holds a text of more than 1 MiB");
                }
            }
            None => match byte {
                b'"' => self.text = Some(0),
                b'{' | b'[' => {
                    self.depth += 1;
                    if self.depth > MAX_DEPTH {
                        return Err("nests more than 100 values in each other");
                    }
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            },
        }
        Ok(())
    }
}

impl<R: Read> Read for Guard<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(into)?;
        for &byte in &into[..count] {
            self.take(byte).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
        }
        Ok(count)
    }
}
