//! A stack as text, and back.
//!
//! ```text
//! stack  = layer *( "+" layer )                base first, outermost last
//! layer  = name [ ":" [ param *( "," param ) ] ]
//! param  = key "=" value
//! value  = 1*( text / "(" stack ")" )          a stack in parentheses is a further upstream
//! name   = word                                plain: without + : , = ( ) "
//! key    = word                                plain: without + , = ( ) "
//! text   = word                                plain: without + , ( ) "
//! word   = plain / quoted                      white space around a word does not count
//! quoted = <"> *( any character but <"> / <""> ) <">        <""> is one <">
//! ```
//!
//! Quotes are needed where a plain word would be read as something else: `logging:file="a,b.csv"`. A layer
//! that takes memory from more than the layer below it names the others in parentheses:
//! `cuda+pool+binning:bins=64KiB/1MiB(cuda+pool:max=1GiB)` serves requests up to 1 MiB from a pool of their
//! own. In a shell, such a text goes into single quotes.
//!
//! The same text is what [`Display`](std::fmt::Display) of a resource prints, what the environment variable
//! `MILLPOND_STACK` holds ([`StackSpec::from_env`]), and what the replay binary takes:
//! `cuda+pool:initial=1GiB,max=50%+statistics`.
//!
//! The text alone is a [`StackSpec`]. To build it, a [`LayerTable`] says what each name means; each
//! crate of resources or adaptors has one, and so may a user's.

mod params;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod value;

use std::fmt;
use std::str::FromStr;

pub use params::Params;
pub use table::{LayerEntry, LayerKind, LayerTable};
pub use value::{Piece, Value};

use text::{DEEPEST, Reader, Word};

use crate::{AnyResource, DriverHandle, Error, Result};

/// The environment variable that [`StackSpec::from_env`] reads.
pub const STACK_VARIABLE: &str = "MILLPOND_STACK";

/// One layer as text: its name and parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerSpec {
    /// The name, as a [`LayerEntry`] has it.
    pub name: String,
    /// The parameters, in the order written.
    pub params: Vec<(String, Value)>,
}

impl LayerSpec {
    /// A layer without parameters.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), params: Vec::new() }
    }

    /// Adds a parameter.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.push((key.into(), value.into()));
        self
    }

    /// A parameter, if it is given.
    pub fn param(&self, key: &str) -> Option<&Value> {
        self.params.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

/// A whole stack as text, base first. At least one layer.
///
/// ```
/// use millpond_core::stack::StackSpec;
/// let spec: StackSpec = "cuda + pool:initial=1GiB,max=8GiB + statistics".parse().unwrap();
/// assert_eq!(spec.layers().len(), 3);
/// assert_eq!(spec.to_string(), "cuda+pool:initial=1GiB,max=8GiB+statistics");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackSpec {
    layers: Vec<LayerSpec>,
}

impl StackSpec {
    /// A stack of these layers, base first.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if there are none, or if more than 32 stacks are
    /// inside each other, which no text may have.
    pub fn new(layers: Vec<LayerSpec>) -> Result<Self> {
        if layers.is_empty() {
            return Err(Error::invalid_stack("the stack is empty; write for example `cuda+pool`"));
        }
        let stack = Self { layers };
        if stack.depth() > DEEPEST {
            return Err(Error::invalid_stack(format!(
                "more than {DEEPEST} stacks are inside each other; put fewer into parentheses"
            )));
        }
        Ok(stack)
    }

    /// How many stacks are inside each other below this one. Each of those was made with few.
    fn depth(&self) -> usize {
        let params = self.layers.iter().flat_map(|layer| &layer.params);
        params.flat_map(|(_, value)| value.stacks()).map(|stack| 1 + stack.depth()).max().unwrap_or(0)
    }

    /// The layers, base first. Those of stacks in parentheses are not among them.
    pub fn layers(&self) -> &[LayerSpec] {
        &self.layers
    }

    /// All layers: each layer is preceded by those of the stacks that its parameters name in parentheses.
    pub fn all_layers(&self) -> Vec<&LayerSpec> {
        let mut all = Vec::new();
        for layer in &self.layers {
            let stacks = layer.params.iter().flat_map(|(_, value)| value.stacks());
            stacks.for_each(|stack| all.extend(stack.all_layers()));
            all.push(layer);
        }
        all
    }

    /// Checks, without building anything, that `table` has each layer, and each layer its parameters.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack), naming what there is.
    pub fn check(&self, table: &LayerTable) -> Result<()> {
        self.all_layers()
            .into_iter()
            .try_for_each(|layer| Params::new(table.get(&layer.name)?, &layer.params, table).map(|_| ()))
    }

    /// What the environment variable `MILLPOND_STACK` says, or `None` where it is not set.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if it cannot be read.
    pub fn from_env() -> Result<Option<Self>> {
        let Some(text) = std::env::var_os(STACK_VARIABLE) else { return Ok(None) };
        let spec = text.to_string_lossy().parse::<Self>();
        spec.map(Some).map_err(|error| error.context(format!("the environment variable {STACK_VARIABLE}")))
    }

    /// Builds the stack on a device.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) for a name or parameter that `table` lacks, a base
    /// that is not first or is missing; and what building a layer reports.
    pub fn build(&self, table: &LayerTable, driver: &DriverHandle) -> Result<AnyResource> {
        let mut built: Option<AnyResource> = None;
        for layer in &self.layers {
            let entry = table.get(&layer.name)?;
            let params = Params::new(entry, &layer.params, table)?;
            let resource = match (entry.kind, built.take()) {
                (LayerKind::Base(build), None) => build(&params, driver),
                (LayerKind::Layer(build), Some(upstream)) => build(&params, upstream),
                (LayerKind::Base(_), Some(below)) => Err(Error::invalid_stack(format!(
                    "`{}` takes its memory from the driver and cannot stand on `{below}`; put it first",
                    layer.name
                ))),
                (LayerKind::Layer(_), None) => Err(Error::invalid_stack(format!(
                    "`{}` needs something below it; write for example `cuda+{}`",
                    layer.name, layer.name
                ))),
            };
            built = Some(resource.map_err(|error| error.in_stack(self))?);
        }
        // There is a layer at least.
        built.ok_or_else(|| Error::invalid_stack("the stack is empty; write for example `cuda+pool`"))
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
