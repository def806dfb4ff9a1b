//! Models of other libraries' allocators. They show how these allocators would have served a log.
//!
//! | model | in text | of |
//! |---|---|---|
//! | `torch` | `torch:max_split_size_mb=128` | PyTorch's native caching allocator |
//! | `rmm_pool` | `rmm_pool:initial=1GiB` | RMM's pool memory resource |
//! | `rmm_arena` | `rmm_arena:size=8GiB` | RMM's arena memory resource |
//!
//! A model is the base of a stack, as `cuda` is. It makes the same driver calls as the original allocator, so
//! all tables of a replay include it. Models keep the contract of a resource, but they have one lock and are
//! not fast. So use them only for comparison. [`fidelity`](crate::fidelity) measures how well the model
//! `torch` predicts PyTorch's allocator.

mod resource;
mod rmm_arena;
mod rmm_pool;
pub(crate) mod torch;

use millpond_core::stack::LayerEntry;

/// The models that a stack's text can name.
pub const LAYERS: &[LayerEntry] = &[torch::ENTRY, rmm_pool::ENTRY, rmm_arena::ENTRY];

#[cfg(test)]
mod tests;
