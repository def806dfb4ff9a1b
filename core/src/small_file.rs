//! Reads text files that people write, such as profiles and budgets.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The most bytes that are read. A typical file has some kilobytes.
const MOST_BYTES: u64 = 1 << 20;

/// Reads a text file of at most 1 MiB.
///
/// # Errors
/// The system's errors; [`InvalidData`](io::ErrorKind::InvalidData) if the file is not UTF-8 text;
/// [`FileTooLarge`](io::ErrorKind::FileTooLarge) if it has more bytes, or no end, as some devices have.
///
/// ```
/// assert!(millpond_core::small_file::read("Cargo.toml".as_ref())?.contains("[package]"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read(path: &Path) -> io::Result<String> {
    read_from(File::open(path)?)
}

/// Reads a text of at most 1 MiB, as from the standard input.
///
/// # Errors
/// The errors of [`read`].
pub fn read_from(source: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    source.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it has more than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_an_end_and_is_text() {
        let path = std::env::temp_dir().join(format!("millpond-small-{}", std::process::id()));
        let read_back = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read(&path)
        };
        let most = vec![b'a'; MOST_BYTES as usize];
        assert_eq!(read_back(&most).unwrap().len(), most.len());
        let error = read_back(&[&most[..], b"a"].concat()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_back(b"\xff").unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        if cfg!(unix) {
            let error = read("/dev/zero".as_ref()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        }
    }
}
