//! The traits of the adaptors. [`find_trait`](millpond_core::find_trait) finds an adaptor in a stack of any
//! types by its trait.

use millpond_core::Result;

use crate::budget::Budget;
use crate::statistics::Counters;
use crate::tracking::Allocation;

/// Gives the budget that a [`BudgetResourceAdaptor`](crate::BudgetResourceAdaptor) charges.
pub trait AllocationBudget {
    /// See [`BudgetResourceAdaptor::budget`](crate::BudgetResourceAdaptor::budget).
    fn budget(&self) -> Budget;
}

/// Gives the limit and the live bytes of a [`LimitingResourceAdaptor`](crate::LimitingResourceAdaptor), or of
/// the budget of a [`BudgetResourceAdaptor`](crate::BudgetResourceAdaptor).
pub trait AllocationLimit {
    /// See [`LimitingResourceAdaptor::limit_bytes`](crate::LimitingResourceAdaptor::limit_bytes).
    fn limit_bytes(&self) -> u64;

    /// See [`LimitingResourceAdaptor::allocated_bytes`](crate::LimitingResourceAdaptor::allocated_bytes).
    fn allocated_bytes(&self) -> u64;
}

/// Gives access to the log of a [`LoggingResourceAdaptor`](crate::LoggingResourceAdaptor). You can flush the
/// log, and read how many rows were written and how many writes failed.
#[cfg(feature = "logging")]
pub trait AllocationLog {
    /// See [`LoggingResourceAdaptor::file`](crate::LoggingResourceAdaptor::file).
    fn file(&self) -> Option<&std::path::Path> {
        None
    }

    /// See [`LoggingResourceAdaptor::flush`](crate::LoggingResourceAdaptor::flush).
    ///
    /// # Errors
    /// The errors of [`LoggingResourceAdaptor::flush`](crate::LoggingResourceAdaptor::flush).
    fn flush(&self) -> Result<()>;

    /// See [`LoggingResourceAdaptor::rows_written`](crate::LoggingResourceAdaptor::rows_written).
    fn rows_written(&self) -> u64;

    /// See [`LoggingResourceAdaptor::write_errors`](crate::LoggingResourceAdaptor::write_errors).
    fn write_errors(&self) -> u64;
}

/// Gives access to the counters of a [`StatisticsResourceAdaptor`](crate::StatisticsResourceAdaptor), and to
/// their [levels](crate::StatisticsResourceAdaptor#levels).
///
/// ```
/// use millpond_adaptors::{AllocationCounters, LimitingLayer, StatisticsLayer};
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef, find_trait};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let stack = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()))
///     .layer(StatisticsLayer::new())?
///     .layer(LimitingLayer::new(1 << 20))?
///     .into_any();
/// stack.allocate_bytes(1000, StreamRef::LEGACY)?;
/// let counted = find_trait::<dyn AllocationCounters>(&stack).expect("a layer counts");
/// assert_eq!(counted.counters().bytes.current, 1000);
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub trait AllocationCounters {
    /// See [`StatisticsResourceAdaptor::counters`](crate::StatisticsResourceAdaptor::counters).
    fn counters(&self) -> Counters;

    /// See [`StatisticsResourceAdaptor::push_counters`](crate::StatisticsResourceAdaptor::push_counters).
    fn push_counters(&self) -> Counters;

    /// See [`StatisticsResourceAdaptor::pop_counters`](crate::StatisticsResourceAdaptor::pop_counters).
    ///
    /// # Errors
    /// The errors of
    /// [`StatisticsResourceAdaptor::pop_counters`](crate::StatisticsResourceAdaptor::pop_counters).
    fn pop_counters(&self) -> Result<Counters>;
}

/// Gives access to the live blocks of a [`TrackingResourceAdaptor`](crate::TrackingResourceAdaptor).
pub trait AllocationTracker {
    /// See [`TrackingResourceAdaptor::outstanding`](crate::TrackingResourceAdaptor::outstanding).
    fn outstanding(&self) -> Vec<Allocation>;

    /// See [`TrackingResourceAdaptor::allocated_bytes`](crate::TrackingResourceAdaptor::allocated_bytes).
    fn allocated_bytes(&self) -> u64;

    /// See [`TrackingResourceAdaptor::report`](crate::TrackingResourceAdaptor::report).
    fn report(&self) -> String;
}
