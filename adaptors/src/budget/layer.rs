//! The layer that charges allocations to a budget, and its parameters in text.

use std::sync::Arc;
use std::time::Duration;

use millpond_core::stack::{LayerBuilder, LayerEntry, LayerKind, Params};
use millpond_core::{ByteSize, DeviceMemoryResource, Driver, Error, Layer, Result};

use super::settings::{Settings, Zero};
use super::{Budget, BudgetResourceAdaptor, names};
use crate::timeout::{self, Timeout};

/// Puts a [`BudgetResourceAdaptor`] on top of a resource.
///
#[doc = include_str!("../../layers/budget.md")]
#[derive(Clone, PartialEq, Debug)]
#[must_use]
pub struct BudgetLayer {
    settings: Settings,
}

impl BudgetLayer {
    /// The longest time that a request waits, unless [`wait`](Self::wait) sets another time.
    pub const DEFAULT_WAIT: Duration = timeout::DEFAULT_TIMEOUT;

    /// Creates a layer that charges the budget `name` of the device. If the device has no such budget, the
    /// layer creates it with this limit on live bytes. The limit is a number of bytes, or a percentage of the
    /// device's free memory at that time.
    pub fn new(name: impl Into<String>, limit: impl Into<ByteSize>) -> Self {
        Self { settings: Settings::new(name.into(), limit.into()) }
    }

    /// Puts the budget below the budget `parent`, which must exist on the device.
    pub fn parent(mut self, parent: impl Into<String>) -> Self {
        self.settings.parent = Some(parent.into());
        self
    }

    /// Sets the bytes that the parent guarantees to this budget. Other budgets may borrow them until this
    /// budget needs them. The guarantees of a parent's budgets may not exceed the parent's own guarantee, or,
    /// if the parent is the root, its limit.
    pub fn guaranteed(mut self, bytes: impl Into<ByteSize>) -> Self {
        self.settings.guaranteed = bytes.into();
        self
    }

    /// Sets the priority. Borrowed bytes are called back from the budget with the lowest priority first. The
    /// default is 0.
    pub fn priority(mut self, priority: u32) -> Self {
        self.settings.priority = priority;
        self
    }

    /// Sets the longest time that a request within the guarantee waits for borrowed bytes. The time may be up
    /// to an hour. It is rounded down to whole microseconds.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets when this budget, and the budgets below, clear memory.
    pub fn zero(mut self, zero: Zero) -> Self {
        self.settings.zero = zero;
        self
    }

    /// Returns the budget, without a resource that charges it. Use this for a budget that has only budgets
    /// below it. The budget exists as long as a handle, a resource, or a budget below it.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the budget exists with other
    /// options, if there is no such parent, if a guarantee is too large, or if the wait is longer than an
    /// hour. For a percentage, also the driver's errors.
    pub fn open(mut self, driver: &dyn Driver) -> Result<Budget> {
        self.settings.wait = Timeout::new(self.settings.wait)?.0;
        Ok(Budget(names::open(self.settings, driver)?))
    }
}

/// # Errors
/// The errors of [`open`](BudgetLayer::open). Also
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if a layer below charges a budget of the
/// same tree, or if the budget clears memory that the device cannot access.
impl<R: DeviceMemoryResource> Layer<R> for BudgetLayer {
    type Resource = BudgetResourceAdaptor<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        let budget = self.open(&**upstream.driver())?;
        BudgetResourceAdaptor::new(upstream, &budget)
    }
}

pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "budget",
    about: "limits the live bytes by budgets in a tree, which borrow unused shares from each other",
    params: &[
        ("name", "the name of the budget; stacks with the same name share it; required"),
        ("limit", "the most live bytes: a size, or a percentage of the device's free memory; required"),
        ("parent", "the name of the budget above, which must exist (default: none)"),
        (
            "guaranteed",
            "the bytes that this budget can call back from others: a size or a percentage (default: none)",
        ),
        ("priority", "borrowed bytes are called back from the lowest priority first (default 0)"),
        ("wait", "the longest wait for borrowed bytes: 100ms (default), 2s, 50us"),
        ("zero", "off (default), or handover: fills each block with zeros on its stream"),
    ],
    kind: LayerKind::ReadLayer(read),
};

fn read<'a>(params: &Params<'a>) -> Result<LayerBuilder<'a>> {
    let missing = |what: &str| {
        Error::invalid_stack(format!(
            "`budget` needs a {what}; write for example `budget:name=etl,limit=8GiB`"
        ))
    };
    let name = params.text("name")?.ok_or_else(|| missing("name"))?;
    let limit: ByteSize = params.get("limit")?.ok_or_else(|| missing("limit"))?;
    let wait = params.get::<Timeout>("wait")?.map_or(timeout::DEFAULT_TIMEOUT, |wait| wait.0);
    let settings = Settings {
        guaranteed: params.get("guaranteed")?.unwrap_or(Settings::NO_GUARANTEE),
        parent: params.text("parent")?.map(str::to_owned),
        priority: params.get("priority")?.unwrap_or(0),
        wait,
        zero: params.get("zero")?.unwrap_or_default(),
        ..Settings::new(name.to_owned(), limit)
    };
    let layer = BudgetLayer { settings };
    Ok(Box::new(move |upstream, building| {
        let adaptor = layer.layer(upstream)?;
        let account = Arc::clone(adaptor.account());
        building.when_built(move |stack| account.set_stack(Arc::downgrade(stack)));
        Ok(Arc::new(adaptor))
    }))
}
