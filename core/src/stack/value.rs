use std::fmt;

use super::StackSpec;
use super::text::Word;

/// What a parameter is given: text, or stacks in parentheses, or both in a row, as in
/// `bins=64KiB/1MiB(cuda+pool)`.
///
/// ```
/// use millpond_core::stack::Value;
/// assert_eq!(Value::from("1GiB").to_string(), "1GiB");
/// assert_eq!(Value::from("a,b.csv").to_string(), "\"a,b.csv\"");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value(Vec<Piece>);

/// A piece of a [`Value`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Text, without the quotes that it may need.
    Text(String),
    /// A stack, which is written in parentheses.
    Stack(StackSpec),
}

impl Value {
    /// The pieces in the order written. There is one at least, and no two texts in a row.
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// The text, if that is all.
    pub fn as_text(&self) -> Option<&str> {
        match &*self.0 {
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The stack, if that is all.
    pub fn as_stack(&self) -> Option<&StackSpec> {
        match &*self.0 {
            [Piece::Stack(stack)] => Some(stack),
            _ => None,
        }
    }

    /// All stacks in the value.
    pub fn stacks(&self) -> impl Iterator<Item = &StackSpec> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Text(_) => None,
            Piece::Stack(stack) => Some(stack),
        })
    }
}

/// Joins texts in a row; no pieces are the empty text.
impl FromIterator<Piece> for Value {
    fn from_iter<I: IntoIterator<Item = Piece>>(pieces: I) -> Self {
        let mut joined: Vec<Piece> = Vec::new();
        for piece in pieces {
            match (joined.last_mut(), piece) {
                (_, Piece::Text(text)) if text.is_empty() => {}
                (Some(Piece::Text(last)), Piece::Text(text)) => last.push_str(&text),
                (_, piece) => joined.push(piece),
            }
        }
        if joined.is_empty() {
            joined.push(Piece::Text(String::new()));
        }
        Self(joined)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self(vec![Piece::Text(text.to_owned())])
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self(vec![Piece::Text(text)])
    }
}

impl From<StackSpec> for Value {
    fn from(stack: StackSpec) -> Self {
        Self(vec![Piece::Stack(stack)])
    }
}

/// As a stack's text has it, with quotes where they are needed.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => Word::value(text).fmt(f),
            Piece::Stack(stack) => write!(f, "({stack})"),
        })
    }
}
