//! Tests that stacks are read and printed without loss, and that bad text is refused.

use super::*;

/// A small random number generator (SplitMix64). The testkit depends on this crate, so it cannot be used
/// here.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) % bound as u64) as usize
    }

    /// Text of characters of the grammar, white space, control characters, and others.
    fn text(&mut self) -> String {
        const CHARS: [char; 24] = [
            '+', ':', ',', '=', '(', ')', '"', '\\', '/', '%', '\'', ' ', '\t', '\n', '\0', '\u{a0}',
            '\u{2003}', 'ä', '😀', 'a', 'b', '1', '.', '-',
        ];
        (0..self.below(8)).map(|_| CHARS[self.below(CHARS.len())]).collect()
    }

    fn value(&mut self, depth: usize) -> Value {
        (0..self.below(4))
            .map(|_| match self.below(3) {
                0 if depth > 0 => Piece::Stack(self.stack(depth - 1)),
                _ => Piece::Text(self.text()),
            })
            .collect()
    }

    fn layer(&mut self, depth: usize) -> LayerSpec {
        let params = (0..self.below(4)).map(|_| (self.text(), self.value(depth))).collect();
        LayerSpec { name: self.text(), params }
    }

    fn stack(&mut self, depth: usize) -> StackSpec {
        StackSpec { layers: (0..1 + self.below(3)).map(|_| self.layer(depth)).collect() }
    }
}

#[test]
fn issue_9_what_is_printed_is_read_as_the_same() {
    for seed in 0..20_000 {
        let stack = Random(seed).stack(3);
        let text = stack.to_string();
        let read: StackSpec = text.parse().unwrap_or_else(|error| panic!("seed {seed}: `{text}`: {error}"));
        assert_eq!(read, stack, "seed {seed}: `{text}`");
    }
}

/// Any text is either refused, or read, printed and read again.
#[test]
fn no_text_is_read_as_something_that_is_not_printed() {
    let mut read = 0;
    for seed in 0..50_000 {
        let mut random = Random(seed);
        let words = ["cuda", "pool", "max", "1GiB", "\"", "\"", "(", ")", "+", ":", ",", "=", " ", "=", ":"];
        let text: String = (0..random.below(16)).map(|_| words[random.below(words.len())]).collect();
        if let Ok(stack) = text.parse::<StackSpec>() {
            read += 1;
            assert_eq!(stack.to_string().parse::<StackSpec>().unwrap(), stack, "`{text}`");
        }
    }
    assert!(read > 1000, "{read}");
}

#[test]
fn plain_words_have_no_quotes() {
    let text = r"cuda+pool:initial=1.5GiB,max=50%+logging:file=C:\logs\my log=1.csv+a:b=c:d/e";
    let stack: StackSpec = text.parse().unwrap();
    assert_eq!(stack.to_string(), text);
    assert_eq!(stack.layers()[2].param("file").unwrap().as_text(), Some(r"C:\logs\my log=1.csv"));
}

#[test]
fn white_space_around_words_does_not_count() {
    let stack: StackSpec = " cuda + pool : initial = 1 GiB , to = ( managed + pool ) ".parse().unwrap();
    assert_eq!(stack.to_string(), "cuda+pool:initial=1 GiB,to=(managed+pool)");
    assert_eq!("cuda+pool:".parse::<StackSpec>().unwrap().to_string(), "cuda+pool");
    assert_eq!("cuda:+pool".parse::<StackSpec>().unwrap().to_string(), "cuda+pool");
}

#[test]
fn a_value_has_stacks_between_texts() {
    let text = "cuda+bins:bins=4KiB(cuda+pool:max=1GiB)/1MiB(managed)/2MiB";
    let stack: StackSpec = text.parse().unwrap();
    assert_eq!(stack.to_string(), text);
    let bins = stack.layers()[1].param("bins").unwrap();
    let pieces: Vec<String> = bins
        .pieces()
        .iter()
        .map(|piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Stack(stack) => format!("<{stack}>"),
        })
        .collect();
    assert_eq!(pieces, ["4KiB", "<cuda+pool:max=1GiB>", "/1MiB", "<managed>", "/2MiB"]);
    let names: Vec<&str> = stack.all_layers().iter().map(|layer| &*layer.name).collect();
    assert_eq!(names, ["cuda", "cuda", "pool", "managed", "bins"]);
}

#[test]
fn a_wrong_text_says_what_is_wrong() {
    for (text, why) in [
        ("", "name is missing"),
        ("+pool", "name is missing"),
        ("cuda+", "name is missing"),
        ("cuda+:max=1", "name is missing"),
        ("cuda+pool:max", "`max` of `pool` is not of the form"),
        ("cuda+pool:max=", "is not of the form"),
        ("cuda+pool:=1", "is not of the form"),
        ("cuda+pool:max=1,", "is not of the form"),
        ("cuda+pool:max=1=2,a", "`a` of `pool`"),
        ("cuda+pool:to=(cuda", "has no `)`"),
        ("cuda+pool:to=(cuda,a=1)", "has no `)`"),
        ("cuda)+pool", "without a `(`"),
        ("cuda(pool)", "expected `+` or the end"),
        ("cuda+pool:file=\"a", "a quote has no end"),
        ("cuda+pool:file=\"a\"\"", "a quote has no end"),
        ("cuda\"pool\"", "expected `+` or the end"),
    ] {
        let error = text.parse::<StackSpec>().unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidStack, "{text}");
        assert!(error.to_string().contains(why), "{text}: {error}");
        assert!(error.to_string().contains("cuda+pool:initial=1GiB,max=8GiB"), "{error}");
    }
}

#[test]
fn an_unknown_name_comes_with_the_known_name_that_is_nearly_the_same() {
    let entry = |name, params| {
        let kind = LayerKind::Layer(|_, upstream| Ok(upstream));
        LayerEntry { name, about: "", params, kind }
    };
    let table = LayerTable::new([entry("pool", &[("max", ""), ("initial", "")]), entry("plan", &[])]);
    for (text, end) in [
        ("pol", "the layers are pool, plan; did you mean `pool`?"),
        ("quantum", "the layers are pool, plan"),
        ("pool:maxx=1", "it accepts max, initial; did you mean `max`?"),
        ("pool:size=1", "it accepts max, initial"),
        ("pool:max=(poool)", "the layers are pool, plan; did you mean `pool`?"),
    ] {
        let error = text.parse::<StackSpec>().unwrap().check(&table).unwrap_err();
        assert!(error.to_string().ends_with(end), "{text}: {error}");
    }
}

/// The text may come from the environment, so it must not overflow the call stack.
#[test]
fn stacks_inside_each_other_have_an_end() {
    let nested =
        |depth: usize| format!("{}c{}", "a:b=(".repeat(depth), ")".repeat(depth)).parse::<StackSpec>();
    assert!(nested(32).is_ok());
    assert!(nested(33).unwrap_err().to_string().contains("too many"));
    assert!(nested(1_000_000).is_err());
    let high = |layers: usize, within: usize| {
        format!("a:b=(c{}){}", "+d".repeat(within - 1), "+e".repeat(layers - 1)).parse::<StackSpec>()
    };
    assert!(high(156, 100).is_ok());
    assert!(high(157, 100).unwrap_err().to_string().contains("257 layers lie on each other"));
    assert!(high(1, 1_000_000).is_err());
}

/// A stack that is made in code prints a text that can be read, or is refused when it is made.
#[test]
fn stacks_inside_each_other_are_as_deep_in_code_as_in_text() {
    let around = |inner: StackSpec| StackSpec::new(vec![LayerSpec::new("a").with("b", inner)]);
    let mut stack = StackSpec::new(vec![LayerSpec::new("c")]).unwrap();
    for _ in 0..32 {
        stack = around(stack).unwrap();
    }
    assert_eq!(stack.to_string().parse::<StackSpec>().unwrap(), stack);
    let error = around(stack).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::InvalidStack);
    assert!(error.to_string().contains("more than 32"), "{error}");
}

/// A program without the feature has no layer `logging`, and a typing mistake does not explain that.
#[test]
fn a_layer_that_needs_a_feature_names_the_feature() {
    let error = |name| super::LayerTable::default().get(name).unwrap_err().to_string();
    assert!(error("logging").contains("no layer `logging` (enable millpond's feature `logging`)"));
    assert!(!error("loging").contains("feature"));
}
