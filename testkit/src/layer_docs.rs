//! The options of layers as rustdoc pages. The pages are made from the entries that `--list-layers` prints.
//!
//! A crate has a page for each of its layers, `layers/NAME.md`. The layer's type includes this page with
//! `#[doc = include_str!(…)]`. A test of the crate calls [`check`], which fails if a page and its entry
//! differ. With MILLPOND_WRITE=1, it rewrites the pages.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use millpond_core::environment;
use millpond_core::stack::LayerEntry;

/// Returns a layer's name and options as Markdown.
pub fn page(entry: &LayerEntry) -> String {
    let LayerEntry { name, about, params, .. } = entry;
    let mut page = format!(
        "<!-- Made from the entry of `{name}`: MILLPOND_WRITE=1 in the test `layer_docs` writes it. -->\n\n\
         # In a stack's text\n\n`{name}`: {about}.\n\n"
    );
    page += match params {
        [] => "It has no options.\n",
        _ => "| option | value |\n|---|---|\n",
    };
    for (option, about) in *params {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| `{option}` | {} |", about.replace('|', "\\|"));
    }
    page
}

/// Checks that `folder` has the [`page`] of each layer. Also checks that each option states its default, or
/// that it is required. With MILLPOND_WRITE=1, writes the pages.
///
/// # Panics
/// If a check fails or a page cannot be written.
pub fn check(folder: impl AsRef<Path>, layers: &[LayerEntry]) {
    check_or_write(folder.as_ref(), layers, environment::variable("MILLPOND_WRITE").is_some());
}

fn check_or_write(folder: &Path, layers: &[LayerEntry], writes: bool) {
    for entry in layers {
        for (option, about) in entry.params {
            let has_default = ["default", "required"].iter().any(|word| about.contains(word));
            assert!(has_default, "`{option}` of `{}` does not say its default: {about}", entry.name);
        }
        let (file, page) = (folder.join(format!("{}.md", entry.name)), page(entry));
        if writes {
            let written = fs::create_dir_all(folder).and_then(|()| fs::write(&file, &page));
            written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        let there = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(there, page, "{}: run this test once with MILLPOND_WRITE=1", file.display());
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::stack::LayerKind;

    use super::*;

    const ENTRY: LayerEntry = LayerEntry {
        name: "own",
        about: "adds nothing",
        params: &[("size", "bytes (default 0)"), ("mode", "a|b (default a)")],
        kind: LayerKind::Layer(|_, upstream| Ok(upstream)),
    };

    #[test]
    fn a_page_names_all_options() {
        let text = page(&ENTRY);
        assert!(text.contains("\n`own`: adds nothing.\n\n| option |"), "{text}");
        assert!(text.ends_with("| `size` | bytes (default 0) |\n| `mode` | a\\|b (default a) |\n"), "{text}");
        assert!(page(&LayerEntry { params: &[], ..ENTRY }).ends_with("\n\nIt has no options.\n"));
    }

    #[test]
    #[should_panic(expected = "MILLPOND_WRITE=1")]
    fn a_page_that_is_missing_is_found() {
        check_or_write("no such folder".as_ref(), &[ENTRY], false);
    }

    #[test]
    #[should_panic(expected = "does not say its default")]
    fn an_option_without_a_default_is_found() {
        let entry = LayerEntry { params: &[("size", "bytes")], ..ENTRY };
        check_or_write("no such folder".as_ref(), &[entry], false);
    }
}
