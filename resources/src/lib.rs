//! The memory resources of millpond and the per-device registry.
