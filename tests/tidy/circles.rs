//! Finds files of one crate that use each other in a circle.
//!
//! A file uses another file if a path in its code leads there. Re-exports are followed to the file that
//! defines the item. Declaring or re-exporting a child does not count, and neither does test code.

use std::collections::{BTreeMap, BTreeSet};

use super::repo::File;
use super::rust;

/// The names along a path; for a module, from the crate's root.
type Names = Vec<String>;

/// A module: a file, or a part of one.
#[derive(Default, Debug)]
struct Module {
    /// The file's index in the list of files.
    file: usize,
    is_test: bool,
    /// The imported names, and the paths that they stand for.
    imports: BTreeMap<String, Names>,
    /// All other paths, including the paths of imports that are not re-exported.
    paths: Vec<Names>,
}

type Modules = BTreeMap<Names, Module>;

/// Returns the shortest circle of each crate; skips crates below the `excluded` folders.
pub(crate) fn circles(files: &[File], excluded: &[&str]) -> Vec<String> {
    let is_in = |file: &File| !excluded.iter().any(|folder| file.path.starts_with(folder));
    let roots = (0..files.len()).filter(|&at| is_root(&files[at].path) && is_in(&files[at]));
    roots.filter_map(|root| circle(files, &uses(&modules(files, root)))).collect()
}

/// Returns each use of a file by a file in a folder further down the list. The crate starts in the file
/// `root`.
pub(crate) fn upward_uses(files: &[File], root: &str, folders: &[&str]) -> Vec<String> {
    let Some(root) = files.iter().position(|file| file.path == root) else {
        return vec![format!("{root} does not exist")];
    };
    let base = files[root].path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let level = |file: usize| {
        let below = files[file].path.strip_prefix(base)?.strip_prefix('/')?;
        let first = below.split('/').next()?.trim_end_matches(".rs");
        folders.iter().position(|folder| *folder == first)
    };
    let is_upward = |&(from, to): &(usize, usize)| level(from).zip(level(to)).is_some_and(|(a, b)| a > b);
    let uses = uses(&modules(files, root));
    let upward = uses.into_iter().filter(is_upward);
    upward
        .map(|(from, to)| format!("{} uses {}, which lies above", files[from].path, files[to].path))
        .collect()
}

/// Returns whether cargo starts a crate from this file.
fn is_root(path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    let is_target = ["tests", "examples", "benches"]
        .iter()
        .any(|&kind| folder == kind || folder.ends_with(&format!("/{kind}")));
    let is_main = (folder.contains("tests/") || folder.contains("examples/")) && name == "main.rs";
    let is_source = (folder == "src" || folder.ends_with("/src")) && ["lib.rs", "main.rs"].contains(&name);
    is_source || is_main || (is_target && name.ends_with(".rs"))
}

/// Returns all modules of the crate that starts in a file.
fn modules(files: &[File], root: usize) -> Modules {
    let folder = files[root].path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut modules = Modules::new();
    let mut open = vec![(root, folder.to_owned(), Names::new(), false)];
    while let Some((file, folder, path, is_test)) = open.pop() {
        let children = Reader::new(&files[file].text).read(file, path, is_test, &mut modules);
        for child in children {
            let name = child.path.last().expect("a child has a name");
            let parent = files[file].path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let (sources, below) = match &child.written {
                Some(written) => (vec![format!("{parent}/{written}")], parent.to_owned()),
                None => {
                    let base = format!("{folder}/{name}");
                    (vec![format!("{base}.rs"), format!("{base}/mod.rs")], base)
                }
            };
            let found = files.iter().position(|file| sources.contains(&file.path));
            open.extend(found.map(|found| (found, below, child.path, child.is_test)));
        }
    }
    modules
}

/// A module that one file declares and another file contains.
struct Child {
    path: Names,
    is_test: bool,
    /// The file that `#[path]` names.
    written: Option<String>,
}

/// Reads the modules of one file from its words.
struct Reader<'a> {
    source: &'a str,
    words: Vec<(usize, String)>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(source: &'a str) -> Self {
        Self { source, words: words(&rust::code(source)), at: 0 }
    }

    fn word(&self, after: usize) -> &str {
        self.words.get(self.at + after).map_or("", |(_, word)| word)
    }

    fn read(mut self, file: usize, path: Names, is_test: bool, modules: &mut Modules) -> Vec<Child> {
        let mut children = Vec::new();
        // The modules around this place, each with the number of open braces where it began.
        let mut around = vec![(path.clone(), is_test, 0_usize)];
        let mut braces = 0_usize;
        modules.insert(path, Module { file, is_test, ..Module::default() });
        while self.at < self.words.len() {
            let (path, is_test, _) = around.last().cloned().expect("the file is a module");
            let module = modules.get_mut(&path).expect("each module was entered");
            match (self.word(0), self.word(2)) {
                ("mod", ";" | "{") => {
                    let name = self.word(1).to_owned();
                    let is_test = is_test || self.is_for_tests();
                    let path: Names = path.iter().cloned().chain([name]).collect();
                    if self.word(2) == ";" {
                        children.push(Child { path, is_test, written: self.written_path() });
                    } else {
                        braces += 1;
                        modules.insert(path.clone(), Module { file, is_test, ..Module::default() });
                        around.push((path, is_test, braces));
                    }
                    self.at += 3;
                }
                ("use", _) => {
                    let is_public = self.is_public();
                    self.at += 1;
                    self.tree(&mut Names::new(), is_public, module);
                }
                ("{", _) => {
                    braces += 1;
                    self.at += 1;
                }
                ("}", _) => {
                    if around.last().is_some_and(|(.., depth)| *depth == braces) && around.len() > 1 {
                        around.pop();
                    }
                    braces = braces.saturating_sub(1);
                    self.at += 1;
                }
                (word, _) if is_name(word) => {
                    let word = word.to_owned();
                    let path = self.path();
                    // A single name is a type or a constant if it starts with a capital; otherwise it is a
                    // variable or a field.
                    if path.len() > 1 || word.starts_with(char::is_uppercase) {
                        module.paths.push(path);
                    }
                }
                _ => self.at += 1,
            }
        }
        children
    }

    /// Reads a path, from its first name to its last.
    fn path(&mut self) -> Names {
        let mut names = vec![self.word(0).to_owned()];
        self.at += 1;
        while self.word(0) == "::" && is_name(self.word(1)) {
            names.push(self.word(1).to_owned());
            self.at += 2;
        }
        names
    }

    /// Reads the tree after `use`, or between its braces.
    fn tree(&mut self, before: &mut Names, is_public: bool, module: &mut Module) {
        let start = before.len();
        while is_name(self.word(0)) || self.word(0) == "::" {
            if self.word(0) != "::" {
                before.push(self.word(0).to_owned());
            }
            self.at += 1;
        }
        match self.word(0) {
            "{" => {
                while !["}", ""].contains(&self.word(0)) {
                    self.at += 1;
                    self.tree(before, is_public, module);
                }
                self.at += 1;
            }
            "*" => {
                self.at += 1;
                module.paths.push(before.clone());
            }
            _ if before.len() > start => {
                let renamed = before.iter().position(|name| name == "as");
                let mut target: Names = before[..renamed.unwrap_or(before.len())].to_vec();
                target.pop_if(|name| name == "self");
                let name = if renamed.is_some() { before.last() } else { target.last() };
                module.imports.extend(name.map(|name| (name.clone(), target.clone())));
                if !is_public {
                    module.paths.push(target);
                }
            }
            _ => {}
        }
        before.truncate(start);
    }

    fn is_public(&self) -> bool {
        let before = &self.words[self.at.saturating_sub(4)..self.at];
        let since = before.iter().rposition(|(_, word)| [";", "{", "}"].contains(&word.as_str()));
        before[since.map_or(0, |at| at + 1)..].iter().any(|(_, word)| word == "pub")
    }

    /// Returns the attribute lines directly before the word.
    fn attributes(&self) -> impl Iterator<Item = &str> {
        let line = self.words[self.at].0;
        let before: Vec<&str> = self.source.lines().take(line).collect();
        before.into_iter().rev().take_while(|line| line.trim_start().starts_with("#["))
    }

    fn is_for_tests(&self) -> bool {
        self.attributes().any(|line| line.contains("cfg(") && line.contains("test"))
    }

    fn written_path(&self) -> Option<String> {
        self.attributes()
            .find_map(|line| line.split_once("#[path = \"")?.1.split('"').next().map(str::to_owned))
    }
}

/// Returns the words and signs of code, each with its line, counted from 0.
fn words(code: &str) -> Vec<(usize, String)> {
    let mut words: Vec<(usize, String)> = Vec::new();
    for (line, text) in code.lines().enumerate() {
        let mut before = ' ';
        for c in text.chars() {
            let goes_on = (is_letter(c) && is_letter(before)) || (c == ':' && before == ':');
            match words.last_mut() {
                Some((_, word)) if goes_on => word.push(c),
                _ if c.is_whitespace() => {}
                _ => words.push((line, c.to_string())),
            }
            before = c;
        }
    }
    words
}

fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns which file uses which, by their indices.
fn uses(modules: &Modules) -> BTreeSet<(usize, usize)> {
    let mut uses = BTreeSet::new();
    for (path, module) in modules.iter().filter(|(_, module)| !module.is_test) {
        let targets = module.paths.iter().filter_map(|names| resolve(modules, path, names, 0));
        let files = targets.filter(|target| !modules[target].is_test).map(|target| modules[&target].file);
        uses.extend(files.filter(|&file| file != module.file).map(|file| (module.file, file)));
    }
    uses
}

/// Returns the module that contains the item at the end of a path, if the module is in this crate.
fn resolve(modules: &Modules, from: &[String], names: &[String], depth: usize) -> Option<Names> {
    // Only code that does not compile can have an import that leads to itself.
    if depth > 20 {
        return None;
    }
    let mut at = from.to_vec();
    for (index, name) in names.iter().enumerate() {
        match name.as_str() {
            "crate" if index == 0 => at.clear(),
            "self" if index == 0 => {}
            "super" => drop(at.pop()),
            _ => {
                let child: Names = at.iter().cloned().chain([name.clone()]).collect();
                if modules.contains_key(&child) {
                    at = child;
                } else if let Some(import) = modules.get(&at)?.imports.get(name).filter(|path| path.len() > 1)
                {
                    let rest = import.iter().chain(&names[index + 1..]).cloned().collect::<Names>();
                    return resolve(modules, &at, &rest, depth + 1);
                } else {
                    // The item is here, or, for a first name, in another crate.
                    return (index > 0).then_some(at);
                }
            }
        }
    }
    Some(at)
}

/// Returns a shortest way from a file back to itself.
fn circle(files: &[File], uses: &BTreeSet<(usize, usize)>) -> Option<String> {
    let way = |start: usize| {
        let mut ways = vec![vec![start]];
        let mut seen = BTreeSet::new();
        let mut next = 0;
        while let Some(way) = ways.get(next).cloned() {
            next += 1;
            for &(_, to) in uses.iter().filter(|(from, _)| way.last() == Some(from)) {
                if to == start {
                    return Some(way);
                }
                if seen.insert(to) {
                    ways.push(way.iter().copied().chain([to]).collect());
                }
            }
        }
        None
    };
    let starts: BTreeSet<usize> = uses.iter().map(|&(from, _)| from).collect();
    let shortest = starts.into_iter().filter_map(way).min_by_key(Vec::len)?;
    let named: Vec<&str> = shortest.iter().chain(&shortest[..1]).map(|&at| files[at].path.as_str()).collect();
    Some(format!("{} use each other in a circle", named.join(" → ")))
}
