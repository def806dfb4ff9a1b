//! A stack as text, and back.
//!
//! ```text
//! stack  = layer *( "+" layer )          base first, outermost last
//! layer  = name [ ":" param *( "," param ) ]
//! param  = key "=" value                 no quoting; values hold no "+", "," or "="
//! ```
//!
//! The same text is what [`Display`](std::fmt::Display) of a resource prints, what the environment variable
//! `MILLPOND_STACK` holds ([`StackSpec::from_env`]), and what the replay binary takes:
//! `cuda+pool:initial=1GiB,max=50%+statistics`.
//!
//! The text alone is a [`StackSpec`]. To build it, a [`LayerTable`] says what each name means; each
//! crate of resources or adaptors has one, and so may a user's.

mod params;
mod table;

use std::fmt;
use std::str::FromStr;

pub use params::Params;
pub use table::{LayerEntry, LayerKind, LayerTable};

use crate::{AnyResource, DriverHandle, Error, Result};

/// The environment variable that [`StackSpec::from_env`] reads.
pub const STACK_VARIABLE: &str = "MILLPOND_STACK";

/// One layer as text: its name and parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerSpec {
    /// The name, as a [`LayerEntry`] has it.
    pub name: String,
    /// The parameters, in the order written.
    pub params: Vec<(String, String)>,
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
    /// The layers, base first.
    pub fn layers(&self) -> &[LayerSpec] {
        &self.layers
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
            let params = Params::new(entry, &layer.params)?;
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
        built.ok_or_else(|| Error::invalid_stack("the stack is empty; write for example `cuda+pool`"))
    }
}

impl FromStr for StackSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let layers = text.split('+').map(|part| parse_layer(text, part)).collect::<Result<_>>()?;
        Ok(Self { layers })
    }
}

fn parse_layer(text: &str, part: &str) -> Result<LayerSpec> {
    let fail = |why: String| {
        Error::invalid_stack(format!("`{text}`: {why}; write for example `cuda+pool:initial=1GiB,max=8GiB`"))
    };
    let (name, params) = match part.split_once(':') {
        Some((name, params)) => (name.trim(), params.trim()),
        None => (part.trim(), ""),
    };
    if name.is_empty() {
        return Err(fail("a layer's name is missing".to_owned()));
    }
    let params = params
        .split(',')
        .filter(|_| !params.is_empty())
        .map(|param| match param.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => {
                Ok((key.trim().to_owned(), value.trim().to_owned()))
            }
            _ => Err(fail(format!("`{param}` of `{name}` is not of the form key=value"))),
        })
        .collect::<Result<_>>()?;
    Ok(LayerSpec { name: name.to_owned(), params })
}

impl fmt::Display for LayerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (index, (key, value)) in self.params.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { ':' } else { ',' })?;
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
