//! Says how many items an import left out.

use millpond_engine::text::number_of;

/// Returns a sentence such as `3 rows of other devices were left out`. `noun` is in the singular, and `which`
/// follows the noun.
pub(super) fn left_out(count: u64, noun: &str, which: &str) -> String {
    let were = if count == 1 { "was" } else { "were" };
    format!("{} {which} {were} left out", number_of(count, noun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_follows_the_count() {
        assert_eq!(left_out(1, "row", "of other devices"), "1 row of other devices was left out");
        assert_eq!(left_out(2, "row", "of other devices"), "2 rows of other devices were left out");
    }
}
