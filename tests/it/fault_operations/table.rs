//! All operations, by crate.

use millpond_testkit::faults::Operation;

use super::{containers, memory_pools, plugin, resources};

pub(crate) const CRATES: [(&str, &[Operation]); 4] = [
    ("containers", containers::OPERATIONS),
    ("memory pools", memory_pools::OPERATIONS),
    ("resources and adaptors", resources::OPERATIONS),
    ("plugin and replay", plugin::OPERATIONS),
];
