//! Provides the adaptors of millpond. An adaptor is a resource that wraps another resource and adds one
//! feature.
//!
//! | adaptor | in text | effect |
//! |---|---|---|
//! | [`AlignedResourceAdaptor`] | `aligned` | aligns blocks to more than 256 bytes |
//! | [`BudgetResourceAdaptor`] | `budget` | limits the live bytes by budgets in a tree |
//! | [`FailureCallbackResourceAdaptor`] | – | when memory is out, calls a function, and retries if told to |
//! | [`FallbackResourceAdaptor`] | `fallback` | when memory is out, uses another resource |
//! | [`LimitingResourceAdaptor`] | `limiting` | limits the live bytes |
//! | [`LoggingResourceAdaptor`] | `logging` | writes a CSV row for every call; feature `logging` |
//! | [`PrefetchResourceAdaptor`] | `prefetch` | moves new blocks of managed memory to the device |
//! | [`RecordingResourceAdaptor`] | `recording` | keeps the last events, for snapshots in PyTorch's format |
//! | [`RetryResourceAdaptor`] | `retry` | when memory is out, waits until other threads free memory |
//! | [`StatisticsResourceAdaptor`] | `statistics` | counts live, peak and total bytes and allocations |
//! | [`ThreadSafeResourceAdaptor`] | `thread_safe` | adds a lock, so that threads may share the resource |
//! | [`TrackingResourceAdaptor`] | `tracking` | records every live allocation, and reports leaks |
//!
//! Every adaptor has a folder with the same files: `mod.rs` contains the adaptor, `layer.rs` contains its
//! layer and the layer's parameters in text, and `tests.rs` contains its tests. [`LAYERS`] lists the adaptors
//! that a [`StackSpec`](millpond_core::stack::StackSpec) can build. Only `failure_callback` is missing,
//! because a text cannot name a function.
//!
//! The adaptors `budget`, `limiting`, `logging`, `statistics` and `tracking` each have a trait, such as
//! [`AllocationCounters`]. If you do not know the types of a stack, [`find_trait`](millpond_core::find_trait)
//! finds the adaptor by its trait.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod aligned;
pub mod budget;
#[cfg(feature = "debug-log")]
pub mod debug_log;
#[cfg(test)]
mod events;
pub mod failure_callback; // no text: it has a function
pub mod fallback;
pub mod limiting;
#[cfg(feature = "logging")]
pub mod logging;
mod panicked;
pub mod prefetch;
#[cfg(test)]
mod probe;
mod rare_blocks;
pub mod recording;
pub mod retry;
mod shards;
pub mod statistics;
mod sync;
pub mod thread_safe;
mod timeout;
pub mod tracking;
mod traits;
mod waiting;

use millpond_core::stack::LayerEntry;

pub use aligned::{AlignedLayer, AlignedResourceAdaptor};
pub use budget::{Budget, BudgetLayer, BudgetResourceAdaptor};
pub use failure_callback::{FailedRequest, FailureCallbackLayer, FailureCallbackResourceAdaptor};
pub use fallback::{FallbackLayer, FallbackResourceAdaptor};
pub use limiting::{LimitingLayer, LimitingResourceAdaptor};
#[cfg(feature = "logging")]
pub use logging::{LoggingLayer, LoggingResourceAdaptor};
pub use prefetch::{PrefetchLayer, PrefetchResourceAdaptor};
pub use recording::{
    RecordOptions, RecordStacks, Recorder, Recording, RecordingLayer, RecordingResourceAdaptor, Snapshot,
    memory_snapshot,
};
pub use retry::{RetryLayer, RetryResourceAdaptor};
pub use statistics::{StatisticsLayer, StatisticsResourceAdaptor};
pub use thread_safe::{ThreadSafeLayer, ThreadSafeResourceAdaptor};
pub use tracking::{TrackingLayer, TrackingResourceAdaptor};
#[cfg(feature = "logging")]
pub use traits::AllocationLog;
pub use traits::{AllocationBudget, AllocationCounters, AllocationLimit, AllocationTracker};

/// The adaptors that the text of a stack can name.
pub const LAYERS: &[LayerEntry] = &[
    aligned::layer::ENTRY,
    budget::layer::ENTRY,
    fallback::layer::ENTRY,
    limiting::layer::ENTRY,
    #[cfg(feature = "logging")]
    logging::entry::ENTRY,
    prefetch::layer::ENTRY,
    recording::layer::ENTRY,
    retry::layer::ENTRY,
    statistics::layer::ENTRY,
    thread_safe::layer::ENTRY,
    tracking::layer::ENTRY,
];
