//! Reads the lines of a file, which may be compressed.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::bufread::MultiGzDecoder;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The longest line of a log in bytes. Without this limit, binary data or one long compressed line could fill
/// memory.
pub(super) const MAX_LINE_BYTES: usize = 64 << 10;

const BUFFER_BYTES: usize = 128 << 10;

/// zstd's own limit for the memory of a decompressor: the binary logarithm of the bytes.
const ZSTD_WINDOW_LOG: u32 = 27;

/// The decompressed text of a log, and a flag. At the end of the text, the flag is set if the last line has
/// no line end.
pub(super) type Text<'a> = (Box<dyn Read + Send + 'a>, Arc<AtomicBool>);

/// Returns the decompressed text of a log. Its first bytes show the compression.
pub(super) fn unpack<'a>(raw: impl Read + Send + 'a) -> io::Result<Text<'a>> {
    let lines = Lines::new(unpack_bytes(raw, ZSTD_WINDOW_LOG)?);
    let is_unfinished = Arc::clone(&lines.is_unfinished);
    Ok((Box::new(lines), is_unfinished))
}

/// Returns the decompressed bytes of a file, whose first bytes show the compression. If a zstd file needs a
/// window of more than 2^`zstd_window_log` bytes, reading fails.
///
/// # Errors
/// The first bytes cannot be read.
pub fn unpack_bytes<'a>(
    raw: impl Read + Send + 'a,
    zstd_window_log: u32,
) -> io::Result<Box<dyn Read + Send + 'a>> {
    let mut raw = BufReader::with_capacity(BUFFER_BYTES, raw);
    let start = raw.fill_buf()?;
    Ok(if start.starts_with(GZIP) {
        Box::new(MultiGzDecoder::new(raw))
    } else if start.starts_with(ZSTD) {
        let mut decoder = zstd::Decoder::with_buffer(raw)?;
        decoder.window_log_max(zstd_window_log)?;
        Box::new(decoder)
    } else {
        Box::new(raw)
    })
}

/// The lines of a text. If a line has more than 64 KiB, reading fails with [`io::ErrorKind::FileTooLarge`].
/// If the last line has no line end, it gets one.
#[derive(Debug)]
pub struct Lines<R> {
    text: R,
    /// The number of bytes of the last line that were read so far.
    open_bytes: usize,
    at_line_end: bool,
    /// Whether the text ended within a line.
    is_unfinished: Arc<AtomicBool>,
}

impl<R> Lines<R> {
    /// Wraps `text`.
    pub fn new(text: R) -> Self {
        Self { text, open_bytes: 0, at_line_end: true, is_unfinished: Arc::default() }
    }
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(MAX_LINE_BYTES);
        if wanted == 0 {
            return Ok(0);
        }
        let count = self.text.read(&mut buffer[..wanted])?;
        if count == 0 {
            let missing = usize::from(!self.at_line_end);
            buffer[..missing].fill(b'\n');
            self.is_unfinished.fetch_or(missing > 0, Ordering::Relaxed);
            self.at_line_end = true;
            return Ok(missing);
        }
        // Between two line ends in one buffer there are fewer bytes than the limit, because `wanted` is
        // at most that limit.
        let first_end = memchr::memchr(b'\n', &buffer[..count]);
        if self.open_bytes + first_end.unwrap_or(count) > MAX_LINE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a line is longer than 64 KiB"));
        }
        self.open_bytes = match memchr::memrchr(b'\n', &buffer[..count]) {
            Some(last_end) => count - last_end - 1,
            None => self.open_bytes + count,
        };
        self.at_line_end = self.open_bytes == 0;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        unpack(bytes)?.0.read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn packings_are_known_by_their_first_bytes() {
        let text = b"a line\nanother\n".repeat(1000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut gzip, &text).unwrap();
        assert_eq!(read(&text).unwrap(), text);
        assert_eq!(read(&gzip.finish().unwrap()).unwrap(), text);
        assert_eq!(read(&zstd::encode_all(&text[..], 1).unwrap()).unwrap(), text);
    }

    #[test]
    fn long_lines_are_refused_wherever_they_start() {
        let ok = [vec![b'x'; MAX_LINE_BYTES - 1], b"\n".to_vec()].concat();
        assert_eq!(read(&ok.repeat(3)).unwrap().len(), 3 * MAX_LINE_BYTES);
        let long = [vec![b'x'; MAX_LINE_BYTES + 1], b"\n".to_vec()].concat();
        assert!(read(&long).is_err());
        assert!(read(&[b"short\n".to_vec(), long].concat()).is_err());
        assert!(read(&vec![0; 10 * MAX_LINE_BYTES]).is_err());
    }
}
