//! Tells code from strings and comments, and finds the ends of functions.

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of its `fn`, from 1.
    pub(crate) line: usize,
    /// The number of lines from that line to the closing brace's line.
    pub(crate) lines: usize,
}

/// Returns the source with all strings, characters and comments replaced by blanks. Lines keep their numbers.
pub(crate) fn code(source: &str) -> String {
    one_kind(source, false)
}

/// Returns only the strings, characters and comments of the source, with blanks for the code. Lines keep
/// their numbers.
pub(crate) fn texts(source: &str) -> String {
    one_kind(source, true)
}

/// Returns the source with blanks for the code, or for everything else.
fn one_kind(source: &str, keeps_texts: bool) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = token_end(&chars, at);
        let is_kept = (end > at + 1) == keeps_texts;
        out.extend(chars[at..end].iter().map(|&c| if is_kept || c == '\n' { c } else { ' ' }));
        at = end;
    }
    out
}

/// Returns the strings of a source without quotes, each with its line, from 1.
pub(crate) fn strings(source: &str) -> Vec<(usize, String)> {
    let chars: Vec<char> = source.chars().collect();
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let end = token_end(&chars, at);
        let token: String = chars[at..end].iter().collect();
        if end > at + 1 && token.trim_start_matches(['r', 'b', 'c', '#']).starts_with('"') {
            let inside = token.trim_start_matches(|c| c != '"').trim_matches(['"', '#']);
            found.push((line, inside.to_owned()));
        }
        line += token.matches('\n').count();
        at = end;
    }
    found
}

/// Returns the end of the comment, string or character that starts at `at`; `at + 1` if none starts there.
fn token_end(chars: &[char], at: usize) -> usize {
    let starts = |text: &str| chars[at..].iter().copied().take(text.len()).eq(text.chars());
    let in_word = at > 0 && is_word(chars[at - 1]);
    if starts("//") {
        chars[at..].iter().position(|&c| c == '\n').map_or(chars.len(), |n| at + n)
    } else if starts("/*") {
        block_comment_end(chars, at)
    } else if starts("\"") {
        string_end(chars, at)
    } else if starts("'") {
        char_end(chars, at)
    } else if !in_word && ["r", "br", "cr"].iter().any(|prefix| starts(prefix)) {
        raw_string_end(chars, at).unwrap_or(at + 1)
    } else {
        at + 1
    }
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut end) = (0_usize, at);
    while end + 1 < chars.len() {
        match (chars[end], chars[end + 1]) {
            ('/', '*') => (depth, end) = (depth + 1, end + 2),
            ('*', '/') => (depth, end) = (depth - 1, end + 2),
            _ => end += 1,
        }
        if depth == 0 {
            return end;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut end = at + 1;
    while end < chars.len() && chars[end] != '"' {
        end += if chars[end] == '\\' { 2 } else { 1 };
    }
    (end + 1).min(chars.len())
}

/// Returns the end of a character at its quote; a lifetime is not a character.
fn char_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), Some(_)) => {
            chars[at + 3..].iter().position(|&c| c == '\'').map_or(chars.len(), |n| at + 4 + n)
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at + 1,
    }
}

fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let r = at + chars[at..].iter().position(|&c| c == 'r')?;
    let hashes = chars[r + 1..].iter().take_while(|&&c| c == '#').count();
    let open = r + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let mut end = open + 1;
    while end < chars.len() {
        end += 1;
        if chars[end - 1] == '"' && chars[end..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
        {
            return Some(end + hashes);
        }
    }
    Some(chars.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns all functions with bodies in code from [`code`], including nested functions.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let chars: Vec<char> = code.chars().collect();
    let line_of = |at: usize| 1 + chars[..at].iter().filter(|&&c| c == '\n').count();
    let mut found = Vec::new();
    for at in words(&chars, "fn") {
        let name: String = chars[at + 2..]
            .iter()
            .skip_while(|c| c.is_whitespace())
            .take_while(|&&c| is_word(c) || "$#".contains(c))
            .collect();
        // A function pointer's type has no name, and a required method has no body.
        if let (false, Some(end)) = (name.is_empty(), body_end(&chars, at)) {
            found.push(Function { name, line: line_of(at), lines: line_of(end) - line_of(at) + 1 });
        }
    }
    found
}

/// Returns the places where a word stands alone.
fn words(chars: &[char], word: &str) -> Vec<usize> {
    let length = word.chars().count();
    let goes_on_before = |at: usize| at > 0 && is_word(chars[at - 1]);
    let goes_on_after = |at: usize| chars.get(at + length).is_some_and(|&c| is_word(c));
    (0..chars.len())
        .filter(|&at| chars[at..].iter().copied().take(length).eq(word.chars()))
        .filter(|&at| !goes_on_before(at) && !goes_on_after(at))
        .collect()
}

/// Returns the end of the body of the function that starts at `at`, if it has a body.
fn body_end(chars: &[char], at: usize) -> Option<usize> {
    let (mut brackets, mut braces) = (0_i32, 0_i32);
    for (index, c) in chars.iter().enumerate().skip(at) {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if braces == 0 && brackets == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 {
                    return Some(index);
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns the lines of the `#[ignore…]` attributes, and their reasons if given.
pub(crate) fn ignores(source: &str) -> Vec<(usize, Option<String>)> {
    let code = code(source);
    let mut found = Vec::new();
    for (index, (line, blanked)) in source.lines().zip(code.lines()).enumerate() {
        let blanked: Vec<char> = blanked.chars().collect();
        for at in words(&blanked, "ignore") {
            let before: String = blanked[..at].iter().collect();
            if !before.contains("#[") {
                continue;
            }
            let after: String = line.chars().skip(at + "ignore".len()).collect();
            let reason = after
                .trim_start()
                .strip_prefix('=')
                .and_then(|value| value.trim_start().strip_prefix('"'))
                .and_then(|value| value.split('"').next())
                .filter(|reason| !reason.trim().is_empty());
            found.push((index + 1, reason.map(str::to_owned)));
        }
    }
    found
}

/// Feeds the scanner difficult cases.
mod canary {
    use super::*;

    #[test]
    fn strings_comments_and_characters_are_no_code() {
        let source = "let a = \"{ \\\" }\"; // }\nlet b = '{'; /* { /* } */ { */ let c = '\\'';\n\
                      let d = r##\"} \"# {\"##; let e = br\"\\\"; fn life<'a>(x: &'a str) -> char { '\"' }\n";
        let blanked = code(source);
        assert_eq!(blanked.lines().count(), source.lines().count());
        assert_eq!(blanked.matches('{').count(), 1, "{blanked}");
        assert_eq!(blanked.matches('}').count(), 1, "{blanked}");
        for kept in ["let a", "let b", "let c", "let d", "let e", "fn life<'a>(x: &'a str)"] {
            assert!(blanked.contains(kept), "{kept} is lost in {blanked}");
        }
        let others = texts(source);
        for ((c, in_code), in_texts) in source.chars().zip(blanked.chars()).zip(others.chars()) {
            assert!(c.is_whitespace() || (in_code == c) != (in_texts == c), "`{c}` in {others}");
        }
    }

    #[test]
    fn functions_are_found_and_measured() {
        let source = "trait T {\n    fn none(&self, a: [u8; 3]);\n    fn one(&self) {}\n}\n\
                      struct S(fn(u8) -> u8);\nfn four(\n    s: &str,\n) -> usize {\n    s.len() }\n\
                      fn outer() {\n    let _ = \"}\";\n    fn inner() {\n    }\n}\nconst AFTER: u8 = 0;\n";
        let found: Vec<_> = functions(&code(source)).into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        let expected = [("one", 3, 1), ("four", 6, 4), ("outer", 10, 5), ("inner", 12, 2)];
        assert_eq!(found, expected.map(|(name, line, lines)| (name.to_owned(), line, lines)));
    }

    #[test]
    fn ignored_tests_are_found() {
        let source = "#[ignore]\n#[ignore = \"\"]\n#[ignore = \"needs x\"]\n#[cfg_attr(miri, ignore)]\n\
                      // #[ignore]\nlet ignore = \"#[ignore]\";\n";
        let expected = [(1, None), (2, None), (3, Some("needs x".to_owned())), (4, None)];
        assert_eq!(ignores(source), expected);
    }
}
