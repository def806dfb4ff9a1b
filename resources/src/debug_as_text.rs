//! The text that `{:?}` prints of a resource.

pub(crate) use millpond_core::debug_as_text;
