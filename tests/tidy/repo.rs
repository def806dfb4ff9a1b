//! Lists and reads the files of the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A text file of the repository.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// The path from the root, with `/` between parts.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
}

impl File {
    /// Makes a file that exists only in a test.
    pub(crate) fn of(path: &str, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), text: text.into() }
    }

    /// Returns whether the name ends in this extension.
    pub(crate) fn is(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }
}

/// Returns every text file that git tracks, sorted. This excludes outputs of commands and notes in the same
/// folders. Without git, as in a packaged crate, returns every file outside of build folders.
pub(crate) fn files() -> Vec<File> {
    let paths = paths();
    assert!(paths.iter().any(|path| path == "Cargo.toml"), "the listing of files is broken: {paths:?}");
    paths
        .into_iter()
        // A file that was deleted but not committed is listed and cannot be read; data files are not UTF-8.
        .filter_map(|path| Some(File { text: fs::read_to_string(root().join(&path)).ok()?, path }))
        .collect()
}

/// Returns one file that must exist.
pub(crate) fn file(path: &str) -> File {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    File::of(path, text)
}

/// Returns the names in a folder, sorted.
pub(crate) fn names(folder: &str) -> Vec<String> {
    let below = |path: &String| {
        let name = path.strip_prefix(folder)?.strip_prefix('/')?.split('/').next()?;
        root().join(path).exists().then(|| name.to_owned())
    };
    let mut names: Vec<String> = paths().iter().filter_map(below).collect();
    names.dedup();
    names
}

/// Returns the folders of the workspace's members, from the root manifest.
pub(crate) fn members() -> Vec<String> {
    let manifest = file("Cargo.toml").text;
    let (_, list) = manifest.split_once("members = [").expect("the root manifest lists its members");
    let (list, _) = list.split_once(']').expect("the list of members ends");
    list.split(',').map(|name| name.trim().trim_matches('"').to_owned()).filter(|n| !n.is_empty()).collect()
}

/// Returns the paths of all files, sorted.
fn paths() -> Vec<String> {
    let mut paths = tracked(&root()).unwrap_or_else(walked);
    paths.sort();
    paths.dedup();
    paths
}

fn tracked(folder: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(folder)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    // A crate unpacked inside another repository lists nothing.
    (!paths.is_empty()).then_some(paths)
}

fn walked() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root().join(&folder)).expect("a folder of the repository");
        for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
            let path = folder.join(&name);
            if !root().join(&path).is_dir() {
                found.push(path.to_string_lossy().replace('\\', "/"));
            } else if !["target", ".git", "gpu-lane"].contains(&name.as_str()) {
                folders.push(path);
            }
        }
    }
    found
}

#[test]
fn both_listings_find_the_same_sources() {
    let Some(tracked) = tracked(&root()) else { return };
    let found = walked();
    let is_source =
        |path: &&String| path.contains("/src/") && path.ends_with(".rs") && root().join(path).exists();
    let missed: Vec<&String> =
        tracked.iter().filter(is_source).filter(|path| !found.contains(path)).collect();
    assert!(missed.is_empty(), "without git these are not read: {missed:?}");
}

/// `cargo test >test.log` writes a file into the checkout that no rule should check.
#[test]
fn files_that_git_does_not_track_are_not_read() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tracked");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder can be made");
    let git = |arguments: &[&str]| {
        let status = Command::new("git").args(arguments).current_dir(&folder).status();
        status.is_ok_and(|status| status.success())
    };
    if !git(&["init", "--quiet"]) {
        return println!("SKIPPED: git is not installed");
    }
    for name in ["a.rs", "test.log", "notes.md"] {
        fs::write(folder.join(name), "").expect("a file can be written");
    }
    assert!(git(&["add", "a.rs"]));
    assert_eq!(tracked(&folder), Some(vec!["a.rs".to_owned()]));
}
