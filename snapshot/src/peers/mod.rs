//! Models of other libraries' allocators. They show how these allocators would have served a log.
//!
//! | model | in text | of |
//! |---|---|---|
//! | `torch` | `torch:max_split_size_mb=128` | PyTorch's native caching allocator |
//! | `pytorch` | `pytorch:expandable_segments=True` | none: PyTorch's allocator itself, in another process |
//! | `rmm_pool` | `rmm_pool:initial=1GiB` | RMM's pool memory resource |
//! | `rmm_arena` | `rmm_arena:size=8GiB` | RMM's arena memory resource |
//!
//! A model is the base of a stack, as `cuda` is. It makes the same driver calls as the original allocator, so
//! all tables of a replay include it. Models keep the contract of a resource, but they have one lock and are
//! not fast. So use them only for comparison. [`fidelity`](crate::fidelity) measures how well the model
//! `torch` predicts PyTorch's allocator.

mod pytorch;
mod resource;
mod rmm_arena;
mod rmm_pool;
pub(crate) mod torch;

use foldhash::HashSet;
use millpond_core::stack::LayerEntry;

use crate::recording::{Recording, Source};
use torch::settings::Settings;

/// The models that a stack's text can name.
pub const LAYERS: &[LayerEntry] = &[torch::ENTRY, pytorch::ENTRY, rmm_pool::ENTRY, rmm_arena::ENTRY];

/// Returns the stack that models the allocator of a recorded program, with the recorded settings. Returns
/// `None` if the file does not tell which allocator this is, or if there is no model of it.
pub fn model_of(recording: &Recording) -> Option<String> {
    let has_millpond = || recording.settings().iter().any(|(name, _)| name == "millpond");
    match recording.source().format.as_str() {
        Source::RMM | Source::RMM_DEBUG => Some("rmm_pool".to_owned()),
        format if format.starts_with("PyTorch") && !has_millpond() => {
            Settings::of(recording).ok().map(|settings| settings.stack())
        }
        _ => None,
    }
}

/// Returns the number of private memory pools that the recorded program used, for instance of CUDA graphs. No
/// model of a replay has such pools: the blocks of all pools share memory.
pub fn private_pools(recording: &Recording) -> usize {
    let lanes = recording.lanes().iter().filter(|lane| lane.is_private());
    lanes.map(|lane| lane.pool).collect::<HashSet<_>>().len()
}

#[cfg(test)]
mod tests;
