//! Tells a test of the steps of stream order.

/// Tells the test that follows the pool, if there is one, of a step that the pool has taken. In other builds,
/// this is nothing.
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
