//! Decompresses a file. Refuses a file that decompresses to an excessive size.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_engine::log::unpack_bytes;

/// How many bytes a file may decompress to, per byte of its compressed size. For snapshots, this ratio
/// reaches ten; for repetitive logs, a hundred.
const MOST_TIMES: u64 = 300;

/// The size in bytes that is allowed for any decompressed file.
const ALWAYS: u64 = 64 << 20;

/// The binary logarithm of the most bytes of memory for decompressing zstd. It is enough for zstd's level 19.
const ZSTD_WINDOW_LOG: u32 = 23;

/// The decompressed bytes of a file.
pub(super) struct Unpacked<'a> {
    bytes: Box<dyn Read + Send + 'a>,
    packed: Arc<AtomicU64>,
    unpacked: u64,
}

/// Counts the bytes of the compressed file.
struct Counted<R> {
    raw: R,
    count: Arc<AtomicU64>,
}

impl<'a> Unpacked<'a> {
    /// Returns the decompressed bytes of `raw`. Its first bytes show the compression: gzip, zstd or none.
    ///
    /// # Errors
    /// Returns the errors of `raw`.
    pub(super) fn new(raw: impl Read + Send + 'a) -> io::Result<Self> {
        let packed = Arc::new(AtomicU64::new(0));
        let counted = Counted { raw, count: Arc::clone(&packed) };
        Ok(Self { bytes: unpack_bytes(counted, ZSTD_WINDOW_LOG)?, packed, unpacked: 0 })
    }

    /// Takes the first `most` bytes. Takes fewer bytes if no more can be decompressed.
    ///
    /// # Errors
    /// Nothing can be decompressed.
    pub(super) fn start(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut start = vec![0; most];
        let mut count = 0;
        while count < most {
            match self.read(&mut start[count..]) {
                Ok(0) => break,
                Ok(read) => count += read,
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
        }
        start.truncate(count);
        Ok(start)
    }
}

impl Read for Unpacked<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(into)?;
        self.unpacked += count as u64;
        let packed = self.packed.load(Ordering::Relaxed);
        if self.unpacked > ALWAYS + packed.saturating_mul(MOST_TIMES) {
            let why = format!(
                "it decompresses to more than {MOST_TIMES} times its size; if you trust it, decompress it \
                 yourself"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(count)
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.raw.read(into)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_unpacks_without_end_is_refused() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let zeros = vec![0; 1 << 20];
        (0..160).for_each(|_| gzip.write_all(&zeros).unwrap());
        let packed = gzip.finish().unwrap();
        let unpacked = Unpacked::new(packed.as_slice()).unwrap();
        let error = io::copy(&mut Unpacked { ..unpacked }, &mut io::sink()).unwrap_err();
        assert!(error.to_string().contains("300 times"), "{error}");
    }
}
