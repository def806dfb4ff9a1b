//! Tests the style of the sources and the documents.
//!
//! The rules keep files and functions short, links alive, lists complete, and sentences plain. A rule is a
//! function from files to problems, so that the canaries can show that each rule finds the problems that it
//! refuses.

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/heard.rs"]
mod heard;
#[path = "tidy/locks.rs"]
mod locks;
#[path = "tidy/markdown.rs"]
mod markdown;
#[path = "tidy/named.rs"]
mod named;
#[path = "tidy/repo.rs"]
mod repo;
#[path = "tidy/rust.rs"]
mod rust;
#[path = "tidy/threats.rs"]
mod threats;
#[path = "tidy/tics.rs"]
mod tics;
#[path = "tidy/words.rs"]
mod words;

use repo::{File, file, files, members, names, root};

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 70;
const COLUMNS: usize = 110;
/// The reason of every ignored test: the GPU lane runs these tests and no others.
const IGNORE_REASON: &str = "needs a CUDA GPU";
/// The README's command that runs all tests; the continuous integration runs it.
const TEST_COMMAND: &str = "cargo test --workspace";

/// Fails with every problem, one on each line.
fn none(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} problems:\n  {}", problems.len(), problems.join("\n  "));
}

#[test]
fn sources_are_short() {
    none(files().iter().flat_map(lengths).collect());
}

fn lengths(file: &File) -> Vec<String> {
    let path = &file.path;
    let mut problems = Vec::new();
    if ["rs", "toml", "sh", "ptx", "py"].iter().any(|extension| file.is(extension)) {
        for (index, line) in file.text.lines().enumerate() {
            if line.chars().count() > COLUMNS {
                problems.push(format!("{path}:{}: over {COLUMNS} columns", index + 1));
            }
        }
    }
    if file.is("rs") {
        let lines = file.text.lines().count();
        if lines > FILE_LINES {
            problems.push(format!("{path}: {lines} lines, over {FILE_LINES}; one idea per file"));
        }
        for rust::Function { name, line, lines } in rust::functions(&rust::code(&file.text)) {
            if lines > FUNCTION_LINES {
                problems.push(format!("{path}:{line}: `{name}` has {lines} lines, over {FUNCTION_LINES}"));
            }
        }
    }
    problems
}

#[test]
fn documents_have_short_lines() {
    none(files().iter().filter(|file| file.is("md")).flat_map(long_prose).collect());
}

/// Returns the lines of prose that are too long. Tables, code, headings, HTML and single words longer than a
/// line may be long.
fn long_prose(file: &File) -> Vec<String> {
    let is_free = |line: &str| line.starts_with(['|', '<', '#']) || !line.trim().contains(' ');
    markdown::prose(&file.text)
        .into_iter()
        .filter(|(_, line)| line.chars().count() > COLUMNS && !is_free(line.trim_start()))
        .map(|(number, _)| format!("{}:{number}: over {COLUMNS} columns", file.path))
        .collect()
}

#[test]
fn sources_say_what_they_are_for() {
    none(files().iter().filter(|file| file.is("rs")).filter_map(no_purpose).collect());
}

fn no_purpose(file: &File) -> Option<String> {
    (!file.text.starts_with("//! ")).then(|| format!("{}:1: open with a `//!` sentence", file.path))
}

#[test]
fn sentences_are_plain() {
    none(files().iter().flat_map(house_phrases).collect());
}

fn house_phrases(file: &File) -> Vec<String> {
    let kinds = ["rs", "md", "toml", "sh", "py", "cpp", "hpp", "cu", "cuh"];
    // The list itself contains all of them.
    if !kinds.iter().any(|kind| file.is(kind)) || file.path == "tests/tidy/words.rs" {
        return Vec::new();
    }
    words::refused(&file.text)
        .into_iter()
        .map(|(line, place)| (line, words::PHRASES[place]))
        .map(|(line, (phrase, advice))| format!("{}:{line}: `{phrase}`: {advice}", file.path))
        .collect()
}

#[test]
fn no_tic_spreads() {
    none(tics::too_frequent(&files()));
}

#[test]
fn nothing_is_left_over() {
    none(files().iter().flat_map(leftovers).collect());
}

/// The words are written in pieces, so that this file contains none of them.
const LEFTOVERS: [&str; 6] = [
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("d", "bg!("),
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("X", "XX"),
];

fn leftovers(file: &File) -> Vec<String> {
    // The lock file's checksums and the licenses are not prose of this project.
    if file.path.ends_with("Cargo.lock") || file.path.starts_with("LICENSE") {
        return Vec::new();
    }
    standing_alone(file, &LEFTOVERS, "is a leftover")
}

#[test]
fn nothing_depends_on_one_machine() {
    none(files().iter().flat_map(machine_paths).collect());
}

const MACHINE_PATHS: [&str; 5] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/t", "mp/"),
    concat!("/wo", "rk/"),
    concat!("replace-", "with"),
];

fn machine_paths(file: &File) -> Vec<String> {
    let mut problems = standing_alone(file, &MACHINE_PATHS, "exists on one machine only");
    if file.path.ends_with("Cargo.lock") {
        const PUBLIC: &str = "\"registry+https://github.com/rust-lang/crates.io-index\"";
        let sources = file.text.lines().filter_map(|line| line.strip_prefix("source = "));
        problems.extend(sources.filter(|source| *source != PUBLIC).map(|s| format!("{}: {s}", file.path)));
    }
    problems
}

/// Returns each place of one of `texts` with no letter or digit directly before or after it.
fn standing_alone(file: &File, texts: &[&str], what: &str) -> Vec<String> {
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "_-.".contains(c));
    let mut problems = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for text in texts {
            let ends_in_word = word(text.chars().last());
            let found = line.match_indices(text).any(|(at, _)| {
                let after = line[at + text.len()..].chars().next();
                let goes_on = ends_in_word && after.is_some_and(char::is_alphanumeric);
                !goes_on && !word(line[..at].chars().last())
            });
            if found {
                problems.push(format!("{}:{}: `{text}` {what}", file.path, index + 1));
            }
        }
    }
    problems
}

#[test]
fn ignored_tests_say_why() {
    none(files().iter().filter(|file| file.is("rs")).flat_map(ignored).collect());
}

fn ignored(file: &File) -> Vec<String> {
    rust::ignores(&file.text)
        .into_iter()
        .filter(|(_, reason)| !reason.as_ref().is_some_and(|reason| reason.starts_with(IGNORE_REASON)))
        .map(|(line, _)| format!("{}:{line}: write `#[ignore = \"{IGNORE_REASON}; …\"]`", file.path))
        .collect()
}

#[test]
fn rows_of_tables_are_whole() {
    none(files().iter().filter(|file| file.is("rs")).flat_map(broken_rows).collect());
}

/// A table's row in a documentation comment that goes on in the next line. Rustdoc ends the table there.
fn broken_rows(file: &File) -> Vec<String> {
    let row = |line: &str| {
        let text = ["//! ", "/// "].iter().find_map(|start| line.trim_start().strip_prefix(start));
        text.is_some_and(|text| text.starts_with('|') && !text.trim_end().ends_with('|'))
    };
    let rows = file.text.lines().enumerate().filter(|(_, line)| row(line));
    rows.map(|(index, _)| format!("{}:{}: a row of a table is one line", file.path, index + 1)).collect()
}

#[test]
fn links_are_alive() {
    none(files().iter().filter(|file| file.is("md")).flat_map(dead_links).collect());
}

fn dead_links(file: &File) -> Vec<String> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut problems = Vec::new();
    for (line, target) in markdown::links(&file.text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target.as_str(), ""));
        let full = root().join(folder).join(path);
        if !path.is_empty() && !full.exists() {
            problems.push(format!("{}:{line}: {target} does not exist", file.path));
        } else if !anchor.is_empty() && (path.is_empty() || path.ends_with(".md")) {
            let other = (!path.is_empty()).then(|| std::fs::read_to_string(&full).unwrap_or_default());
            if !markdown::anchors(other.as_ref().unwrap_or(&file.text)).iter().any(|known| known == anchor) {
                problems.push(format!("{}:{line}: {target}: there is no such heading", file.path));
            }
        }
    }
    problems
}

#[test]
fn the_readme_names_what_there_is() {
    let readme = file("README.md");
    let examples: Vec<String> = names("examples").into_iter().filter(|name| name.ends_with(".rs")).collect();
    none(missing_from_readme(&readme, &examples));
}

fn missing_from_readme(readme: &File, examples: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for example in examples {
        let name = example.trim_end_matches(".rs");
        if !["`", "/", " "].iter().any(|before| {
            [".rs", "`"].iter().any(|after| readme.text.contains(&format!("{before}{name}{after}")))
        }) {
            problems.push(format!("README.md: examples/{example} is not named"));
        }
    }
    if !markdown::fenced(&readme.text, "sh").iter().any(|line| line.trim() == TEST_COMMAND) {
        problems.push(format!("README.md: no ```sh block has .ci/run's line `{TEST_COMMAND}`"));
    }
    problems
}

#[test]
fn every_document_is_in_the_index() {
    let files = files();
    let book = unindexed(&file("docs/book/src/SUMMARY.md"), "docs/book/src/", &files);
    none([book, unindexed(&file("docs/README.md"), "docs/lab/", &files)].concat());
}

/// Each page below a folder that the index does not link to.
fn unindexed(index: &File, folder: &str, files: &[File]) -> Vec<String> {
    let from = index.path.rsplit_once('/').map_or("", |(from, _)| from);
    let pages = files.iter().filter(|file| file.is("md") && file.path.starts_with(folder));
    pages
        .map(|page| page.path.trim_start_matches(from).trim_start_matches('/'))
        .filter(|page| *page != "SUMMARY.md" && !index.text.contains(&format!("]({page})")))
        .map(|page| format!("{}: no link to {page}", index.path))
        .collect()
}

#[test]
fn the_programs_of_the_book_are_tested() {
    let tested = file("tests/book.rs").text;
    let pages: Vec<File> = files().into_iter().filter(|it| it.path.starts_with("docs/book/src/")).collect();
    none(pages.iter().filter_map(|page| untested(page, &tested)).collect());
}

/// A page with a program of Rust that `tests/book.rs` does not run.
fn untested(page: &File, tested: &str) -> Option<String> {
    let has_program = page.text.lines().any(|line| line.starts_with("```rust"));
    let is_tested = tested.contains(&format!("\"../{}\"", page.path));
    (has_program && !is_tested).then(|| format!("{}: tests/book.rs does not run its programs", page.path))
}

#[test]
fn the_changelog_has_its_form() {
    let manifest = file("Cargo.toml").text;
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = ")).expect("a version");
    none(changelog(&file("CHANGELOG.md"), version.trim_matches('"')));
}

fn changelog(file: &File, version: &str) -> Vec<String> {
    const KINDS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];
    let mut problems = Vec::new();
    let mut problem = |line: usize, what: &str| problems.push(format!("{}:{line}: {what}", file.path));
    if !file.text.starts_with("# Changelog\n") {
        problem(1, "the first line is `# Changelog`");
    }
    if !file.text.contains(&format!("\n## [{version}] - ")) {
        problem(1, &format!("version {version} has no heading"));
    }
    for (index, line) in file.text.lines().enumerate() {
        if let Some(kind) = line.strip_prefix("### ")
            && !KINDS.contains(&kind)
        {
            problem(index + 1, &format!("`{kind}` is none of {}", KINDS.join(", ")));
        }
        if let Some(release) = line.strip_prefix("## ")
            && !is_release(release)
        {
            problem(
                index + 1,
                "write `## [1.2.3] - 2026-01-31`, `## [1.2.3] - Unreleased` or `## [Unreleased]`",
            );
        }
    }
    if !file.text.contains("\n### Security\n") {
        problem(1, "write a section `### Security`, even if it is empty");
    }
    problems
}

fn is_release(heading: &str) -> bool {
    let Some((version, date)) = heading.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return false;
    };
    let digits = |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    let is_date = |date: &str| {
        let parts: Vec<&str> = date.split('-').collect();
        parts.len() == 3 && digits(parts[0], 4) && digits(parts[1], 2) && digits(parts[2], 2)
    };
    let number = version.split('.').filter(|part| part.parse::<u32>().is_ok()).count() == 3;
    (version == "Unreleased" && date.is_empty())
        || (number && date.strip_prefix(" - ").is_some_and(|date| date == "Unreleased" || is_date(date)))
}

#[test]
fn contributing_tells_where_things_go() {
    let contributing = file("CONTRIBUTING.md");
    let rows = markdown::table_rows(&contributing.text, "Where do I add");
    assert!(rows.len() >= 8, "the table of CONTRIBUTING.md is gone, or too short to help");
    none(missing_paths(&rows));
}

/// A code span with a slash is a path. The part that `<name>` stands for need not exist, but its folder must.
fn missing_paths(rows: &[&str]) -> Vec<String> {
    let spans = rows.iter().flat_map(|row| markdown::code_spans(row));
    spans
        .filter(|span| span.contains('/') && !span.contains(' '))
        .map(|span| span.split('<').next().unwrap_or_default())
        .filter(|path| !root().join(path).exists())
        .map(|path| format!("CONTRIBUTING.md: {path} does not exist"))
        .collect()
}

#[test]
fn layers_are_listed_and_tested() {
    let all = files();
    let subjects = file("testkit/src/stacks.rs").text;
    let mut problems = Vec::new();
    for folder in ["adaptors", "resources"] {
        let library = file(&format!("{folder}/src/lib.rs")).text;
        let layers = layers_in(folder, &library, &all);
        assert!(layers.len() >= 3, "{folder}: only {layers:?}; is the search broken?");
        problems.extend(unlisted(folder, &layers, &library, &subjects));
    }
    none(problems);
}

/// A module that implements the trait.
#[derive(PartialEq, Eq, Debug)]
struct LayerModule {
    module: String,
    /// The names of its entries in stack text.
    names: Vec<String>,
}

/// Returns the modules of a crate that implement the trait, outside of test code.
fn layers_in(folder: &str, library: &str, files: &[File]) -> Vec<LayerModule> {
    let source = format!("{folder}/src/");
    let mut found: Vec<LayerModule> = Vec::new();
    for file in files {
        let Some(path) = file.path.strip_prefix(&source) else { continue };
        let module = path.split(['/', '.']).next().unwrap_or_default();
        if module == "lib"
            || library.contains(&format!("#[cfg(test)]\nmod {module};"))
            || path.contains("test")
            || !file.is("rs")
        {
            continue;
        }
        let entries = file.text.split("LayerEntry {").skip(1);
        let names = entries.filter_map(|entry| entry.split_once("name: \"")?.1.split('"').next());
        let names: Vec<String> = names.map(str::to_owned).collect();
        if let Some(known) = found.iter_mut().find(|known| known.module == module) {
            known.names.extend(names);
        } else if !names.is_empty() || rust::code(&file.text).contains("DeviceMemoryResource for ") {
            found.push(LayerModule { module: module.to_owned(), names });
        }
    }
    found
}

fn unlisted(folder: &str, layers: &[LayerModule], library: &str, subjects: &str) -> Vec<String> {
    let list = library.split_once("LAYERS: &[LayerEntry]").map_or("", |(_, after)| after);
    let list = list.split_once(';').map_or("", |(list, _)| list);
    let mut problems = Vec::new();
    for LayerModule { module, names } in layers {
        let entries = list.matches(&format!("{module}::")).count();
        // If a stack's text cannot name a module's resource, the module's declaration says so.
        let has_no_text = names.is_empty() && library.contains(&format!("mod {module}; // no text"));
        if entries != names.len() || (entries == 0 && !has_no_text) {
            problems
                .push(format!("{folder}/src/lib.rs: LAYERS has {entries} entries of {module}: {names:?}"));
        }
        for name in names.iter().filter(|name| !subjects.contains(name.as_str())) {
            problems.push(format!("testkit/src/stacks.rs: `{name}` is not tested"));
        }
    }
    problems
}

#[test]
fn crates_depend_on_what_the_layout_allows() {
    let contributing = file("CONTRIBUTING.md");
    let rows = markdown::table_rows(&contributing.text, "The layout");
    let forbidden = |member: &String| arrows(member, &rows, &file(&format!("{member}/Cargo.toml")));
    none(members().iter().flat_map(forbidden).collect());
}

/// Returns a crate's dependencies on our other crates that its row of the layout table lacks.
fn arrows(member: &str, rows: &[&str], manifest: &File) -> Vec<String> {
    // Dependencies of tests are free, and one crate has only tests.
    let Some((_, after)) = manifest.text.split_once("\n[dependencies]\n") else { return Vec::new() };
    let folder = format!("| `{member}/` |");
    let Some(row) = rows.iter().find(|row| row.starts_with(&folder)) else {
        return vec![format!("CONTRIBUTING.md: the layout has no row for `{member}/`")];
    };
    let allowed = row.trim_end_matches('|').rsplit('|').next().map(markdown::code_spans).unwrap_or_default();
    let dependencies = after.split("\n[").next().unwrap_or_default().lines();
    dependencies
        .filter_map(|line| line.strip_prefix("millpond-")?.split(['.', ' ']).next())
        .filter(|name| !allowed.contains(name))
        .map(|name| format!("{}: the layout does not let `{member}` depend on `{name}`", manifest.path))
        .collect()
}

#[test]
fn manifests_inherit() {
    none(members().iter().flat_map(|member| own_settings(&file(&format!("{member}/Cargo.toml")))).collect());
}

fn own_settings(manifest: &File) -> Vec<String> {
    let name = manifest.text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap_or_default();
    let page = format!("documentation = \"https://docs.rs/{}\"", name.trim_matches('"'));
    let is_published = !manifest.text.contains("\npublish = false\n");
    ["version", "edition", "rust-version", "license", "repository"]
        .map(|key| format!("{key}.workspace = true"))
        .into_iter()
        .chain(["[lints]\nworkspace = true", "readme = \"README.md\""].map(str::to_owned))
        .chain(is_published.then_some(page))
        .filter(|setting| !manifest.text.contains(setting.as_str()))
        .map(|setting| format!("{}: write `{setting}`", manifest.path))
        .collect()
}

/// Features that select a CUDA version are documented together. The book and the facade's own page document
/// the facade's features.
#[test]
fn features_are_documented() {
    let pages = |member: &str| (format!("{member}Cargo.toml"), format!("{member}README.md"));
    let members = members().into_iter().map(|member| pages(&format!("{member}/"))).chain(
        ["docs/book/src/rust.md", "src/lib.rs"].map(|page| ("Cargo.toml".to_owned(), page.to_owned())),
    );
    none(members.flat_map(|(manifest, page)| untold_features(&file(&manifest), &file(&page))).collect());
}

fn untold_features(manifest: &File, page: &File) -> Vec<String> {
    let features = manifest.text.split_once("\n[features]\n").map_or("", |(_, after)| after);
    let features = features.split("\n[").next().unwrap_or_default().lines();
    features
        .filter_map(|line| Some(line.split_once(" = [")?.0))
        .filter(|name| *name != "default" && !name.starts_with("cuda-"))
        .filter(|name| !page.text.contains(&format!("| `{name}` |")))
        .map(|name| format!("{}: the feature `{name}` of {} is not documented", page.path, manifest.path))
        .collect()
}

/// docs.rs has the sources, but no other files of the repository.
#[test]
fn links_of_the_documentation_live_anywhere() {
    none(files().iter().filter(|file| file.is("rs")).flat_map(links_to_files).collect());
}

fn links_to_files(file: &File) -> Vec<String> {
    let mut problems = Vec::new();
    let mut before = "";
    for (index, line) in file.text.lines().enumerate() {
        let text = line.trim_start();
        let mut problem = |what: &str| problems.push(format!("{}:{}: {what}", file.path, index + 1));
        let doc = ["//!", "///"].iter().find_map(|start| text.strip_prefix(start));
        for (_, target) in markdown::links(doc.unwrap_or_default().trim_start()) {
            if !target.contains("://") && (target.contains(".md") || target.contains('/')) {
                problem(&format!("docs.rs has no {target}"));
            }
        }
        if let Some((_, included)) = text.split_once(concat!("#[doc = ", "include_str!(\""))
            && before != "#[cfg(doctest)]"
            && !has_no_links(file, included.split('"').next().unwrap_or_default())
        {
            problem("a file's links may be dead on docs.rs; write the page's text here");
        }
        before = text;
    }
    problems
}

/// Returns whether the file that a source includes exists and has no links.
fn has_no_links(file: &File, included: &str) -> bool {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let page = std::fs::read_to_string(root().join(folder).join(included));
    page.is_ok_and(|page| markdown::links(&page).is_empty())
}

/// A page of options in `layers/` is only useful in the documentation of the layer's type.
#[test]
fn pages_of_layers_are_in_the_documentation() {
    let all = files();
    let pages: Vec<&File> = all.iter().filter(|file| file.path.contains("/layers/")).collect();
    assert!(pages.len() >= 8, "only {} pages; is the search broken?", pages.len());
    none(pages.into_iter().filter_map(|page| unused_page(page, &all)).collect());
}

fn unused_page(page: &File, files: &[File]) -> Option<String> {
    let (member, name) = page.path.split_once("/layers/")?;
    let source = format!("{member}/src/");
    let included = format!("/layers/{name}\")]");
    let mut sources = files.iter().filter(|file| file.path.starts_with(&source));
    let is_used = sources.any(|file| file.text.contains(&included));
    (!is_used).then(|| format!("{}: no type of {source} includes it in its documentation", page.path))
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    none(circles::circles(&files(), &[]));
}

#[test]
fn other_lock_files_know_all_dependencies() {
    none(locks::stale(&files(), &members()));
}

/// The folders of the pool's sources. Each uses only the folders after it.
const LEVELS: [&str; 6] = ["pool", "store", "heap", "block_map", "stream_order", "sync"];

#[test]
fn folders_use_only_those_below() {
    none(circles::upward_uses(&files(), "resources/src/lib.rs", &LEVELS));
}

#[test]
fn the_guide_names_what_there_is() {
    let files = files();
    let of_pool = files.iter().filter(|file| file.path.starts_with("resources/src/"));
    let sources: Vec<File> = of_pool.cloned().collect();
    let guide = file("docs/book/src/from-rmm-cpp.md");
    none(
        [
            named::unknown_in_guide(&file("docs/book/src/design/pool.md"), &sources),
            named::unknown_names(&file("docs/lab/rmm.md"), &files),
            named::unknown_names(&guide, &files),
            named::code_outside_the_program(&guide, "Snippets"),
        ]
        .concat(),
    );
}

/// Tests that each rule finds the problems that it exists for.
#[path = "tidy/canary.rs"]
mod canary;
