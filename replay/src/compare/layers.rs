//! The layers of millpond that stacks can be made of.

use millpond_core::stack::{LayerEntry, LayerTable};

/// Every layer that a stack's text can name here, [models of other allocators](millpond_snapshot::peers)
/// included.
pub fn layers() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().chain(millpond_plan::LAYERS).copied())
        .with(millpond_adaptors::LAYERS.iter().copied())
        .with(millpond_snapshot::peers::LAYERS.iter().copied())
}

/// Whether it is an entry of [`layers`], judged by its texts.
pub(super) fn is_millponds(entry: &LayerEntry) -> bool {
    layers().get(entry.name).is_ok_and(|own| (own.about, own.params) == (entry.about, entry.params))
}
