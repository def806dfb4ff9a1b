//! The folders of the sockets.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::variable::{VARIABLE, value};
use crate::environment;

/// Returns the folders that may contain the sockets of this user's processes. `user` is the user's number. If
/// `MILLPOND_WATCH` of this process names a folder, the result is only that folder. Otherwise leaves out
/// folders that another user made or can change, because that user may answer for a program.
pub fn folders(user: u32) -> Vec<PathBuf> {
    match value().map(|value| named(&value)) {
        Some(Ok(Some(folder))) => vec![folder],
        _ => usual(user).into_iter().filter(|folder| may_be_of(folder, user)).collect(),
    }
}

/// Returns whether the folder is missing, or this user's alone.
fn may_be_of(folder: &Path, user: u32) -> bool {
    match check_private(folder, user) {
        Err(error) => error.kind() == io::ErrorKind::NotFound,
        Ok(()) => true,
    }
}

/// Returns the file name of a process's socket.
pub fn socket_name(process: u32) -> String {
    format!("{process}.sock")
}

/// Returns the number of the user that this process runs as.
pub(super) fn own_user() -> u32 {
    // SAFETY: the call cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns the folder that a value of the variable names; `None` for the usual folder.
fn named(value: &OsStr) -> Result<Option<PathBuf>, String> {
    if value == "1" {
        return Ok(None);
    }
    if value.as_encoded_bytes().contains(&b'/') {
        return Ok(Some(value.into()));
    }
    Err(format!("{VARIABLE}=`{}` is neither 0, 1 nor a path with a `/`", value.display()))
}

/// The folders for `MILLPOND_WATCH=1`, the best first.
fn usual(user: u32) -> Vec<PathBuf> {
    let runtime = match user == own_user() {
        true => environment::variable("XDG_RUNTIME_DIR").map(PathBuf::from),
        false => Some(format!("/run/user/{user}").into()),
    };
    let runtime = runtime.filter(|folder| folder.is_absolute()).map(|folder| folder.join("millpond"));
    let temporary = std::env::temp_dir().join(format!("millpond-{user}"));
    runtime.into_iter().chain([temporary]).collect()
}

/// Returns the folder for this process's socket. Makes it if it is missing, for the owner alone.
pub(super) fn prepare(value: &OsStr) -> Result<PathBuf, String> {
    if let Some(folder) = named(value)? {
        // The process may change its working directory.
        return match std::path::absolute(&folder).and_then(|folder| make(&folder).map(|()| folder)) {
            Ok(folder) => Ok(folder),
            Err(error) => Err(format!("the folder {} cannot be used: {error}", folder.display())),
        };
    }
    let mut why = String::new();
    for folder in usual(own_user()) {
        match make(&folder).and_then(|()| check_private(&folder, own_user())) {
            Ok(()) => return Ok(folder),
            Err(error) => why = format!("the folder {} cannot be used: {error}", folder.display()),
        }
    }
    Err(why)
}

fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Another user may have made a folder of this name in the folder for temporary files.
fn check_private(folder: &Path, user: u32) -> io::Result<()> {
    let known = fs::symlink_metadata(folder)?;
    if known.is_dir() && known.uid() == user && known.mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = "it is not a folder that only this user can change";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_a_folder() {
        assert_eq!(named("1".as_ref()), Ok(None));
        assert_eq!(named("./here".as_ref()), Ok(Some("./here".into())));
        assert!(named("yes".as_ref()).unwrap_err().contains("neither 0, 1"));
    }

    #[test]
    fn another_user_has_other_folders() {
        let (own, other) = (usual(own_user()), usual(own_user() + 1));
        assert!(own.iter().all(|folder| !other.contains(folder)), "{own:?} {other:?}");
        assert_eq!(other[0], Path::new(&format!("/run/user/{}/millpond", own_user() + 1)));
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        use std::os::unix::fs::PermissionsExt;

        let folder = std::env::temp_dir().join(format!("millpond-test-folder-{}", std::process::id()));
        make(&folder).unwrap();
        make(&folder).unwrap();
        let check_private = |folder| check_private(folder, own_user());
        check_private(&folder).unwrap();
        assert!(may_be_of(&folder, own_user()) && !may_be_of(&folder, own_user() + 1));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(check_private(&folder).unwrap_err().to_string().contains("only this user"));
        assert!(!may_be_of(&folder, own_user()));
        fs::remove_dir(&folder).unwrap();
        assert!(may_be_of(&folder, own_user()));
        std::os::unix::fs::symlink(std::env::temp_dir(), &folder).unwrap();
        assert!(check_private(&folder).is_err() && !may_be_of(&folder, own_user()));
        fs::remove_file(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        assert!(check_private(&folder).is_err());
        fs::remove_file(&folder).unwrap();
    }
}
