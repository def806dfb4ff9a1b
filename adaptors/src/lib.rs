//! The adaptors of millpond. Each wraps a resource and is one itself.
//!
//! | adaptor | in text | what it adds |
//! |---|---|---|
//! | [`AlignedResourceAdaptor`] | `aligned` | an alignment of more than 256 bytes, from a size on |
//! | [`FailureCallbackResourceAdaptor`] | – | a function that makes room when memory is out, and a retry |
//! | [`FallbackResourceAdaptor`] | `fallback` | another resource for when memory is out |
//! | [`LimitingResourceAdaptor`] | `limiting` | a limit on the bytes that are handed out |
//! | [`LoggingResourceAdaptor`] | `logging` | a CSV row for every call, as RMM writes it; feature `logging` |
//! | [`PrefetchResourceAdaptor`] | `prefetch` | managed memory moves to the device when it is allocated |
//! | [`RetryResourceAdaptor`] | `retry` | a bounded wait for other threads' frees when memory is out |
//! | [`StatisticsResourceAdaptor`] | `statistics` | current, peak and total of bytes and allocations |
//! | [`ThreadSafeResourceAdaptor`] | `thread_safe` | a lock, so that threads may share the resource |
//! | [`TrackingResourceAdaptor`] | `tracking` | every outstanding allocation; refuses others, reports leaks |
//!
//! Every adaptor has a folder with the same files: `mod.rs` holds the adaptor, `layer.rs` its layer and its
//! parameters in text, `tests.rs` its tests. [`LAYERS`] lists them for
//! [`StackSpec`](millpond_core::stack::StackSpec); `failure_callback` is not among them, since text cannot
//! name a function. In a stack of any types, [`find_trait`](millpond_core::find_trait) finds them by their
//! traits ([`AllocationCounters`], …).
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod aligned;
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
pub mod retry;
mod shards;
pub mod statistics;
pub mod thread_safe;
mod timeout;
pub mod tracking;
mod traits;
mod waiting;

use millpond_core::stack::LayerEntry;

pub use aligned::{AlignedLayer, AlignedResourceAdaptor};
pub use failure_callback::{FailedRequest, FailureCallbackLayer, FailureCallbackResourceAdaptor};
pub use fallback::{FallbackLayer, FallbackResourceAdaptor};
pub use limiting::{LimitingLayer, LimitingResourceAdaptor};
#[cfg(feature = "logging")]
pub use logging::{LoggingLayer, LoggingResourceAdaptor};
pub use prefetch::{PrefetchLayer, PrefetchResourceAdaptor};
pub use retry::{RetryLayer, RetryResourceAdaptor};
pub use statistics::{StatisticsLayer, StatisticsResourceAdaptor};
pub use thread_safe::{ThreadSafeLayer, ThreadSafeResourceAdaptor};
pub use tracking::{TrackingLayer, TrackingResourceAdaptor};
#[cfg(feature = "logging")]
pub use traits::AllocationLog;
pub use traits::{AllocationCounters, AllocationLimit, AllocationTracker};

/// The adaptors that a stack's text can name.
pub const LAYERS: &[LayerEntry] = &[
    aligned::layer::ENTRY,
    fallback::layer::ENTRY,
    limiting::layer::ENTRY,
    #[cfg(feature = "logging")]
    logging::entry::ENTRY,
    prefetch::layer::ENTRY,
    retry::layer::ENTRY,
    statistics::layer::ENTRY,
    thread_safe::layer::ENTRY,
    tracking::layer::ENTRY,
];
