//! Tests that each style rule finds the problems that it refuses.

use super::*;

/// Asserts that a rule finds exactly one problem in the bad file and none in the good one.
fn finds(rule: fn(&File) -> Vec<String>, bad: &File, good: &File) {
    assert_eq!(rule(bad).len(), 1, "{bad:?}: {:?}", rule(bad));
    assert_eq!(rule(good), [""; 0], "{good:?}");
}

#[test]
fn lengths_are_found() {
    let lines = |count: usize| File::of("a.rs", "// x\n".repeat(count));
    finds(lengths, &lines(FILE_LINES + 1), &lines(FILE_LINES));
    let columns = |count: usize| File::of("a.rs", format!("// {}\n", "é".repeat(count - 3)));
    finds(lengths, &columns(COLUMNS + 1), &columns(COLUMNS));
    let function =
        |count: usize| File::of("a.rs", format!("fn f() {{\n{}}}\n", "f(\"{\");\n".repeat(count - 2)));
    finds(lengths, &function(FUNCTION_LINES + 1), &function(FUNCTION_LINES));
    finds(lengths, &File::of("run.sh", "#".repeat(COLUMNS + 1)), &File::of("a.md", "x".repeat(COLUMNS + 1)));
}

#[test]
fn long_lines_of_documents_are_found() {
    let text = |count: usize| format!("a {}\n", "x".repeat(count - 2));
    finds(long_prose, &File::of("a.md", text(COLUMNS + 1)), &File::of("a.md", text(COLUMNS)));
    let free = ["| ", "# ", "<img ", "https://a/"].map(|start| format!("{start}{}\n", "x".repeat(COLUMNS)));
    let good = format!("{}```\n{}```\n", free.concat(), text(COLUMNS + 1));
    finds(long_prose, &File::of("a.md", text(COLUMNS + 1)), &File::of("a.md", good));
}

#[test]
fn sources_without_a_purpose_are_found() {
    assert!(no_purpose(&File::of("a.rs", "use std::fmt;\n\n//! Prints.\n")).is_some());
    assert_eq!(no_purpose(&File::of("a.rs", "//! Prints.\n\nuse std::fmt;\n")), None);
}

#[test]
fn house_phrases_are_found() {
    for (phrase, _) in words::PHRASES {
        let good = File::of("a.rs", format!("// It uses_{phrase} {phrase}_of {phrase}ly.\n"));
        finds(house_phrases, &File::of("a.rs", format!("//! Then {phrase}.\n")), &good);
        // The phrase is also found across two comment lines and with a capital letter.
        let broken =
            phrase.replacen(' ', "\n    /// ", 1).replacen(&phrase[..1], &phrase[..1].to_uppercase(), 1);
        finds(house_phrases, &File::of("a.rs", format!("    /// {broken}\n")), &good);
        finds(house_phrases, &File::of("a.md", format!("- {broken}\n")), &File::of("a.svg", phrase));
    }
}

#[test]
fn rows_of_two_lines_are_found() {
    let good = "//! | a | b |\nlet or = 1 | 2;\n    /// | c | d |\n/// a | b\n";
    finds(broken_rows, &File::of("a.rs", "//! | a | b\n//! c |\n"), &File::of("a.rs", good));
}

#[test]
fn tics_are_counted() {
    for (tic, allowed) in tics::TICS {
        let file = |uses: usize| [File::of("a.rs", format!("// Then {tic} then.\n").repeat(uses))];
        assert_eq!(tics::too_frequent(&file(allowed)), [""; 0]);
        assert_eq!(tics::too_frequent(&file(allowed + 1)).len(), allowed + 1, "{tic}");
    }
}

#[test]
fn tics_are_found_in_texts_only() {
    let uses = |path: &str, text: &str| tics::uses(&File::of(path, text)).len();
    for (tic, _) in tics::TICS {
        let across = |between: &str| tic.replacen(' ', between, 1);
        for text in [
            format!("let a = f(\"Then {tic}.\"); // then\n"),
            format!("let a = 1; // Then {}\n", tic.to_uppercase()),
            format!("/// Then {}.\n", across("\n    /// ")),
            format!("let a = \"then {}\";\n", across(" \\\n    ")),
        ] {
            assert_eq!(uses("a/src/a.rs", &text), 1, "{text}");
        }
        let text = format!("# Then {tic}: {tic}.\n");
        assert_eq!((uses("a.py", &text), uses("docs/a.md", &text), uses(".ci/run", &text)), (2, 2, 2));
        for path in ["docs/lab/a.md", "CHANGELOG.md", "LICENSE-MIT", "a/a.plan"] {
            assert_eq!(uses(path, &text), 0, "{path}");
        }
        assert_eq!(uses("a.rs", &format!("let {tic} = a.{tic}(); // a_{tic} {tic}s\n")), 0, "{tic}");
    }
}

#[test]
fn leftovers_are_found() {
    for leftover in LEFTOVERS {
        let bad = File::of("a.rs", format!("fn f() {{ {leftover} }}"));
        finds(leftovers, &bad, &File::of("a.rs", format!("my_{leftover}")));
    }
}

#[test]
fn machine_paths_are_found() {
    for path in &MACHINE_PATHS {
        let bad = File::of("a.sh", format!("cd {path} x"));
        finds(machine_paths, &bad, &File::of("a.sh", format!("cd here{path} x")));
    }
    let lock = |host: &str| File::of("Cargo.lock", format!("source = \"registry+https://{host}\"\n"));
    finds(machine_paths, &lock("mirror.example"), &lock("github.com/rust-lang/crates.io-index"));
}

#[test]
fn ignored_tests_without_a_reason_are_found() {
    let good = File::of("a.rs", format!("#[ignore = \"{IGNORE_REASON}\"]"));
    finds(ignored, &File::of("a.rs", "#[ignore]"), &good);
    finds(ignored, &File::of("a.rs", "#[ignore = \"slow\"]"), &good);
}

#[test]
fn dead_links_are_found() {
    let good = File::of("docs/a.md", "# Here\n[a](#here) [b](../Cargo.toml) [c](https://example.org)\n");
    finds(dead_links, &File::of("docs/a.md", "[a](../no-such-file.md)"), &good);
    finds(dead_links, &File::of("a.md", "# Here\n[a](#there)\n"), &good);
    finds(dead_links, &File::of("a.md", "[a](CHANGELOG.md#no-such-heading)\n"), &good);
}

#[test]
fn gaps_in_the_readme_are_found() {
    let text = format!("`first.rs`\n```sh\n{TEST_COMMAND}\n```\n");
    let problems = |text: &str, examples: &[&str]| {
        let examples: Vec<String> = examples.iter().map(|&name| name.to_owned()).collect();
        missing_from_readme(&File::of("README.md", text), &examples).len()
    };
    assert_eq!(problems(&text, &["first.rs"]), 0);
    assert_eq!(problems(&text, &["first.rs", "stack.rs"]), 1);
    assert_eq!(problems(&text.replace("```sh", "```text"), &["first.rs"]), 1);
}

#[test]
fn a_changelog_out_of_form_is_found() {
    let text = "# Changelog\n\n## [0.1.0] - Unreleased\n\n### Added\n\n### Security\n";
    let problems = |text: &str| changelog(&File::of("CHANGELOG.md", text), "0.1.0").len();
    assert_eq!(problems(text), 0);
    assert_eq!(problems(&text.replace("Unreleased", "2026-01-31")), 0);
    for (from, to) in
        [("Unreleased", "soon"), ("Added", "New"), ("### Security", "### Fixed"), ("# Ch", "# ch")]
    {
        assert_eq!(problems(&text.replacen(from, to, 1)), 1, "{to}");
    }
    assert_eq!(problems(&text.replace("0.1.0", "0.0.9")), 1);
}

#[test]
fn missing_paths_are_found() {
    assert_eq!(missing_paths(&["| x | `core/src/<name>.rs`, `tests/tidy.rs`, `cargo doc` |"]), [""; 0]);
    assert_eq!(missing_paths(&["| x | `core/no-such-folder/<name>.rs` |", "| `no/file.rs` |"]).len(), 2);
}

#[test]
fn unlisted_layers_are_found() {
    let implements = "unsafe impl<R> DeviceMemoryResource for Pool<R> {}";
    let files = [
        File::of(
            "resources/src/pool/entry.rs",
            "pub const ENTRY: LayerEntry = LayerEntry {\n    name: \"pool\",\n",
        ),
        File::of("resources/src/pool/mod.rs", implements),
        File::of("resources/src/map.rs", "// impl DeviceMemoryResource for a comment"),
        File::of("resources/src/silent.rs", implements),
        File::of("resources/src/probe.rs", implements),
        File::of("resources/src/lib.rs", implements),
        File::of("adaptors/src/other.rs", implements),
    ];
    let library = "#[cfg(test)]\nmod probe;\npub const LAYERS: &[LayerEntry] = &[pool::ENTRY];";
    let found = layers_in("resources", library, &files);
    let layer = |module: &str, names: &[&str]| LayerModule {
        module: module.to_owned(),
        names: names.iter().map(|&name| name.to_owned()).collect(),
    };
    assert_eq!(found, [layer("pool", &["pool"]), layer("silent", &[])]);
    assert_eq!(unlisted("resources", &found[..1], library, "cuda+pool"), [""; 0]);
    assert_eq!(unlisted("resources", &found, library, "cuda+pool").len(), 1);
    assert_eq!(unlisted("resources", &found[..1], "pool::ENTRY;", "cuda+pool").len(), 1);
    assert_eq!(unlisted("resources", &found[..1], library, "cuda").len(), 1);
    let told = format!("mod silent; // no text: it has a function\n{library}");
    assert_eq!(unlisted("resources", &found, &told, "cuda+pool"), [""; 0]);
    let told = format!("mod pool; // no text\n{}", library.replace("pool::ENTRY", ""));
    assert_eq!(unlisted("resources", &found[..1], &told, "cuda+pool").len(), 1, "it has a text");
}

#[test]
fn forbidden_arrows_are_found() {
    let rows = ["| folder | holds | may depend on |", "| `adaptors/` | `logging` | `core` |"];
    let manifest = |dependencies: &str| {
        File::of("adaptors/Cargo.toml", format!("[package]\n\n[dependencies]\n{dependencies}"))
    };
    let good =
        manifest("csv = \"1\"\nmillpond-core.workspace = true\n\n[dev-dependencies]\nmillpond-x = 1\n");
    let bad = manifest("millpond-core.workspace = true\nmillpond-logging = { path = \"x\" }\n");
    assert_eq!(arrows("adaptors", &rows, &good), [""; 0]);
    assert_eq!(arrows("adaptors", &rows, &bad).len(), 1);
    assert_eq!(arrows("core", &rows, &good).len(), 1);
}

#[test]
fn manifests_of_their_own_are_found() {
    let good = File::of("core/Cargo.toml", file("core/Cargo.toml").text);
    let bad =
        File::of("core/Cargo.toml", good.text.replace("edition.workspace = true", "edition = \"2021\""));
    finds(own_settings, &bad, &good);
}

#[test]
fn features_that_nothing_tells_of_are_found() {
    let features = "default = [\"a\"]\na = []\ncuda-12080 = [\"a\"]\n\n[dependencies]\nb = [\n";
    let manifest = File::of("core/Cargo.toml", format!("[package]\n\n[features]\n{features}"));
    let page = |text: &str| File::of("core/README.md", text);
    assert_eq!(untold_features(&manifest, &page("| `a` | yes | more |")), [""; 0]);
    assert_eq!(untold_features(&manifest, &page("there is an `a`")).len(), 1);
}

#[test]
fn links_that_docs_rs_lacks_are_found() {
    let include = concat!("#[cfg(doctest)]\n#[doc = ", "include_str!(\"a.md\")]\n");
    let good = File::of("src/lib.rs", format!("//! [a](https://example.org/a.md) [b](Self::b)\n{include}"));
    finds(links_to_files, &File::of("src/lib.rs", "/// [a](docs/a.md)\n"), &good);
    finds(links_to_files, &File::of("src/lib.rs", "/// [a](../b.html)\n"), &good);
    let missing = good.text.replace("#[cfg(doctest)]\n", "");
    finds(links_to_files, &File::of("src/lib.rs", missing.as_str()), &good);
    let [with_links, without] = ["../README.md", "../adaptors/layers/logging.md"]
        .map(|page| File::of("src/lib.rs", missing.replace("a.md\")]", &format!("{page}\")]"))));
    finds(links_to_files, &with_links, &without);
}

#[test]
fn pages_that_no_type_includes_are_found() {
    let page = File::of("core/layers/a.md", "");
    let used = [File::of("core/src/a.rs", "#[doc = include(\"../layers/a.md\")]\n")];
    assert_eq!(unused_page(&page, &used), None);
    let elsewhere = [File::of("driver/src/a.rs", used[0].text.as_str())];
    assert!(unused_page(&page, &elsewhere).is_some());
}

#[test]
fn circles_between_files_are_found() {
    let files = |texts: [&str; 3]| {
        let paths = ["a/src/lib.rs", "a/src/one.rs", "a/src/two/mod.rs"];
        paths.into_iter().zip(texts).map(|(path, text)| File::of(path, text)).collect::<Vec<_>>()
    };
    fn found(files: Vec<File>, excluded: &[&str]) -> usize {
        circles::circles(&files, excluded).len()
    }
    let root = "mod one;\nmod two;\npub use two::Two;\n";
    let uses_two = "use crate::Two;\nfn f(_: Two) {}\n";
    assert_eq!(found(files([root, uses_two, "pub struct Two;"]), &[]), 0);
    // A circle can go through a re-export, a path without `use`, a group, or a module of the file.
    let back = ["use super::one::f;", "fn g() { crate::one::f() }", "use crate::{one::{self as x, f}};"];
    for back in back.into_iter().chain(["mod inner { use crate::one::f; }"]) {
        assert_eq!(found(files([root, uses_two, &format!("pub struct Two;\n{back}")]), &[]), 1, "{back}");
    }
    // A circle: a child uses an item of its parent, and the parent uses the child.
    let parent = "mod one;\nuse one::f;\npub struct Two;\n";
    assert_eq!(found(files([parent, uses_two, ""]), &[]), 1);
    assert_eq!(found(files([parent, uses_two, ""]), &["a/"]), 0);
    let tests = "pub struct Two;\n#[cfg(test)]\nmod tests {\n    use crate::one::f;\n}\n";
    assert_eq!(found(files([root, uses_two, tests]), &[]), 0);
    // Comments, strings and other crates are not followed.
    let text = "// use crate::one::f;\npub struct Two(std::io::Error);\nconst S: &str = \"crate::one::f\";\n";
    assert_eq!(found(files([root, uses_two, text]), &[]), 0);
}

#[test]
fn uses_of_folders_above_are_found() {
    let files = |low: &str| {
        let root = File::of("a/src/lib.rs", "mod high;\nmod low;\n");
        let high = File::of("a/src/high/mod.rs", "use crate::low::Low;\npub struct High(Low);\n");
        vec![root, high, File::of("a/src/low.rs", format!("pub struct Low;\n{low}"))]
    };
    let found = |low: &str| circles::upward_uses(&files(low), "a/src/lib.rs", &["high", "low"]).len();
    assert_eq!((found(""), found("fn f(_: crate::high::High) {}\n")), (0, 1));
}

#[test]
fn names_that_no_source_has_are_found() {
    let sources =
        [File::of("resources/src/pool/arena.rs", "impl Arena {\n    fn lock_all() {}\n}\nstruct Arena;")];
    let page = |name: &str| {
        named::unknown_in_guide(
            &File::of("docs/book/src/design/pool.md", format!("see `{name}` and more")),
            &sources,
        )
        .len()
    };
    for name in
        ["pool/", "pool/arena.rs", "arena.rs", "Arena::lock_all", "lock_all", "cuMemCreate", "pages=off"]
    {
        assert_eq!(page(name), 0, "{name}");
    }
    for name in ["pool/other.rs", "lock", "Arena::unlock", "lock_all_of", "heap/"] {
        assert_eq!(page(name), 1, "{name}");
    }
}

#[test]
fn names_that_no_file_has_are_found() {
    let files = [
        File::of("a/tests/one.rs", "fn it_works() {}\nfn helper() {}\nrun! {\n    in_turn => body;\n}\n"),
        File::of("a/src/lib.rs", "pub struct Pool;\nenum Kind {\n    Large,\n}\nname: \"pool\","),
    ];
    let problems = |row: &str| named::unknown_names(&File::of("docs/lab/rmm.md", row), &files).len();
    for right in [
        "| `their_pool` | `Pool`, `pool`, `Kind::Large`, `pool:max=1` | `a/tests/one.rs`: `it_works` |",
        "| a | b | `a/tests/one.rs`: `in_turn` |",
        "| a | `a/src/` | b |",
        "`Pool` in prose",
        "```cpp\n| a | `nothing` |\n```",
    ] {
        assert_eq!(problems(right), 0, "{right}");
    }
    for wrong in [
        "| `Pool` | `TheirPool` | |",
        "| a | b | `a/tests/two.rs` |",
        "| a | b | `a/tests/one.rs`: `it_work` |",
        "| a | b | `a/src/lib.rs`: `it_works` |",
        "| a | `Kind::Small` | |",
        "| a | `a/other/` | |",
        "`their_pool` in prose",
    ] {
        assert_eq!(problems(wrong), 1, "{wrong}");
    }
}

#[test]
fn code_that_no_program_has_is_found() {
    let page = |row: &str| {
        let text =
            format!("## Snippets\n| c++ | rust |\n|---|---|\n{row}\n```rust\nlet a = |b|\n    b + 1;\n```\n");
        named::code_outside_the_program(&File::of("docs/lab/rmm.md", text), "Snippets").len()
    };
    assert_eq!(page("| `x` | `let a = \\|b\\| b + 1;` |"), 0);
    assert_eq!(page("| `x` | `let a = \\|b\\| b + 2;` |"), 1);
}

#[test]
fn pages_that_no_index_links_to_are_found() {
    let index = File::of("docs/book/src/SUMMARY.md", "- [Pool](design/pool.md)\n");
    let found = |page: &str| unindexed(&index, "docs/book/src/", &[File::of(page, "")]).len();
    assert_eq!((found("docs/book/src/design/pool.md"), found("docs/lab/gpu.md")), (0, 0));
    assert_eq!((found("docs/book/src/SUMMARY.md"), found("docs/book/src/gpu.md")), (0, 1));
    let index = File::of("docs/README.md", "| [gpu](lab/gpu.md) | x |\n");
    let found = |page: &str| unindexed(&index, "docs/lab/", &[File::of(page, "")]).len();
    assert_eq!((found("docs/lab/gpu.md"), found("docs/lab/pages.md")), (0, 1));
}

#[test]
fn programs_that_no_test_runs_are_found() {
    let page = |text: &str| File::of("docs/book/src/rust.md", text);
    let tested = "run_programs_of! { \"../docs/book/src/rust.md\" }";
    assert!(untested(&page("```rust,no_run\n```\n"), "").is_some());
    assert!(untested(&page("```rust\n```\n"), tested).is_none());
    assert!(untested(&page("```console\n```\n"), "").is_none());
}

#[test]
fn lock_files_that_lack_a_dependency_are_found() {
    let manifest =
        "[package]\nname = \"a\"\n[dependencies]\nb = \"1\"\nc = { version = \"1\", optional = true }\n";
    let lock = |names: &str| {
        let text = format!("[[package]]\nname = \"a\"\nversion = \"0.1.0\"\ndependencies = [\n{names}]\n");
        [File::of("a/Cargo.toml", manifest), File::of("integrations/x/Cargo.lock", text)]
    };
    let found = |names: &str| locks::stale(&lock(names), &["a".to_owned()]).len();
    assert_eq!((found(" \"b\",\n"), found(" \"b 1.2.0\",\n"), found(" \"c\",\n")), (0, 0, 1));
}
