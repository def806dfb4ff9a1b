//! Memory shared between processes, which are simulated within one. An allocation opened through its handle
//! has a second address.

use std::process;

use millpond_core::DeviceId;
use rustc_hash::FxHashMap;

use super::answer::{Answer, Refusal};
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

/// Names a device of this process in what other processes get.
pub(crate) fn owner(device: DeviceId) -> u64 {
    u64::from(process::id()) << 32 | u64::from(device.ordinal())
}

/// Refuses what another process named: its memory is simulated within that process.
pub(crate) fn check_owner(owner: u64) -> Answer<()> {
    match owner >> 32 {
        here if here == u64::from(process::id()) => Ok(()),
        other => Err(Refusal::not_supported(format!(
            "simulated memory cannot cross processes, and process {other} has this memory; use a GPU, or \
             import in the process that exports"
        ))),
    }
}

/// Packs words and their checksum into the 64 bytes of a handle. At most seven words fit.
pub(crate) fn pack(words: &[u64]) -> [u8; 64] {
    let mut bytes = [0; 64];
    let all = words.iter().copied().chain([checksum(words)]);
    for (place, word) in bytes.chunks_exact_mut(8).zip(all) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Returns the words that [`pack`] packed, or `None` if the checksum is wrong.
pub(crate) fn unpack<const N: usize>(bytes: &[u8; 64]) -> Option<[u64; N]> {
    let mut words =
        bytes.chunks_exact(8).map(|word| word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)));
    let mut found = [0; N];
    for (place, word) in found.iter_mut().zip(&mut words) {
        *place = word;
    }
    (words.next() == Some(checksum(&found))).then_some(found)
}

fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| mix(sum ^ word))
}
