//! A stack as data: its layers and their parameters.

use crate::{Error, Result};

/// The deepest nesting of stacks in parentheses: deeper than any real stack, and shallow enough for the call
/// stack.
pub(super) const DEEPEST: usize = 32;

/// The most layers on each other. Each layer calls the one below it, so they share the call stack.
const HIGHEST: usize = 256;

/// One parsed layer of a stack: its name and its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the grammar of stacks has no other part")]
pub struct LayerSpec {
    /// The name of the layer. A [`LayerEntry`](super::LayerEntry) with this name defines the layer.
    pub name: String,
    /// The keys and values of the parameters, in the order of the text.
    pub params: Vec<(String, Value)>,
}

impl LayerSpec {
    /// Creates a layer without parameters.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), params: Vec::new() }
    }

    /// Adds a parameter.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.push((key.into(), value.into()));
        self
    }

    /// Returns the value of a parameter; `None` if the text does not give the parameter.
    pub fn param(&self, key: &str) -> Option<&Value> {
        self.params.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

/// A parsed stack: its layers, base first. There is at least one layer.
///
/// ```
/// use millpond_core::stack::StackSpec;
/// let spec: StackSpec = "cuda + pool:initial=1GiB,max=8GiB + statistics".parse().unwrap();
/// assert_eq!(spec.layers().len(), 3);
/// assert_eq!(spec.to_string(), "cuda+pool:initial=1GiB,max=8GiB+statistics");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackSpec {
    pub(super) layers: Vec<LayerSpec>,
}

impl StackSpec {
    /// Creates a stack of these layers, base first.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if `layers` is empty, if stacks in parentheses are
    /// nested more than 32 levels deep, or if more than 256 layers lie on each other.
    pub fn new(layers: Vec<LayerSpec>) -> Result<Self> {
        if layers.is_empty() {
            return Err(Error::invalid_stack("the stack is empty; write for example `cuda+pool`"));
        }
        let stack = Self { layers };
        if stack.depth() > DEEPEST {
            return Err(Error::invalid_stack(format!(
                "more than {DEEPEST} stacks are nested; use fewer levels of parentheses"
            )));
        }
        let layers = stack.height();
        if layers > HIGHEST {
            return Err(Error::invalid_stack(format!(
                "{layers} layers lie on each other, but at most {HIGHEST} may; leave layers out"
            )));
        }
        Ok(stack)
    }

    /// Returns how many layers lie on each other, with the layers of the highest stack in parentheses.
    fn height(&self) -> usize {
        let params = self.layers.iter().flat_map(|layer| &layer.params);
        let nested = params.flat_map(|(_, value)| value.stacks()).map(Self::height).max();
        self.layers.len() + nested.unwrap_or(0)
    }

    /// Returns how deep stacks nest below this one. Each nested stack was checked when it was made.
    fn depth(&self) -> usize {
        let params = self.layers.iter().flat_map(|layer| &layer.params);
        params.flat_map(|(_, value)| value.stacks()).map(|stack| 1 + stack.depth()).max().unwrap_or(0)
    }

    /// Returns the layers, base first, without the layers of stacks in parentheses.
    pub fn layers(&self) -> &[LayerSpec] {
        &self.layers
    }

    /// Returns all layers, including the layers of stacks in parentheses. The layers in parentheses come
    /// before the layer that has them as a parameter.
    pub fn all_layers(&self) -> Vec<&LayerSpec> {
        let mut all = Vec::new();
        for layer in &self.layers {
            let stacks = layer.params.iter().flat_map(|(_, value)| value.stacks());
            stacks.for_each(|stack| all.extend(stack.all_layers()));
            all.push(layer);
        }
        all
    }
}

/// The value of a parameter: text, stacks in parentheses, or a sequence of texts and stacks, as in
/// `bins=64KiB/1MiB(cuda+pool)`.
///
/// ```
/// use millpond_core::stack::Value;
/// assert_eq!(Value::from("1GiB").to_string(), "1GiB");
/// assert_eq!(Value::from("a,b.csv").to_string(), "\"a,b.csv\"");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value(pub(super) Vec<Piece>);

/// A text or a stack in a [`Value`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a printer must know each part of the grammar")]
pub enum Piece {
    /// Text, without quotes.
    Text(String),
    /// A stack, which is written in parentheses.
    Stack(StackSpec),
}

impl Value {
    /// Returns the pieces of the value, in the order in which they are written. A value has at least one
    /// piece, and never two texts in a row.
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// Returns the text if the value is a single text; otherwise `None`.
    pub fn as_text(&self) -> Option<&str> {
        match &*self.0 {
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the stack if the value is a single stack; otherwise `None`.
    pub fn as_stack(&self) -> Option<&StackSpec> {
        match &*self.0 {
            [Piece::Stack(stack)] => Some(stack),
            _ => None,
        }
    }

    /// Returns all stacks in the value.
    pub fn stacks(&self) -> impl Iterator<Item = &StackSpec> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Text(_) => None,
            Piece::Stack(stack) => Some(stack),
        })
    }
}

/// Joins texts that follow each other into one text. If there are no pieces, the value is the empty text.
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
