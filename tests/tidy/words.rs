//! Phrases that the sources and documents must not use, because they hide the actor or the number.

/// Each refused phrase, in lower case, and its replacement.
pub(crate) const PHRASES: [(&str, &str); 27] = [
    ("whoever", "name the actor"),
    ("whomever", "name the actor"),
    ("nobody", "name the actor that does not"),
    ("somebody", "name the actor"),
    ("anybody", "name the actor"),
    ("everybody", "name the actors"),
    ("anyone's", "unowned, or free for any stream"),
    ("for who", "name the actor"),
    ("by who", "name the actor"),
    ("of who", "name the actor"),
    ("to who", "name the actor"),
    ("from who", "name the actor"),
    ("as does who", "name the actor"),
    ("be had", "is available, is allocated"),
    ("is had", "is available, is allocated"),
    ("are had", "are available, are allocated"),
    ("was had", "was available, was allocated"),
    ("were had", "were available, were allocated"),
    ("been had", "been available, been allocated"),
    ("had by", "used by, allocated by"),
    ("had back", "reclaimed"),
    ("had of", "reclaimed from"),
    ("so many", "name the number"),
    ("so few", "name the number"),
    ("how many-th", "its number"),
    ("old news", "stale"),
    ("goes by", "depends on"),
];

/// Returns the lines of a text's refused phrases, with the phrases' indices in `PHRASES`.
pub(crate) fn refused(text: &str) -> Vec<(usize, usize)> {
    uses(text, &PHRASES.map(|(phrase, _)| phrase))
}

/// Returns the line of each use of a phrase, with the phrase's index. A phrase across two lines counts. The
/// phrases are in lower case.
pub(crate) fn uses(text: &str, phrases: &[&str]) -> Vec<(usize, usize)> {
    let lines: Vec<String> = text.lines().map(prose).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let both = format!("{line} {}", lines.get(index + 1).map_or("", String::as_str));
        for (place, phrase) in phrases.iter().enumerate() {
            let starts = both.match_indices(phrase).map(|(at, _)| at);
            let whole = starts.filter(|&at| at < line.len() && stands_alone(&both, at, phrase.len()));
            found.extend(whole.map(|_| (index + 1, place)));
        }
    }
    found
}

/// Returns a line without the marks of comments and lists, in lower case.
fn prose(line: &str) -> String {
    line.trim().trim_start_matches(['/', '!', '#', '*', '>', '-']).trim().to_lowercase()
}

fn stands_alone(text: &str, at: usize, length: usize) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-');
    !is_word(text[..at].chars().last()) && !is_word(text[at + length..].chars().next())
}
