//! Reads and prints stacks: the grammar of [`stack`](super).

use std::fmt;
use std::str::FromStr;

use super::spec::DEEPEST;
use super::{LayerSpec, Piece, StackSpec, Value};
use crate::{Error, Result};

/// The characters that end an unquoted name, key and value.
const NAME_ENDS: &[char] = &['+', ':', ',', '=', '(', ')', '"'];
const KEY_ENDS: &[char] = &['+', ',', '=', '(', ')', '"'];
const VALUE_ENDS: &[char] = &['+', ',', '(', ')', '"'];

/// A name, a key or a piece of a value. It is quoted if it would otherwise be read as something else.
struct Word<'a> {
    text: &'a str,
    ends: &'static [char],
}

impl<'a> Word<'a> {
    fn name(text: &'a str) -> Self {
        Self { text, ends: NAME_ENDS }
    }

    fn key(text: &'a str) -> Self {
        Self { text, ends: KEY_ENDS }
    }

    fn value(text: &'a str) -> Self {
        Self { text, ends: VALUE_ENDS }
    }
}

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, ends } = self;
        let plain = !text.is_empty() && text.trim() == *text && !text.contains(*ends);
        // The text must stay on one line.
        if plain && !text.contains(char::is_control) {
            return f.write_str(text);
        }
        write!(f, "\"{}\"", text.replace('"', "\"\""))
    }
}

/// A text while it is read.
struct Reader<'a> {
    whole: &'a str,
    rest: &'a str,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn new(whole: &'a str) -> Self {
        Self { whole, rest: whole, depth: 0 }
    }

    /// Reads the whole text as a stack.
    fn read(mut self) -> Result<StackSpec> {
        let stack = self.stack()?;
        match self.rest.chars().next() {
            None => StackSpec::new(stack.layers),
            Some(')') => Err(self.wrong("there is a `)` without a `(`")),
            Some(_) => {
                Err(self.wrong(&format!("expected `+` or the end of the text, found `{}`", self.rest)))
            }
        }
    }

    fn stack(&mut self) -> Result<StackSpec> {
        if self.depth > DEEPEST {
            return Err(self.wrong("too many stacks are nested"));
        }
        let mut layers = vec![self.layer()?];
        while self.skip('+') {
            layers.push(self.layer()?);
        }
        Ok(StackSpec { layers })
    }

    fn layer(&mut self) -> Result<LayerSpec> {
        let Some(name) = self.word(NAME_ENDS)? else {
            return Err(self.wrong("a layer's name is missing"));
        };
        let mut params = Vec::new();
        if self.skip(':') && !self.is_at_end() {
            params.push(self.param(&name)?);
            while self.skip(',') {
                params.push(self.param(&name)?);
            }
        }
        Ok(LayerSpec { name, params })
    }

    fn param(&mut self, layer: &str) -> Result<(String, Value)> {
        let start = self.rest;
        let form = |this: &Self| {
            let end = start.find([',', '+', ')']).unwrap_or(start.len());
            this.wrong(&format!("`{}` of `{layer}` is not of the form key=value", start[..end].trim()))
        };
        let key = self.word(KEY_ENDS)?;
        let Some(key) = key.filter(|_| self.skip('=')) else { return Err(form(self)) };
        let mut pieces = Vec::new();
        loop {
            if self.skip('(') {
                self.depth += 1;
                pieces.push(Piece::Stack(self.stack()?));
                self.depth -= 1;
                if !self.skip(')') {
                    return Err(self.wrong("a `(` has no `)`; a value with `+` or `,` needs quotes"));
                }
            } else if let Some(text) = self.word(VALUE_ENDS)? {
                pieces.push(Piece::Text(text));
            } else {
                break;
            }
        }
        if pieces.is_empty() { Err(form(self)) } else { Ok((key, pieces.into_iter().collect())) }
    }

    /// Reads a word in quotes, or a word up to one of `ends`, without the white space around it.
    fn word(&mut self, ends: &[char]) -> Result<Option<String>> {
        self.rest = self.rest.trim_start();
        if let Some(quoted) = self.rest.strip_prefix('"') {
            return self.quoted(quoted).map(Some);
        }
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(Some(word.trim_end()).filter(|word| !word.is_empty()).map(str::to_owned))
    }

    /// Reads the rest of a word after its first quote.
    fn quoted(&mut self, mut rest: &'a str) -> Result<String> {
        let mut word = String::new();
        while let Some((text, after)) = rest.split_once('"') {
            word.push_str(text);
            let Some(more) = after.strip_prefix('"') else {
                self.rest = after.trim_start();
                return Ok(word);
            };
            word.push('"');
            rest = more;
        }
        Err(self.wrong("a quote has no end; a quote inside quotes is written twice"))
    }

    fn skip(&mut self, wanted: char) -> bool {
        let rest = self.rest.trim_start().strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Returns whether the present layer has ended.
    fn is_at_end(&self) -> bool {
        matches!(self.rest.trim_start().chars().next(), None | Some('+' | ')'))
    }

    fn wrong(&self, why: &str) -> Error {
        let whole = self.whole;
        Error::invalid_stack(format!("`{whole}`: {why}; write for example `cuda+pool:initial=1GiB,max=8GiB`"))
    }
}

impl FromStr for StackSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Reader::new(text).read()
    }
}

impl fmt::Display for LayerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Word::name(&self.name).fmt(f)?;
        for (index, (key, value)) in self.params.iter().enumerate() {
            write!(f, "{}{}={value}", if index == 0 { ':' } else { ',' }, Word::key(key))?;
        }
        Ok(())
    }
}

impl fmt::Display for StackSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, layer) in self.layers.iter().enumerate() {
            write!(f, "{}{layer}", if index == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

/// Prints the value as in a stack's text, with quotes if needed.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => Word::value(text).fmt(f),
            Piece::Stack(stack) => write!(f, "({stack})"),
        })
    }
}
