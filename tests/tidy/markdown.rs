//! Reads as much Markdown as the rules need: links, headings, code and tables.

/// Returns the lines outside of fenced code, with their numbers from 1.
pub(crate) fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let marker = ["```", "~~~"].into_iter().find(|marker| start.starts_with(marker));
        match (fence, marker) {
            (None, None) => lines.push((index + 1, line)),
            (None, Some(_)) => fence = marker,
            (Some(open), Some(_)) if marker == Some(open) => fence = None,
            (Some(_), _) => {}
        }
    }
    lines
}

/// Returns the lines of the fenced blocks with the info string `language`.
pub(crate) fn fenced<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        match line.trim_start().strip_prefix("```") {
            Some(info) => inside = !inside && info.trim() == language,
            None if inside => lines.push(line),
            None => {}
        }
    }
    lines
}

/// Returns the targets of all links, with their lines.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        for (at, _) in line.match_indices("](") {
            let target: String = line[at + 2..].chars().take_while(|c| !")\" ".contains(*c)).collect();
            found.push((number, target));
        }
        for attribute in ["href=\"", "src=\""] {
            for (at, _) in line.match_indices(attribute) {
                let target = line[at + attribute.len()..].chars().take_while(|&c| c != '"').collect();
                found.push((number, target));
            }
        }
        if let Some((label, target)) = line.trim_start().split_once("]: ")
            && label.starts_with('[')
            && !label.starts_with("[^")
        {
            found.push((number, target.split_whitespace().next().unwrap_or_default().to_owned()));
        }
    }
    found
}

/// Returns the anchors of the headings, as GitHub names them, and the explicit anchors.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
        for attribute in ["id=\"", "name=\""] {
            for (at, _) in line.match_indices(attribute) {
                found.push(line[at + attribute.len()..].chars().take_while(|&c| c != '"').collect());
            }
        }
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let slug = slug(heading);
        let same = |n: usize| if n == 0 { slug.clone() } else { format!("{slug}-{n}") };
        let free = (0..).map(same).find(|anchor| !found.contains(anchor));
        found.extend(free);
    }
    found
}

fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut in_target = false;
    for c in heading.trim().chars() {
        match c {
            '(' if text.ends_with(']') => in_target = true,
            ')' if in_target => in_target = false,
            _ if in_target => {}
            c => text.push(c),
        }
    }
    text.to_lowercase()
        .chars()
        .filter(|&c| c.is_alphanumeric() || " -_".contains(c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Returns the texts between single backticks.
pub(crate) fn code_spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Returns the rows of all tables in the section under the first heading that contains `heading`. The row of
/// column names is included.
pub(crate) fn table_rows<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    prose(text)
        .into_iter()
        .map(|(_, line)| line)
        .skip_while(|line| !(line.starts_with('#') && line.contains(heading)))
        .skip(1)
        .take_while(|line| !line.starts_with('#'))
        .filter(|line| line.starts_with('|') && !line.starts_with("|-") && !line.starts_with("| -"))
        .collect()
}

/// Feeds the reader difficult cases.
mod canary {
    use super::*;

    #[test]
    fn links_are_found() {
        let text = "[a](b.md) and ![c](d.png \"title\")\n```sh\n[no](code.md)\n```\n\
                    `[no](span.md)` [e](f#g)\n[label]: target.md\n<a href=\"h.md\">h</a> [^note]: no.md\n";
        let found: Vec<_> =
            links(text).into_iter().map(|(line, target)| format!("{line} {target}")).collect();
        assert_eq!(found, ["1 b.md", "1 d.png", "5 f#g", "6 target.md", "7 h.md"]);
    }

    #[test]
    fn anchors_are_githubs() {
        let text =
            "# The `pool`: a [link](x.md)\n## Where do I add…?\n## Same\n## Same\n```\n# no\n```\n#no\n";
        assert_eq!(anchors(text), ["the-pool-a-link", "where-do-i-add", "same", "same-1"]);
    }

    #[test]
    fn tables_and_code_are_found() {
        let text = "# One\n| a |\n# Two\n| `x` | y `z` |\n|---|---|\n| w |\ntext\n# Three\n| b |\n\
                    ```sh\ncargo x\n```\n```\nother\n```\n";
        assert_eq!(table_rows(text, "Two"), ["| `x` | y `z` |", "| w |"]);
        assert_eq!(code_spans("| `x` | y `z` |"), ["x", "z"]);
        assert_eq!(fenced(text, "sh"), ["cargo x"]);
    }
}
