//! The layers of millpond from which stacks can be built.

use millpond_core::stack::{LayerEntry, LayerTable};

/// Returns every layer that a stack's text can name here. The [models of other
/// allocators](millpond_snapshot::peers) are among the layers.
pub fn layers() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().chain(millpond_plan::LAYERS).copied())
        .with(millpond_adaptors::LAYERS.iter().copied())
        .with(millpond_snapshot::peers::LAYERS.iter().copied())
}

/// Returns whether a stack contains a model of another library's allocator, which no program can use.
pub(crate) fn has_model(spec: &str) -> bool {
    let layers = spec.split('+').map(|layer| layer.split(':').next().unwrap_or_default().trim());
    layers.into_iter().any(|layer| millpond_snapshot::peers::LAYERS.iter().any(|model| model.name == layer))
}

/// Returns whether the entry is one of [`layers`]. Compares the texts of the entries.
pub(super) fn is_millponds(entry: &LayerEntry) -> bool {
    layers().get(entry.name).is_ok_and(|own| (own.about, own.params) == (entry.about, entry.params))
}
