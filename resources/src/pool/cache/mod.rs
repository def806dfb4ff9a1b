//! What threads keep of free blocks, without the pool's lock.

mod limits;
pub(crate) mod peak;
pub(crate) mod stream_cache;
pub(crate) mod thread_cache;
