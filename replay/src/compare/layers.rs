//! The layers of millpond that stacks can be made of.

use millpond_core::stack::{LayerEntry, LayerTable};

/// Returns every layer that a stack's text can name here, including [models of other
/// allocators](millpond_snapshot::peers).
pub fn layers() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().chain(millpond_plan::LAYERS).copied())
        .with(millpond_adaptors::LAYERS.iter().copied())
        .with(millpond_snapshot::peers::LAYERS.iter().copied())
}

/// Returns whether the entry is one of [`layers`], by comparing the texts.
pub(super) fn is_millponds(entry: &LayerEntry) -> bool {
    layers().get(entry.name).is_ok_and(|own| (own.about, own.params) == (entry.about, entry.params))
}
