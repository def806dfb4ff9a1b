//! Tests that `include/millpond.h` is `millpond.h.in` with the declarations of the sources.

use std::collections::BTreeMap;
use std::path::Path;

/// The width of the header.
const COLUMNS: usize = 100;

/// Stands for a space at which no line ends.
const FIXED: &str = "\u{a0}";

/// The sources of the header. `oracle` is for the tests of the Python package alone.
const MODULES: &[&str] = &[
    "status",
    "device",
    "order",
    "resource",
    "layers",
    "memory_pool",
    "pool_share",
    "registry",
    "callback",
    "manager",
    "metrics",
    "framework",
    "graph_pools",
    "history",
    "snapshot",
    "cached",
    "debug_log",
    "throwing",
];

/// Fills lines with the words of a text. The first line begins with `first`, each other with `rest`.
fn filled(first: &str, rest: &str, text: &str) -> String {
    let (mut done, mut line, mut is_new) = (String::new(), first.to_owned(), true);
    for word in text.split_ascii_whitespace() {
        if !is_new && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            done += &format!("{line}\n");
            (line, is_new) = (rest.to_owned(), true);
        }
        line = format!("{line}{}{word}", if is_new { "" } else { " " });
        is_new = false;
    }
    format!("{done}{line}\n").replace(FIXED, " ")
}

/// Makes a C comment from a Rust comment: filled to the header's width, and without headings.
fn comment(indent: &str, lines: &[&str]) -> String {
    let begin = format!("{indent}/// ");
    let paragraphs = lines.split(|line| line.is_empty()).map(|paragraph| paragraph.join(" "));
    let paragraphs = paragraphs.map(|text| match text.strip_prefix("# Safety ") {
        Some(duties) => filled(&begin, &begin, &format!("Requires: {duties}")),
        None => filled(&begin, &begin, &text),
    });
    paragraphs.collect::<Vec<_>>().join(&format!("{indent}///\n"))
}

/// The name that a declaration of cbindgen's declares.
fn declared(code: &str) -> &str {
    let before = match (code.split_once("(*"), code.starts_with("typedef")) {
        (Some((_, name)), true) => name.split(')').next(),
        (None, true) => code.trim_end_matches(';').rsplit(' ').next(),
        (_, false) => code.split('(').next().and_then(|code| code.rsplit([' ', '*']).next()),
    };
    before.expect("a split has a first part")
}

/// One declaration as a person would write it, and its name.
fn declaration(block: &str) -> (String, String) {
    let code = block.lines().filter(|line| !line.trim_start().starts_with("///"));
    let name = declared(&code.collect::<Vec<_>>().join("\n")).to_owned();
    let (mut text, mut words) = (String::new(), Vec::new());
    for line in block.lines() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        if let Some(words_of_line) = code.strip_prefix("///") {
            words.push(words_of_line.trim());
            continue;
        }
        if !words.is_empty() {
            text += &comment(indent, &std::mem::take(&mut words));
        }
        // A tag lets C++ declare a structure without this header.
        let line = line.strip_suffix(" {").map_or(line.to_owned(), |start| format!("{start} {name} {{"));
        let hanging = " ".repeat(line.find(['(']).map_or(0, |at| at + 1));
        let fixed = line.replace(' ', FIXED).replace(&format!(",{FIXED}"), ", ");
        text += &filled("", &hanging, &fixed);
    }
    (name, text)
}

/// Returns the declarations that cbindgen makes from the sources.
fn declarations(root: &Path) -> BTreeMap<String, String> {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("the configuration is right");
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = MODULES
        .iter()
        .fold(builder, |builder, module| builder.with_src(root.join(format!("src/{module}.rs"))));
    let mut made = Vec::new();
    builder.generate().expect("the sources can be read").write(&mut made);
    let made = String::from_utf8(made).expect("a header is text");
    made.split("\n\n").map(str::trim).filter(|block| !block.is_empty()).map(declaration).collect()
}

/// Returns the template with each line `@name` replaced by its declaration.
fn header(template: &str, mut declarations: BTreeMap<String, String>) -> String {
    let mut text = String::new();
    let mut is_after_declaration = false;
    for line in template.lines() {
        let name = line.strip_prefix('@');
        if let Some(name) = name {
            let declaration = declarations.remove(name);
            text += if is_after_declaration { "\n" } else { "" };
            text += &declaration.unwrap_or_else(|| panic!("millpond.h.in: no declaration of {name} is left"));
        } else {
            text += line;
            text.push('\n');
        }
        is_after_declaration = name.is_some();
    }
    let left: Vec<_> = declarations.keys().collect();
    assert!(left.is_empty(), "millpond.h.in: no section has {left:?}");
    let abi = millpond_c::status::millpond_abi_version().to_string();
    [
        ("$VERSION", env!("CARGO_PKG_VERSION")),
        ("$MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("$MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("$PATCH", env!("CARGO_PKG_VERSION_PATCH")),
        ("$ABI", &abi),
    ]
    .into_iter()
    .fold(text, |text, (name, value)| text.replace(name, value))
}

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let template = std::fs::read_to_string(root.join("millpond.h.in")).expect("the template is there");
    let made = header(&template, declarations(root));
    let file = root.join("include/millpond.h");
    if std::env::var_os("MILLPOND_WRITE").is_some() {
        std::fs::write(&file, &made).expect("the header can be written");
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        known == made,
        "include/millpond.h is outdated; run MILLPOND_WRITE=1 cargo test -p millpond-capi --test it header::"
    );
    let wide = made.lines().find(|line| line.chars().count() > COLUMNS);
    assert_eq!(wide, None, "a line of the header is wider than {COLUMNS} columns");
}
