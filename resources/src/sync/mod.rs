//! Provides locks and atomics from the standard library, or from loom with `--cfg millpond_loom`.
//!
//! loom runs a model in every possible order of its threads, and with every value that a load may return.
//!
//! The models lie next to the code, in files named `models.rs`. docs/book/src/design/invariants.md says how
//! to run them.

pub(crate) mod spin_lock;

#[cfg(not(millpond_loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(millpond_loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence,
};
#[cfg(not(millpond_loom))]
pub(crate) use std::{hint::spin_loop, thread::sleep, thread::yield_now};

#[cfg(millpond_loom)]
mod modelled;
#[cfg(millpond_loom)]
pub(crate) use crate::sync::modelled::*;

/// Returns `full`, or `in_models` for models, whose running time grows steeply with sizes.
pub(crate) const fn bounded(full: usize, in_models: usize) -> usize {
    if cfg!(millpond_loom) { in_models } else { full }
}

/// Declares one variable by `std::thread_local!`, or by loom's macro.
macro_rules! per_thread {
    (static $name:ident: $type:ty = const $value:block;) => {
        #[cfg(not(millpond_loom))]
        std::thread_local! { static $name: $type = const $value; }
        #[cfg(millpond_loom)]
        loom::thread_local! { static $name: $type = $value; }
    };
    (static $name:ident: $type:ty = $value:expr;) => {
        #[cfg(not(millpond_loom))]
        std::thread_local! { static $name: $type = $value; }
        #[cfg(millpond_loom)]
        loom::thread_local! { static $name: $type = $value; }
    };
}
pub(crate) use per_thread;
