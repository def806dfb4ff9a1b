//! Checks a stack against a table of layers, and builds it.
//!
//! A stack is built in three steps. All layers are read: their names and the values of their parameters are
//! checked, and nothing happens yet. Then they are built, base first; a layer that writes a file does not
//! open it. At the end, when every layer is there, the files are opened, and then emptied.

use super::path::text_of_os;
use super::table::{ReadLayer, ReadStack};
use super::{LayerTable, StackSpec};
use crate::environment::variable;
use crate::{AnyResource, DriverHandle, Result};

/// The environment variable that [`StackSpec::from_env`] reads.
pub const STACK_VARIABLE: &str = "MILLPOND_STACK";

impl StackSpec {
    /// Checks, without building anything, that `table` has each layer, and that each layer can read the
    /// values of its parameters.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack), naming what there is.
    pub fn check(&self, table: &LayerTable) -> Result<()> {
        self.all_layers().into_iter().try_for_each(|layer| ReadLayer::new(layer, table).map(|_| ()))
    }

    /// The stack that the environment variable `MILLPOND_STACK` names, or `None` if it is not set, or empty.
    /// Bytes of it that are no UTF-8 may stand in the paths of files.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if it cannot be read.
    pub fn from_env() -> Result<Option<Self>> {
        let Some(text) = variable(STACK_VARIABLE) else { return Ok(None) };
        let spec = text_of_os(&text).parse::<Self>();
        spec.map(Some).map_err(|error| error.context(format!("the environment variable {STACK_VARIABLE}")))
    }

    /// Builds the stack on a device. A stack that cannot be built opens, makes and empties no file.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) for a name, a parameter or a value that `table` does
    /// not know, a base that is not first or is missing; and what building a layer reports.
    pub fn build(&self, table: &LayerTable, driver: &DriverHandle) -> Result<AnyResource> {
        ReadStack::new(self, table, None)?.finished(None, driver)
    }

    /// Builds the layers on a resource that is there: the text has no base, as `pool+statistics`.
    ///
    /// # Errors
    /// Those of [`build`](Self::build).
    pub fn build_on(&self, upstream: AnyResource, table: &LayerTable) -> Result<AnyResource> {
        let (driver, below) = (DriverHandle::clone(upstream.driver()), upstream.to_string());
        ReadStack::new(self, table, Some(&below))?.finished(Some(upstream), &driver)
    }
}
