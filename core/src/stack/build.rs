//! Checks a stack against a table of layers, and builds it.
//!
//! A stack is built in three steps. First, all layers are read: their names and the values of their
//! parameters are checked, with no other effect. Then the layers are built, base first; a layer that writes a
//! file does not open it yet. At the end, once every layer exists, the files are opened, and then emptied.

use super::path::text_of_os;
use super::table::{ReadLayer, ReadStack};
use super::{LayerTable, StackSpec};
use crate::environment::variable;
use crate::{AnyResource, DriverHandle, Result};

/// The environment variable that [`StackSpec::from_env`] reads.
pub const STACK_VARIABLE: &str = "MILLPOND_STACK";

impl StackSpec {
    /// Checks that `table` contains each layer of the stack, and that each layer accepts its parameters.
    /// Builds nothing.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack). If a name is unknown, the message lists the known
    /// names.
    pub fn check(&self, table: &LayerTable) -> Result<()> {
        self.all_layers().into_iter().try_for_each(|layer| ReadLayer::new(layer, table).map(|_| ()))
    }

    /// Returns the stack whose text is the value of the environment variable `MILLPOND_STACK`. Returns `None`
    /// if the variable is unset or empty. File paths in the text may contain bytes that are not UTF-8.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if the text cannot be parsed.
    pub fn from_env() -> Result<Option<Self>> {
        let Some(text) = variable(STACK_VARIABLE) else { return Ok(None) };
        let spec = text_of_os(&text).parse::<Self>();
        spec.map(Some).map_err(|error| error.context(format!("the environment variable {STACK_VARIABLE}")))
    }

    /// Builds the stack on a device. If a layer cannot be built, no file has been opened, created or emptied.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if `table` does not know a name, a parameter or a
    /// value; also if the base is missing or does not come first. Otherwise the errors of building a layer.
    pub fn build(&self, table: &LayerTable, driver: &DriverHandle) -> Result<AnyResource> {
        ReadStack::new(self, table, None)?.finished(None, driver)
    }

    /// Builds the layers on top of an existing resource. The text of these layers has no base, as in
    /// `pool+statistics`.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub fn build_on(&self, upstream: AnyResource, table: &LayerTable) -> Result<AnyResource> {
        let (driver, below) = (DriverHandle::clone(upstream.driver()), upstream.to_string());
        ReadStack::new(self, table, Some(&below))?.finished(Some(upstream), &driver)
    }
}
