//! Which file a path names, also before the file is there.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The most links in a row that are followed, as by Linux.
const MOST_LINKS: u32 = 40;

/// Which file a path names: equal places are one file, whatever the paths look like. A file that is not there
/// yet has a place, too, with its folders: both may be made later.
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
    /// A file that is there, by its device and inode, whatever its name.
    #[cfg(unix)]
    Inode(u64, u64),
    /// A file that is not there, or of a system without such numbers.
    Path(PathBuf),
    /// A folder, a pipe, a terminal or the like.
    Other,
}

impl FilePlace {
    /// The place of this path now.
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

    /// Whether it is a file, or nothing yet. A pipe or a device has no contents to overwrite.
    pub fn is_file(&self) -> bool {
        self.0 != Place::Other
    }

    /// Whether both paths name one file.
    pub fn is_same(one: &Path, other: &Path) -> bool {
        let place = Self::of(one);
        place.is_file() && place == Self::of(other)
    }
}

/// The path without links and `..`, as it is once missing folders are made: then `missing/..` is the folder
/// that `missing` is in.
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

/// The path without `..`; with a link in it, the path behind the first one.
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

    /// A folder of the test, which ends with it.
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
