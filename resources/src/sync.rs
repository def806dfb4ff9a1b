//! The atomics of the standard library, or those of loom, which tries every order in which threads may run.

#[cfg(not(millpond_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
