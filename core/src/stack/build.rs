//! Checks a stack against a table of layers, and builds it.

use super::{LayerKind, LayerTable, Params, StackSpec};
use crate::environment::variable;
use crate::{AnyResource, DriverHandle, Error, Result};

/// The environment variable that [`StackSpec::from_env`] reads.
pub const STACK_VARIABLE: &str = "MILLPOND_STACK";

impl StackSpec {
    /// Checks, without building anything, that `table` has each layer, and each layer its parameters.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack), naming what there is.
    pub fn check(&self, table: &LayerTable) -> Result<()> {
        self.all_layers()
            .into_iter()
            .try_for_each(|layer| Params::new(table.get(&layer.name)?, &layer.params, table).map(|_| ()))
    }

    /// The stack that the environment variable `MILLPOND_STACK` names, or `None` if it is not set, or empty.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) if it cannot be read.
    pub fn from_env() -> Result<Option<Self>> {
        let Some(text) = variable(STACK_VARIABLE) else { return Ok(None) };
        let spec = text.to_string_lossy().parse::<Self>();
        spec.map(Some).map_err(|error| error.context(format!("the environment variable {STACK_VARIABLE}")))
    }

    /// Builds the stack on a device.
    ///
    /// # Errors
    /// [`InvalidStack`](crate::ErrorKind::InvalidStack) for a name or parameter that `table` lacks, a base
    /// that is not first or is missing; and what building a layer reports.
    pub fn build(&self, table: &LayerTable, driver: &DriverHandle) -> Result<AnyResource> {
        self.put_on(None, table, driver)
    }

    /// Builds the layers on a resource that is there: the text has no base, as `pool+statistics`.
    ///
    /// # Errors
    /// Those of [`build`](Self::build).
    pub fn build_on(&self, upstream: AnyResource, table: &LayerTable) -> Result<AnyResource> {
        let driver = DriverHandle::clone(upstream.driver());
        self.put_on(Some(upstream), table, &driver)
    }

    fn put_on(
        &self,
        mut built: Option<AnyResource>,
        table: &LayerTable,
        driver: &DriverHandle,
    ) -> Result<AnyResource> {
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
