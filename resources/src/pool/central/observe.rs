//! Tells a test of the steps of stream order. In other builds, all of this is nothing.

/// Tells the test that follows the pool, if there is one, of a step that the pool has taken.
macro_rules! observe {
    ($place:expr, $step:ident $(, $argument:expr)*) => {
        #[cfg(all(test, not(millpond_loom)))]
        {
            if let Some(follower) = &$place.follower {
                follower.lock().$step($($argument),*);
            }
        }
    };
}
pub(crate) use observe;

/// Allocates, and tells the test of the call and of the block.
macro_rules! observe_allocation {
    ($pool:expr, $layout:expr, $stream:expr, $allocate:expr) => {{
        #[cfg(all(test, not(millpond_loom)))]
        let call = $pool.central.core().begins(Some($stream));
        let block = $allocate;
        #[cfg(all(test, not(millpond_loom)))]
        block.iter().for_each(|ptr| call.got(*ptr, $layout, $stream));
        block
    }};
}
pub(crate) use observe_allocation;

/// Frees, and tells the test of the call and of the block.
macro_rules! observe_free {
    ($pool:expr, $ptr:expr, $stream:expr, $free:expr) => {{
        #[cfg(all(test, not(millpond_loom)))]
        let call = $pool.central.core().begins(None);
        #[cfg(all(test, not(millpond_loom)))]
        call.frees($ptr, $stream);
        $free
    }};
}
pub(crate) use observe_free;
