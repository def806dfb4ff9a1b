//! Lists the files of the repository, and reads them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A text file of the repository.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// From the root, with `/` between parts.
    pub(crate) path: String,
    /// All of it.
    pub(crate) text: String,
}

impl File {
    /// A file that exists only in a test.
    pub(crate) fn of(path: &str, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), text: text.into() }
    }

    /// Whether the name ends in this extension.
    pub(crate) fn is(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }
}

/// Every text file that git knows or would add, sorted; without git, every file outside build folders.
pub(crate) fn files() -> Vec<File> {
    let mut paths = listed_by_git().unwrap_or_else(walked);
    paths.sort();
    paths.dedup();
    assert!(paths.iter().any(|path| path == "Cargo.toml"), "the listing of files is broken: {paths:?}");
    paths
        .into_iter()
        // A file that was deleted but not yet committed is listed and cannot be read; data is not UTF-8.
        .filter_map(|path| Some(File { text: fs::read_to_string(root().join(&path)).ok()?, path }))
        .collect()
}

/// One file that must be there.
pub(crate) fn file(path: &str) -> File {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    File::of(path, text)
}

/// The names in a folder, sorted.
pub(crate) fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The folders of the workspace's members, from the root manifest.
pub(crate) fn members() -> Vec<String> {
    let manifest = file("Cargo.toml").text;
    let (_, list) = manifest.split_once("members = [").expect("the root manifest lists its members");
    let (list, _) = list.split_once(']').expect("the list of members ends");
    list.split(',').map(|name| name.trim().trim_matches('"').to_owned()).filter(|n| !n.is_empty()).collect()
}

fn listed_by_git() -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
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
        for name in names(&folder.to_string_lossy()) {
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
    let Some(mut listed) = listed_by_git() else { return };
    let mut found = walked();
    for paths in [&mut listed, &mut found] {
        paths.retain(|path| path.contains("/src/") && path.ends_with(".rs") && root().join(path).exists());
        paths.sort();
    }
    assert_eq!(listed, found);
}
