//! Writes a result to a file, or to the standard output.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::verdict::Failure;

/// Writes what `body` writes to a file; to `out` without one, or if its name is `-`.
///
/// # Errors
/// Those of `body`, and of the file, which is named.
pub(super) fn write(
    path: Option<&Path>,
    out: impl Write,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let whole = |target: &mut dyn Write| body(target).and_then(|()| target.flush());
    match path.filter(|path| *path != Path::new("-")) {
        None => Ok(whole(&mut BufWriter::new(out))?),
        Some(path) => {
            let written = File::create(path).and_then(|file| whole(&mut BufWriter::new(file)));
            written.map_err(|error| {
                Failure::Output(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
            })
        }
    }
}
