//! Models of other programs' allocators, to ask what they would have done with a log.
//!
//! | model | in text | of |
//! |---|---|---|
//! | `torch` | `torch:max_split_size_mb=128` | PyTorch's native caching allocator |
//! | `rmm_pool` | `rmm_pool:initial=1GiB` | RMM's pool memory resource |
//! | `rmm_arena` | `rmm_arena:size=8GiB` | RMM's arena memory resource |
//!
//! They stand first in a stack, as `cuda` does, and take their memory from the driver with the calls of the
//! original, so that all tables hold for them. They keep the contract of a resource, but are made to compare,
//! not to be used: one lock, and no care for speed. [`fidelity`](crate::fidelity) measures how well `torch`
//! predicts what PyTorch did.

mod resource;
mod rmm_arena;
mod rmm_pool;
pub(crate) mod torch;

use millpond_core::stack::LayerEntry;

/// The models that a stack's text can name.
pub const LAYERS: &[LayerEntry] = &[torch::ENTRY, rmm_pool::ENTRY, rmm_arena::ENTRY];

#[cfg(test)]
mod tests;
