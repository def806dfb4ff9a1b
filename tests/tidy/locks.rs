//! Compares the lock files of the packages outside of the workspace with the manifests of its members.
//!
//! A lock file that lacks a new dependency of a member fails only where the package is built. The checks of a
//! change do not build it.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::repo::File;

/// Returns each dependency of a member that another lock file than the workspace's lacks.
pub(crate) fn stale(files: &[File], members: &[String]) -> Vec<String> {
    let manifests = files.iter().filter(|file| {
        file.path.strip_suffix("/Cargo.toml").is_some_and(|folder| members.iter().any(|it| it == folder))
    });
    let needed: BTreeMap<String, BTreeSet<String>> = manifests.map(needed).collect();
    let locks = files.iter().filter(|file| file.path.ends_with("/Cargo.lock"));
    let problems_of = |lock: &File| {
        let lacks = |(name, has): (String, BTreeSet<String>)| -> Vec<String> {
            let missing = needed.get(&name).into_iter().flatten().filter(|one| !has.contains(*one));
            missing
                .map(|one| format!("{}: {name} needs {one}; run `cargo metadata` there", lock.path))
                .collect()
        };
        locked(lock).into_iter().flat_map(lacks).collect::<Vec<_>>()
    };
    locks.flat_map(problems_of).collect()
}

fn table(file: &File) -> Table {
    file.text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.path))
}

/// Returns the name of a package, and its dependencies that are built on Unix with any features.
fn needed(manifest: &File) -> (String, BTreeSet<String>) {
    let table = table(manifest);
    let on_unix = table.get("target").and_then(|targets| targets.get("cfg(unix)")).and_then(Value::as_table);
    let lists = [Some(&table), on_unix].into_iter().flatten();
    let all = lists.filter_map(|it| it.get("dependencies")?.as_table()).flatten();
    let is_optional = |value: &Value| value.get("optional").and_then(Value::as_bool) == Some(true);
    let names = all.filter(|(_, value)| !is_optional(value)).map(|(name, _)| name.clone()).collect();
    (text_of(&table["package"], "name"), names)
}

/// Returns the packages of a lock file, and their dependencies.
fn locked(lock: &File) -> Vec<(String, BTreeSet<String>)> {
    let table = table(lock);
    let packages = table.get("package").and_then(Value::as_array).into_iter().flatten();
    let read = |package: &Value| {
        let dependencies = package.get("dependencies").and_then(Value::as_array).into_iter().flatten();
        let names = dependencies.filter_map(|one| Some(one.as_str()?.split(' ').next()?.to_owned()));
        (text_of(package, "name"), names.collect())
    };
    packages.map(read).collect()
}

fn text_of(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}
