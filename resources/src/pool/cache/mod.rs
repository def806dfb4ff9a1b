//! Caches free blocks per thread and stream. The thread takes and frees them without a lock.

pub(crate) mod contention;
mod limits;
pub(crate) mod peak;
mod quota;
pub(crate) mod stream_cache;
pub(crate) mod thread_cache;
pub(crate) mod thread_counts;
