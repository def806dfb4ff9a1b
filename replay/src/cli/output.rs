//! Writes a result to a file, or to the standard output.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::Path;

use tempfile::NamedTempFile;

use super::input::is_stream;
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
    match path.filter(|path| !is_stream(path)) {
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
/// then this file replaces the old one. So an error of `body` leaves the old content. If the file cannot be
/// replaced, it is written directly: the target of a link, a pipe, a device, or a file whose folder allows no
/// new file.
///
/// Only the system follows a link. So it can refuse a link that another user put into a shared folder.
///
/// # Errors
/// Returns the errors of `body`, and the errors of the two files.
pub(super) fn replace(path: &Path, body: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let known = fs::symlink_metadata(path).ok();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_file = known.as_ref().is_none_or(fs::Metadata::is_file);
    let beside = if is_file { beside(folder).ok() } else { None };
    let Some(mut beside) = beside else { return write_there(path, body) };
    whole(beside.as_file_mut(), body)?;
    if let Some(known) = known {
        keep_permissions(beside.as_file(), &known)?;
    }
    beside.persist(path)?;
    Ok(())
}

/// Writes through the path, without a new file there. If the path leads to a file, everything is first
/// written to a temporary file.
fn write_there(path: &Path, body: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if !fs::metadata(path).is_ok_and(|known| known.is_file()) {
        return whole(File::create(path)?, body);
    }
    let mut written = tempfile::tempfile()?;
    whole(&mut written, body)?;
    written.rewind()?;
    io::copy(&mut written, &mut File::create(path)?)?;
    Ok(())
}

/// Gives a new file the permissions of the file that it replaces. If that file is another user's, the new
/// file keeps its own permissions. The file is open, because another user could replace its name.
fn keep_permissions(file: &File, replaced: &fs::Metadata) -> io::Result<()> {
    let mut permissions = replaced.permissions();
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        if file.metadata()?.uid() != replaced.uid() {
            return Ok(());
        }
        // Without the bits that give a program more rights.
        permissions.set_mode(permissions.mode() & 0o777);
    }
    file.set_permissions(permissions)
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
        let failed = replace(&link, |_| Err(io::Error::other("interrupted")));
        assert_eq!((failed.is_err(), &*fs::read(&path).unwrap()), (true, &b"before"[..]));
        replace(&link, |out| out.write_all(b"after")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        replace(Path::new("/dev/null"), |out| out.write_all(b"nothing")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    /// Linux refuses to follow a link that another user put into a shared folder. A program that looks up the
    /// target of the link, and then replaces the target, goes around this.
    #[cfg(unix)]
    #[test]
    fn only_the_system_follows_a_link() {
        use std::os::unix::fs::{MetadataExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let [path, link] = ["result.csv", "link.csv"].map(|name| folder.path().join(name));
        fs::write(&path, "before").unwrap();
        symlink(&path, &link).unwrap();
        let number = || fs::metadata(&path).unwrap().ino();
        let opened = number();
        replace(&link, |out| out.write_all(b"after")).unwrap();
        assert_eq!((number(), &*fs::read(&path).unwrap()), (opened, &b"after"[..]));
        replace(&path, |out| out.write_all(b"again")).unwrap();
        assert_ne!(number(), opened, "without a link, a new file replaces the old one");
    }
}
