//! Which file a path names, even before the file exists.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The most links in a row that are followed; Linux has the same limit.
const MOST_LINKS: u32 = 40;

/// Identifies the file that a path names. Two values are equal if their paths name the same file. The file
/// and its folders need not exist yet.
///
/// ```
/// use millpond_core::stack::FilePlace;
/// use std::path::Path;
/// let place = FilePlace::of(Path::new("log.csv"));
/// assert!(place.is_file() && place == FilePlace::of(Path::new("missing/../log.csv")));
/// assert!(!FilePlace::of(Path::new(".")).is_file());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FilePlace(Place);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Place {
    /// An existing file, by its device and inode, whatever its name.
    #[cfg(unix)]
    Inode(u64, u64),
    /// A file that does not exist, or a file on a system without such numbers.
    Path(PathBuf),
    /// A folder, a pipe, a terminal or the like.
    Other,
}

impl FilePlace {
    /// Identifies the file that this path names now.
    pub fn of(path: &Path) -> Self {
        let there = |path: PathBuf| fs::metadata(&path).map(|found| (found, path));
        let settled = || settled(path);
        Self(match there(path.to_owned()).or_else(|_| there(settled())) {
            Ok((found, _)) if !found.is_file() => Place::Other,
            #[cfg(unix)]
            Ok((found, _)) => {
                use std::os::unix::fs::MetadataExt;
                Place::Inode(found.dev(), found.ino())
            }
            #[cfg(not(unix))]
            Ok((_, path)) => Place::Path(fs::canonicalize(&path).unwrap_or(path)),
            Err(_) => Place::Path(settled()),
        })
    }

    /// Returns whether the path names a regular file, or a file that does not exist yet. A pipe, a device or
    /// a folder has no contents to overwrite.
    pub fn is_file(&self) -> bool {
        self.0 != Place::Other
    }

    /// Returns whether the two paths name the same file.
    pub fn is_same(one: &Path, other: &Path) -> bool {
        let place = Self::of(one);
        place.is_file() && place == Self::of(other)
    }
}

/// Returns the path without links and `..`, as it will be once missing folders are created: then `missing/..`
/// is the parent folder of `missing`.
fn settled(path: &Path) -> PathBuf {
    let mut whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..MOST_LINKS {
        match followed(&whole) {
            Ok(settled) => return settled,
            Err(behind_link) => whole = behind_link,
        }
    }
    whole
}

/// Returns the path without `..`. If it contains a link, fails with the path behind the first one.
fn followed(path: &Path) -> Result<PathBuf, PathBuf> {
    let mut settled = PathBuf::new();
    let mut rest = path.components();
    while let Some(component) = rest.next() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => _ = settled.pop(),
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => settled.push(component),
        }
        if matches!(component, Component::Normal(_))
            && let Ok(target) = fs::read_link(&settled)
        {
            settled.pop();
            return Err(settled.join(target).join(rest.as_path()));
        }
    }
    Ok(settled)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder that is removed at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("millpond-place-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn one_file_has_one_place_before_and_after_it_is_there() {
        let folder = Folder::new();
        let path = |name: &str| folder.0.join(name);
        fs::create_dir(path("real")).unwrap();
        symlink(path("real"), path("folder")).unwrap();
        symlink("real/log.csv", path("link")).unwrap();
        symlink("link", path("link of link")).unwrap();
        symlink("loop", path("loop")).unwrap();
        let names = [
            "real/log.csv",
            "./real/log.csv",
            "missing/../real/log.csv",
            "missing/../missing/.././real/log.csv",
            "folder/log.csv",
            "folder/../missing/../folder/log.csv",
            "folder/missing/../log.csv",
            "link",
            "link of link",
            "missing/../link of link",
        ];
        for is_there in [false, true] {
            if is_there {
                fs::write(path("real/log.csv"), "").unwrap();
            }
            for name in names {
                assert!(FilePlace::is_same(&path(names[0]), &path(name)), "{name}, there: {is_there}");
            }
            for other in ["log.csv", "real/log", "real/log.csv/..", "loop", "real", "missing/real/log.csv"] {
                assert!(!FilePlace::is_same(&path(names[0]), &path(other)), "{other}, there: {is_there}");
            }
        }
        fs::hard_link(path("real/log.csv"), path("hard")).unwrap();
        assert!(FilePlace::is_same(&path("hard"), &path("link")));
        assert!(!FilePlace::is_same(&path("real"), &path("real")) && !FilePlace::of(&path("real")).is_file());
        assert!(!FilePlace::of(Path::new("/dev/null")).is_file());
    }
}
