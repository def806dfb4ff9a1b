//! Why a backing has no plan for new memory.

/// Why there is no plan for a growth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// The pool's maximum does not allow it.
    OwnLimit,
    /// It needs more new memory than the plan may take.
    NewMemory,
}
