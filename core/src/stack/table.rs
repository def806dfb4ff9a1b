//! The names that a stack's text may contain, and how the layer of each name is built.

use std::any::Any;
use std::fmt;
use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

use super::building::Building;
use super::{FilePath, LayerSpec, StackSpec, Value};
use crate::{AnyResource, ByteSize, Driver, DriverHandle, Error, Result, watch};

/// Defines how a layer is built from its parameters.
///
/// If a layer has parameters, use [`ReadBase`](Self::ReadBase) or [`ReadLayer`](Self::ReadLayer). With these
/// two kinds, all parameters of a stack are read before any layer is built. So a stack with a wrong value is
/// refused before any of its layers allocates memory.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LayerKind {
    /// A base, which comes first in a stack and allocates its memory from the driver. The function reads the
    /// parameters while it builds the base.
    Base(fn(&Params<'_>, &DriverHandle) -> Result<AnyResource>),
    /// A layer on top of another resource. The function reads the parameters while it builds the layer.
    Layer(fn(&Params<'_>, AnyResource) -> Result<AnyResource>),
    /// A base. The function reads the parameters, and returns a builder that runs later.
    ReadBase(for<'a> fn(&Params<'a>) -> Result<BaseBuilder<'a>>),
    /// A layer on top of another resource. The function reads the parameters, and returns a builder that runs
    /// later.
    ReadLayer(for<'a> fn(&Params<'a>) -> Result<LayerBuilder<'a>>),
}

/// Builds a base whose parameters have been read.
pub type BaseBuilder<'a> = Box<dyn FnOnce(&DriverHandle, &mut Building) -> Result<AnyResource> + 'a>;

/// Builds a layer whose parameters have been read.
pub type LayerBuilder<'a> = Box<dyn FnOnce(AnyResource, &mut Building) -> Result<AnyResource> + 'a>;

/// Defines one layer name that the text of a stack may contain. Every resource and adaptor that a text can
/// name has such an entry in its crate.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "layers write it whole, and `LayerKind` grows")]
pub struct LayerEntry {
    /// The name of the layer.
    pub name: &'static str,
    /// One line of help about the layer.
    pub about: &'static str,
    /// The parameters. Each parameter has a name and one line of help, which also states the default.
    pub params: &'static [(&'static str, &'static str)],
    /// The function that builds the layer.
    pub kind: LayerKind,
}

/// Removed parameters: the layer, their names, and the replacement.
const GONE: [(&str, &[&str], &str); 1] = [(
    "plan",
    &["repeat", "time", "background", "share"],
    "the layer no longer learns plans; write plan:file=FILE.plan, and make this file with `millpond-replay \
     plan LOG -o FILE.plan`",
)];

/// The layers that the text of a stack can name.
///
/// `millpond::layers()` returns the table of all layers of millpond. [`with`](Self::with) adds your own
/// layers.
#[derive(Clone, Debug, Default)]
pub struct LayerTable {
    entries: Vec<LayerEntry>,
}

impl LayerTable {
    /// Creates a table of these entries.
    pub fn new(entries: impl IntoIterator<Item = LayerEntry>) -> Self {
        Self { entries: entries.into_iter().collect() }
    }

    /// Adds entries. An entry replaces an earlier entry with the same name.
    #[must_use]
    pub fn with(mut self, entries: impl IntoIterator<Item = LayerEntry>) -> Self {
        for entry in entries {
            self.entries.retain(|known| known.name != entry.name);
            self.entries.push(entry);
        }
        self
    }

    /// Returns all entries.
    pub fn entries(&self) -> &[LayerEntry] {
        &self.entries
    }

    /// Returns the entry of the layer with this name.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if there is no such layer. The message lists the
    /// known names, and suggests a name that is similar to `name`.
    pub fn get(&self, name: &str) -> Result<&LayerEntry> {
        self.entries.iter().find(|entry| entry.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.entries.iter().map(|entry| entry.name).collect();
            let feature = if name == "logging" { " (enable millpond's feature `logging`)" } else { "" };
            let (all, meant) = (known.join(", "), did_you_mean(name, &known));
            Error::invalid_stack(format!("there is no layer `{name}`{feature}; the layers are {all}{meant}"))
        })
    }
}

/// The least similarity of two names, from 0 to 1. clap uses the same value.
const ALIKE: f64 = 0.7;

/// Returns the end of an error about an unknown name. It repeats the known name that the user probably meant,
/// or is empty.
fn did_you_mean(name: &str, known: &[&str]) -> String {
    let alike = known.iter().map(|known| (strsim::jaro(name, known), known));
    let nearest = alike.filter(|(share, _)| *share > ALIKE).max_by(|(a, _), (b, _)| a.total_cmp(b));
    nearest.map_or(String::new(), |(_, known)| format!("; did you mean `{known}`?"))
}

/// The parameters of one layer. Each key is one that the layer's [`LayerEntry`] lists.
#[derive(Clone, Copy, Debug)]
pub struct Params<'a> {
    entry: &'a LayerEntry,
    values: &'a [(String, Value)],
    table: &'a LayerTable,
}

impl<'a> Params<'a> {
    /// Checks that the layer has a parameter for every key, and that no key is given twice. If a value
    /// contains stacks in parentheses, `table` is used to build these stacks.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack). The message lists the layer's parameters. It
    /// suggests a parameter that is similar to the unknown key.
    pub fn new(entry: &'a LayerEntry, values: &'a [(String, Value)], table: &'a LayerTable) -> Result<Self> {
        for (index, (key, _)) in values.iter().enumerate() {
            if !entry.params.iter().any(|(known, _)| known == key) {
                let is_it = |(layer, keys, _): &&(&str, &[&str], &str)| {
                    *layer == entry.name && keys.contains(&key.as_str())
                };
                if let Some((layer, _, why)) = GONE.iter().find(is_it) {
                    return Err(Error::invalid_stack(format!("`{key}` of `{layer}` was removed: {why}")));
                }
                let known: Vec<&str> = entry.params.iter().map(|(name, _)| *name).collect();
                return Err(Error::invalid_stack(if known.is_empty() {
                    format!("`{}` takes no parameters; leave `{key}` out", entry.name)
                } else {
                    let (name, all, meant) = (entry.name, known.join(", "), did_you_mean(key, &known));
                    format!("`{name}` has no parameter `{key}`; it accepts {all}{meant}")
                }));
            }
            if values[..index].iter().any(|(earlier, _)| earlier == key) {
                let twice = format!("`{key}` of `{}` is given twice; leave one out", entry.name);
                return Err(Error::invalid_stack(twice));
            }
        }
        Ok(Self { entry, values, table })
    }

    /// Returns the value of a parameter; `None` if the text does not give the parameter.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        debug_assert!(self.entry.params.iter().any(|(known, _)| *known == key), "{key} is not declared");
        self.values.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns the text of a parameter; `None` if the stack's text does not give the parameter.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if the value is a stack.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_text().map(Some).ok_or_else(|| {
            let name = self.entry.name;
            Error::invalid_stack(format!(
                "`{key}={value}` of `{name}`: this parameter takes no stack in parentheses"
            ))
        })
    }

    /// Returns the value of a parameter as the path of a file; `None` if the text does not give the
    /// parameter.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if the value is empty or is a stack in parentheses.
    pub fn path(&self, key: &str) -> Result<Option<FilePath>> {
        match self.text(key)? {
            Some("") => {
                Err(Error::invalid_stack(format!("`{key}` of `{}` is empty; name a file", self.entry.name)))
            }
            text => Ok(text.map(FilePath::new)),
        }
    }

    /// Reads the stack in parentheses that is the value of a parameter. Does not build the stack. The layer
    /// can later build this stack as a further upstream. Returns `None` if the text does not give the
    /// parameter.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if the value is not a stack in parentheses, or if
    /// this stack is invalid.
    pub fn stack(&self, key: &str) -> Result<Option<ReadStack<'a>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        self.read(self.as_stack(key, value)?).map(Some)
    }

    /// Reads one stack of a parameter's value, without building the stack. The stack comes from a
    /// [`Piece`](super::Piece).
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if a layer or a value of the stack is invalid.
    pub fn read(&self, stack: &'a StackSpec) -> Result<ReadStack<'a>> {
        ReadStack::new(stack, self.table, None)
    }

    fn as_stack(&self, key: &str, value: &'a Value) -> Result<&'a StackSpec> {
        value.as_stack().ok_or_else(|| {
            Error::invalid_stack(format!(
                "`{key}={value}` of `{}` is not a stack in parentheses; write for example \
                 `{key}=(cuda+pool)`",
                self.entry.name
            ))
        })
    }

    /// Builds the stack in parentheses that is the value of a parameter, on the device of `driver`. The layer
    /// uses the stack as a further upstream. Returns `None` if the text does not give the parameter.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if the value is not a stack in parentheses. Otherwise
    /// the errors of building the stack.
    pub fn resource(&self, key: &str, driver: &DriverHandle) -> Result<Option<AnyResource>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        self.build(self.as_stack(key, value)?, driver).map(Some)
    }

    /// Builds one stack of a parameter's value. The stack comes from a [`Piece`](super::Piece).
    ///
    /// # Errors
    /// The errors of [`StackSpec::build`].
    pub fn build(&self, stack: &StackSpec, driver: &DriverHandle) -> Result<AnyResource> {
        stack.build(self.table, driver)
    }

    /// Parses the value of a parameter as a `T`. Returns `None` if the stack's text does not give the
    /// parameter.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if the value cannot be parsed as a `T`.
    pub fn get<T>(&self, key: &str) -> Result<Option<T>>
    where
        T: FromStr,
        T::Err: fmt::Display + 'static,
    {
        let Some(text) = self.text(key)? else { return Ok(None) };
        text.parse().map(Some).map_err(|error: T::Err| {
            // The standard library's errors about numbers use the words of a Rust programmer.
            let any = &error as &dyn Any;
            let why = match any.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
                Some(IntErrorKind::PosOverflow) => "the number is too large".to_owned(),
                Some(_) => "this is not a whole number; write for example 16".to_owned(),
                // The text of the whole error would name a second kind of error.
                None => any
                    .downcast_ref()
                    .map_or_else(|| error.to_string(), |error: &Error| error.message().to_owned()),
            };
            Error::invalid_stack(format!("`{key}={text}` of `{}`: {why}", self.entry.name))
        })
    }

    /// Parses the value of a parameter with `parse`. Returns `None` if the stack's text does not give the
    /// parameter.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if `parse` fails on the value.
    pub fn get_with<T>(&self, key: &str, parse: fn(&str) -> Result<T>) -> Result<Option<T>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        let wrong = |error: Error| {
            Error::invalid_stack(format!("`{key}={text}` of `{}`: {}", self.entry.name, error.message()))
        };
        parse(text).map(Some).map_err(wrong)
    }

    /// Returns the value of a parameter as a number of bytes; `None` if the text does not give the parameter.
    /// A percentage counts as a share of the free memory of the driver's device.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get), and the driver's errors.
    pub fn bytes(&self, key: &str, driver: &dyn Driver) -> Result<Option<u64>> {
        self.get::<ByteSize>(key)?.map(|size| size.resolve(driver)).transpose()
    }
}

/// A stack whose layers are read and checked, but not yet built.
pub struct ReadStack<'a> {
    spec: &'a StackSpec,
    layers: Vec<ReadLayer<'a>>,
}

pub(super) enum ReadLayer<'a> {
    Base(BaseBuilder<'a>),
    Layer(LayerBuilder<'a>),
}

impl<'a> ReadLayer<'a> {
    pub(super) fn new(layer: &'a LayerSpec, table: &'a LayerTable) -> Result<Self> {
        Self::read(Params::new(table.get(&layer.name)?, &layer.params, table)?)
    }

    fn read(params: Params<'a>) -> Result<Self> {
        Ok(match params.entry.kind {
            LayerKind::Base(build) => Self::Base(Box::new(move |driver, _| build(&params, driver))),
            LayerKind::Layer(build) => Self::Layer(Box::new(move |upstream, _| build(&params, upstream))),
            LayerKind::ReadBase(read) => Self::Base(read(&params)?),
            LayerKind::ReadLayer(read) => Self::Layer(read(&params)?),
        })
    }
}

impl fmt::Debug for ReadStack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadStack").field(&self.spec.to_string()).finish()
    }
}

impl<'a> ReadStack<'a> {
    /// Reads all layers. `below` is the text of a resource on which they are built.
    pub(super) fn new(spec: &'a StackSpec, table: &'a LayerTable, below: Option<&str>) -> Result<Self> {
        let layers = spec.layers.iter().enumerate().map(|(index, layer)| {
            let params = Params::new(table.get(&layer.name)?, &layer.params, table)?;
            let read = ReadLayer::read(params).map_err(|error| error.in_stack(spec))?;
            let name = &layer.name;
            let error = match (&read, index > 0 || below.is_some()) {
                (ReadLayer::Base(_), true) => {
                    let above = spec.layers[..index].iter().map(ToString::to_string);
                    let below: Vec<String> = below.map(str::to_owned).into_iter().chain(above).collect();
                    format!(
                        "`{name}` takes its memory from the driver and cannot go on top of `{}`; put it \
                         first",
                        below.join("+")
                    )
                }
                (ReadLayer::Layer(_), false) => {
                    format!("`{name}` needs a resource below it; write for example `cuda+{name}`")
                }
                _ => return Ok(read),
            };
            Err(Error::invalid_stack(error).in_stack(spec))
        });
        Ok(Self { spec, layers: layers.collect::<Result<_>>()? })
    }

    /// Builds the layers. Adds their work for the end of building to `building`.
    ///
    /// # Errors
    /// The errors of building a layer.
    pub fn build(self, driver: &DriverHandle, building: &mut Building) -> Result<AnyResource> {
        self.put_on(None, driver, building)
    }

    fn put_on(
        self,
        mut built: Option<AnyResource>,
        driver: &DriverHandle,
        building: &mut Building,
    ) -> Result<AnyResource> {
        for layer in self.layers {
            let resource = match (layer, built.take()) {
                (ReadLayer::Base(build), _) => build(driver, building),
                (ReadLayer::Layer(build), Some(upstream)) => build(upstream, building),
                (ReadLayer::Layer(_), None) => Err(empty()),
            };
            built = Some(resource.map_err(|error| error.in_stack(self.spec))?);
        }
        built.ok_or_else(empty)
    }

    pub(super) fn finished(self, below: Option<AnyResource>, driver: &DriverHandle) -> Result<AnyResource> {
        let (spec, mut building) = (self.spec, Building::default());
        let built = self.put_on(below, driver, &mut building)?;
        building.finish(&built).map_err(|error| error.in_stack(spec))?;
        watch::add(&built);
        Ok(built)
    }
}

fn empty() -> Error {
    Error::invalid_stack("the stack is empty; write for example `cuda+pool`")
}
