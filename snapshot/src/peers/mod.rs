//! Models of other allocators, which tell what these would have done with a log.
//!
//! | model | in text | of |
//! |---|---|---|
//! | `torch` | `torch:max_split_size_mb=128` | PyTorch's native caching allocator |
//! | `rmm_pool` | `rmm_pool:initial=1GiB` | RMM's pool memory resource |
//! | `rmm_arena` | `rmm_arena:size=8GiB` | RMM's arena memory resource |
//!
//! A model stands first in a stack, as `cuda` does. It takes its memory with the original's driver calls, so
//! all tables apply to it. Models keep the contract of a resource, but are made for comparison, not for use:
//! they have one lock and are not fast. [`fidelity`](crate::fidelity) measures how well `torch` predicts
//! PyTorch.

mod resource;
mod rmm_arena;
mod rmm_pool;
pub(crate) mod torch;

use millpond_core::stack::LayerEntry;

/// The models that a stack's text can name.
pub const LAYERS: &[LayerEntry] = &[torch::ENTRY, rmm_pool::ENTRY, rmm_arena::ENTRY];

#[cfg(test)]
mod tests;
