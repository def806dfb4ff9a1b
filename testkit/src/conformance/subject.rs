//! A resource under test.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{AnyResource, DriverHandle, Result};

use crate::statistics_check::StatisticsCheck;

/// Checks the inside of a resource, and panics if it is inconsistent.
pub type Inspect = fn(&AnyResource);

/// Lets a resource release idle memory. The time counts from any fixed moment.
///
/// # Errors
/// Returns the errors of the resource.
pub type Decay = fn(&AnyResource, Duration) -> Result<()>;

type Build = dyn Fn(&DriverHandle) -> Result<AnyResource> + Send + Sync;

/// The kinds of misuse that a resource detects.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Refusals {
    /// A pointer that the resource never returned, or a pointer into the middle of a block.
    pub foreign_pointer: bool,
    /// A block that is already free.
    pub double_free: bool,
    /// A size other than the block's size.
    pub wrong_size: bool,
}

impl Refusals {
    /// No kinds of misuse.
    pub const NONE: Self = Self { foreign_pointer: false, double_free: false, wrong_size: false };
    /// All kinds of misuse.
    pub const ALL: Self = Self { foreign_pointer: true, double_free: true, wrong_size: true };
}

/// A resource under test, and its properties.
#[derive(Clone)]
pub struct Subject {
    name: String,
    build: Arc<Build>,
    pub(super) table: Option<LayerTable>,
    pub(crate) largest_bytes: u64,
    pub(super) refusals: Refusals,
    pub(crate) statistics: StatisticsCheck,
    pub(super) device_bytes: u64,
    pub(super) hands_on: bool,
    pub(super) shares_pools: bool,
    pub(super) is_alone: bool,
    pub(crate) inspect: Option<Inspect>,
    pub(crate) decay: Option<Decay>,
}

impl Subject {
    /// Creates a subject from a function that builds the resource.
    pub fn new(
        name: impl Into<String>,
        build: impl Fn(&DriverHandle) -> Result<AnyResource> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            build: Arc::new(build),
            table: None,
            largest_bytes: 64 << 20,
            refusals: Refusals::default(),
            statistics: StatisticsCheck::None,
            device_bytes: 4 << 30,
            hands_on: false,
            shares_pools: false,
            is_alone: false,
            inspect: None,
            decay: None,
        }
    }

    /// Creates a subject from the text of a stack. The built stack must print a text that builds the same
    /// stack.
    pub fn from_text(text: &str, table: &LayerTable) -> Self {
        let (text_owned, build_table) = (text.to_owned(), table.clone());
        let build = move |driver: &DriverHandle| text_owned.parse::<StackSpec>()?.build(&build_table, driver);
        Self { table: Some(table.clone()), ..Self::new(text, build) }
    }

    /// Sets the largest request in bytes that the resource serves. Without this call, it must serve requests
    /// of 64 MiB and more.
    #[must_use]
    pub fn largest_bytes(mut self, bytes: u64) -> Self {
        self.largest_bytes = bytes;
        self
    }

    /// Sets the kinds of misuse that the resource detects. Without this call, it need not detect any.
    #[must_use]
    pub fn refuses(mut self, refusals: Refusals) -> Self {
        self.refusals = refusals;
        self
    }

    /// Sets which part of the statistics must be right. Without this call, no part is checked.
    #[must_use]
    pub fn statistics(mut self, statistics: StatisticsCheck) -> Self {
        self.statistics = statistics;
        self
    }

    /// Sets the capacity of the simulated device in bytes. Without this call, it is 4 GiB.
    #[must_use]
    pub fn device_bytes(mut self, bytes: u64) -> Self {
        self.device_bytes = bytes;
        self
    }

    /// Declares that the resource does not own the blocks that it allocates. When the resource is dropped,
    /// live blocks stay allocated on the device. This is true of `cuda`, `managed` and `pinned_host`, and of
    /// most adaptors directly on top of them.
    #[must_use]
    pub fn hands_on(mut self) -> Self {
        self.hands_on = true;
        self
    }

    /// Declares that the resource uses the driver's default pools. Freed memory stays in these pools until
    /// they are trimmed.
    #[must_use]
    pub fn shares_pools(mut self) -> Self {
        self.shares_pools = true;
        self
    }

    /// Declares that nothing else uses the device of [`run_on`](super::run_on) during the run. Then the tests
    /// also fill the device, and measure its free memory.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.is_alone = true;
        self
    }

    /// Sets the function that checks the resource's internal state. It is called while no other thread uses
    /// the resource.
    #[must_use]
    pub fn inspected_by(mut self, inspect: Inspect) -> Self {
        self.inspect = Some(inspect);
        self
    }

    /// Sets the function that lets the resource release idle memory as time passes.
    #[must_use]
    pub fn decayed_by(mut self, decay: Decay) -> Self {
        self.decay = Some(decay);
        self
    }

    /// Returns the name of the subject.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Builds the resource on a device.
    ///
    /// # Errors
    /// Returns an error if the resource cannot be built.
    pub fn build(&self, driver: &DriverHandle) -> Result<AnyResource> {
        (self.build)(driver)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("name", &self.name).finish_non_exhaustive()
    }
}
