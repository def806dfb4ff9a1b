//! Memory shared between processes, which are simulated within one. An allocation opened through its handle
//! has a second address.

use millpond_core::DeviceId;
use rustc_hash::FxHashMap;

use super::rng::mix;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"millsim1");

/// An open allocation: which one, and how many times it is open.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) generation: u64,
    pub(crate) count: u32,
}

/// The open allocations, by their second addresses.
#[derive(Debug)]
pub(crate) struct Openings {
    pub(crate) device: DeviceId,
    pub(crate) open: FxHashMap<u64, Opening>,
}

impl Openings {
    pub(crate) fn new(device: DeviceId) -> Self {
        Self { device, open: FxHashMap::default() }
    }

    /// Closes all openings.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    pub(crate) fn is_open(&self, generation: u64) -> bool {
        self.open.values().any(|opening| opening.generation == generation)
    }
}

/// The words of a handle: magic, device, base, generation, bytes, and their checksum.
pub(crate) fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| mix(sum ^ word))
}
