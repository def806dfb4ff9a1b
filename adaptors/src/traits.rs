//! The adaptors as layers of a stack, whatever is below them: [`find_trait`](millpond_core::find_trait) finds
//! them.

use millpond_core::Result;

#[cfg(feature = "logging")]
use crate::LoggingResourceAdaptor;
use crate::statistics::Counters;
use crate::tracking::Allocation;
use crate::{LimitingResourceAdaptor, StatisticsResourceAdaptor, TrackingResourceAdaptor};

/// Reads the limit of a [`LimitingResourceAdaptor`] and the bytes handed out.
pub trait AllocationLimit {
    /// See [`LimitingResourceAdaptor::limit_bytes`].
    fn limit_bytes(&self) -> u64;

    /// See [`LimitingResourceAdaptor::allocated_bytes`].
    fn allocated_bytes(&self) -> u64;
}

impl<R> AllocationLimit for LimitingResourceAdaptor<R> {
    fn limit_bytes(&self) -> u64 {
        self.limit_bytes()
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes()
    }
}

/// Flushes the log of a [`LoggingResourceAdaptor`] and counts its rows and errors.
#[cfg(feature = "logging")]
pub trait AllocationLog {
    /// See [`LoggingResourceAdaptor::flush`].
    ///
    /// # Errors
    /// As there.
    fn flush(&self) -> Result<()>;

    /// See [`LoggingResourceAdaptor::rows_written`].
    fn rows_written(&self) -> u64;

    /// See [`LoggingResourceAdaptor::write_errors`].
    fn write_errors(&self) -> u64;
}

#[cfg(feature = "logging")]
impl<R> AllocationLog for LoggingResourceAdaptor<R> {
    fn flush(&self) -> Result<()> {
        self.flush()
    }

    fn rows_written(&self) -> u64 {
        self.rows_written()
    }

    fn write_errors(&self) -> u64 {
        self.write_errors()
    }
}

/// Reads the counters of a [`StatisticsResourceAdaptor`], and nests them.
///
/// ```
/// use millpond_adaptors::{AllocationCounters, LimitingLayer, StatisticsLayer};
/// use millpond_core::{DeviceMemoryResourceExt, StreamRef, find_trait};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let stack = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()))
///     .layer(StatisticsLayer)?
///     .layer(LimitingLayer::new(1 << 20))?
///     .into_any();
/// stack.allocate_bytes(1000, StreamRef::LEGACY)?;
/// let counted = find_trait::<dyn AllocationCounters>(&stack).expect("a layer counts");
/// assert_eq!(counted.counters().bytes.current, 1000);
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub trait AllocationCounters {
    /// See [`StatisticsResourceAdaptor::counters`].
    fn counters(&self) -> Counters;

    /// See [`StatisticsResourceAdaptor::push_counters`].
    fn push_counters(&self) -> Counters;

    /// See [`StatisticsResourceAdaptor::pop_counters`].
    ///
    /// # Errors
    /// As there.
    fn pop_counters(&self) -> Result<Counters>;
}

impl<R> AllocationCounters for StatisticsResourceAdaptor<R> {
    fn counters(&self) -> Counters {
        self.counters()
    }

    fn push_counters(&self) -> Counters {
        self.push_counters()
    }

    fn pop_counters(&self) -> Result<Counters> {
        self.pop_counters()
    }
}

/// Lists the blocks of a [`TrackingResourceAdaptor`] that were not given back.
pub trait AllocationTracker {
    /// See [`TrackingResourceAdaptor::outstanding`].
    fn outstanding(&self) -> Vec<Allocation>;

    /// See [`TrackingResourceAdaptor::allocated_bytes`].
    fn allocated_bytes(&self) -> u64;

    /// See [`TrackingResourceAdaptor::report`].
    fn report(&self) -> String;
}

impl<R> AllocationTracker for TrackingResourceAdaptor<R> {
    fn outstanding(&self) -> Vec<Allocation> {
        self.outstanding()
    }

    fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes()
    }

    fn report(&self) -> String {
        self.report()
    }
}
