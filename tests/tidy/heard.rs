//! Tests that texts which reach programs in Python, C or a shell use no Rust terms, and that one rule governs
//! reading the environment.

use super::{File, files, none, rust};

/// The crates whose errors reach Python and C.
const HEARD: [&str; 7] = ["adaptors", "capi", "core", "driver", "plugin", "python", "resources"];
/// Files whose texts reach only programs in Rust.
const RUST_ONLY: [&str; 1] = ["driver/src/cuda/beside_cudarc.rs"];
/// Words that mean nothing to a reader who does not know Rust.
const RUST: [&str; 12] = [
    "Arc",
    "Box",
    "Rc",
    "Vec",
    "StreamRef",
    "DriverHandle",
    "AnyResource",
    "Err(",
    "Some(",
    "&mut ",
    "&self",
    "::",
];

/// Returns the part of a source before its tests; nothing for a file of tests.
fn without_tests(file: &File) -> &str {
    let is_test = ["/tests/", "/tests.rs", "_tests.rs", "/benches/", "/examples/", "/build.rs"];
    if !file.is("rs") || !file.path.contains("/src/") || is_test.iter().any(|it| file.path.contains(it)) {
        return "";
    }
    file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

fn holds(text: &str, word: &str) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
        let is_name = word.chars().all(char::is_alphanumeric);
        !is_name || !is_word(before) && !is_word(after)
    })
}

/// Checks sentences only: a text without a space is a name, such as the target of an event. The compiler's
/// messages reach only programs in Rust.
fn rust_in_sentences(file: &File) -> Vec<String> {
    let is_heard = HEARD.iter().any(|member| file.path.starts_with(&format!("{member}/src/")));
    if !is_heard || RUST_ONLY.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let source = without_tests(file);
    let lines: Vec<&str> = source.lines().collect();
    let is_sentence = |line: usize, text: &str| {
        let mut above = lines.iter().take(line).rev();
        let item = above.find(|line| !line.starts_with(' ')).copied().unwrap_or_default();
        let is_attribute = lines.get(line - 1).is_some_and(|line| line.trim_start().starts_with("#["));
        text.contains(' ') && !is_attribute && !item.starts_with("#[diagnostic::")
    };
    let sentences = rust::strings(source).into_iter().filter(|(line, text)| is_sentence(*line, text));
    sentences
        .filter_map(|(line, text)| {
            let word = RUST.iter().find(|word| holds(&text, word))?;
            Some(format!("{}:{line}: `{word}` in a text that reaches Python and C: {text}", file.path))
        })
        .collect()
}

#[test]
fn texts_that_reach_python_have_no_rust() {
    none(files().iter().flat_map(rust_in_sentences).collect());
}

#[test]
fn rust_in_texts_is_found() {
    for word in RUST {
        let text = |word: &str| format!("fn f() {{ error(\"keep the {word}x alive\") }}\n");
        let word = word.trim_end();
        let bad = File::of("core/src/a.rs", text(&format!("{word} ")));
        assert_eq!(rust_in_sentences(&bad).len(), 1, "{bad:?}");
        let raw = File::of("capi/src/a.rs", format!("const A: &str = r#\"the {word} of \"it\"\"#;\n"));
        assert_eq!(rust_in_sentences(&raw).len(), 1, "{raw:?}");
        for fine in [
            File::of("replay/src/a.rs", text(&format!("{word} "))),
            File::of(
                "core/src/a.rs",
                format!("#[diagnostic::a(\n    note = \"the {word} \\\n        b\"\n)]\n"),
            ),
            File::of("core/src/a.rs", format!("// the {word} of it\nfn f() {{ event(\"a{word}b\") }}\n")),
            File::of(
                "core/src/a.rs",
                format!("#[cfg(test)]\nmod tests {{ const A: &str = \"a {word} b\"; }}\n"),
            ),
        ] {
            assert_eq!(rust_in_sentences(&fine), [""; 0], "{fine:?}");
        }
    }
}

/// The file with the function that reads a variable, and a file that cannot use it. The Python module has
/// nothing from `core`, and follows the rule by itself.
const READERS: [&str; 2] = ["core/src/environment.rs", "python/src/device.rs"];

fn reads_the_environment(file: &File) -> Vec<String> {
    let is_test = ["/peers.rs", "/canary.rs"].iter().any(|name| file.path.ends_with(name));
    if is_test || READERS.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let code = rust::code(without_tests(file));
    let lines = code.lines().enumerate().filter(|(_, line)| line.contains("env::var"));
    lines
        .map(|(at, _)| format!("{}:{}: read it by `millpond_core::environment::variable`", file.path, at + 1))
        .collect()
}

#[test]
fn an_empty_variable_counts_as_unset_everywhere() {
    none(files().iter().flat_map(reads_the_environment).collect());
    for call in ["std::env::var(\"A\")", "env::var_os(NAME)"] {
        let text = format!("fn f() {{ {call}; }}\n");
        assert_eq!(reads_the_environment(&File::of("adaptors/src/a.rs", text.as_str())).len(), 1);
        assert_eq!(reads_the_environment(&File::of("adaptors/src/a/tests.rs", text.as_str())), [""; 0]);
    }
}
