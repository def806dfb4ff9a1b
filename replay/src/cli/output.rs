//! Writes a result to a file, or to the standard output.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tempfile::NamedTempFile;

use super::verdict::Failure;

/// Writes the output of `body` to a file, as [`to_file`] does. If there is no path, or the path is `-`,
/// writes to `out`.
///
/// # Errors
/// Returns the errors of `body`, and the errors of the file with its name.
pub(super) fn write(
    path: Option<&Path>,
    out: impl Write,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    match path.filter(|path| *path != Path::new("-")) {
        None => Ok(whole(out, body)?),
        Some(path) => to_file(path, body),
    }
}

/// Writes the output of `body` to a file, as [`replace`] does.
///
/// # Errors
/// Returns the errors of `body`, and the errors of the file with its name.
pub(super) fn to_file(
    path: &Path,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    replace(path, body).map_err(|error| {
        Failure::Output(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    })
}

/// Writes the output of `body` to a file. Everything is first written to a new file in the same folder, and
/// then this file replaces the old one. So an error leaves the old content. A pipe or a device is written
/// directly. A file is written directly, too, if its folder allows no new file.
///
/// # Errors
/// Returns the errors of `body`, and the errors of the two files.
pub(super) fn replace(path: &Path, body: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()); // follows a link
    let known = fs::metadata(&target).ok();
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_file = known.as_ref().is_none_or(fs::Metadata::is_file);
    let beside = if is_file { beside(folder).ok() } else { None };
    let Some(mut beside) = beside else { return whole(File::create(path)?, body) };
    whole(beside.as_file_mut(), body)?;
    if let Some(known) = known {
        fs::set_permissions(beside.path(), known.permissions())?;
    }
    beside.persist(&target)?;
    Ok(())
}

/// Creates a new file in the folder, with the permissions that any program gives to a new file.
fn beside(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".millpond-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask
    builder.tempfile_in(folder)
}

fn whole(target: impl Write, body: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut target = BufWriter::new(target);
    body(&mut target)?;
    target.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_as_it_was_until_everything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.csv");
        fs::write(&path, "before").unwrap();
        let failed = replace(&path, |out| {
            out.write_all(&[b'x'; 100_000])?;
            assert_eq!(fs::read(&path)?, b"before");
            Err(io::Error::other("interrupted"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "interrupted");
        assert_eq!(fs::read(&path).unwrap(), b"before");
        replace(&path, |out| out.write_all(b"after")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[cfg(unix)]
    #[test]
    fn links_and_permissions_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let [path, link] = ["result.csv", "link.csv"].map(|name| folder.path().join(name));
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        replace(&link, |out| out.write_all(b"after")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        replace(Path::new("/dev/null"), |out| out.write_all(b"nothing")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
