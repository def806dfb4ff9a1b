//! Recognises files, so that the process removes no file of others: a file may get another's name.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

/// Removes the file or the empty folder at `path` if it still is the one that `own` describes, and returns
/// whether it was removed. A link at `path` is not followed.
///
/// The comparison and the removal are two calls: a file that gets the name between them is removed.
///
/// Keep the file open until then: the system may give the number of a deleted file to the next one. Only Unix
/// tells the number of a file, so other systems remove nothing.
///
/// # Errors
/// The system's errors; [`NotFound`](io::ErrorKind::NotFound) if nothing has the name any more.
///
/// ```
/// use millpond_core::own_file;
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("millpond-doc-{}", std::process::id()));
/// let file = std::fs::File::create_new(&path)?;
/// std::fs::rename(&path, path.with_extension("old"))?;
/// std::fs::write(&path, "another's")?;
/// assert!(!own_file::remove(&path, &file.metadata()?)?);
/// # std::fs::remove_file(path.with_extension("old"))?;
/// # std::fs::remove_file(path)
/// # }
/// ```
pub fn remove(path: &Path, own: &Metadata) -> io::Result<bool> {
    let there = fs::symlink_metadata(path)?;
    if !is_same(&there, own) {
        return Ok(false);
    }
    if there.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }.map(|()| true)
}

/// Returns whether both describe the same file. Only Unix can tell; elsewhere the result is false.
#[cfg(unix)]
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;

    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Returns whether both describe the same file. Only Unix can tell; elsewhere the result is false.
#[cfg(not(unix))]
fn is_same(_one: &Metadata, _other: &Metadata) -> bool {
    false
}
