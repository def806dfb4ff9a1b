//! Finds out which blocks of a log are live. All commands use these rules.
//!
//! | row | rule |
//! |---|---|
//! | an allocation at an address that is still live | the log lacks a free; the older block ends there |
//! | a free of an address that no row named | the block is older than the log, and live from its start |
//! | a free of an address that is already free | left out |
//! | a free with another size than the allocation | the allocation's size counts |

use std::hash::Hash;

use foldhash::{HashMap, HashSet};

use super::Flaws;

/// The most addresses of freed blocks that are stored. Beyond this number, a second free looks like the free
/// of a block from before the log.
const MOST_FREED: usize = 1 << 20;

/// The live blocks after each row of a log. `K` identifies a block, for example by its address. `B` is the
/// caller's data about a block.
///
/// ```
/// use millpond_engine::log::{Freed, LiveBlocks};
/// let mut live = LiveBlocks::default();
/// assert_eq!(live.allocate(0x100, 10, 2, "a"), None);
/// assert_eq!(live.allocate(0x100, 20, 3, "b"), Some((10, "a")));
/// assert_eq!(live.free(0x100, 20, 4), Freed::Block(20, "b"));
/// assert_eq!(live.free(0x100, 20, 5), Freed::Again);
/// assert_eq!(live.free(0x900, 64, 6), Freed::Before);
/// assert_eq!((live.flaws().bytes_before, live.flaws().repeated_frees), (64, 1));
/// ```
#[derive(Debug)]
pub struct LiveBlocks<K, B> {
    live: HashMap<K, (u64, B)>,
    freed: HashSet<K>,
    flaws: Flaws,
}

/// The block that a free ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a free has no fourth outcome")]
pub enum Freed<B> {
    /// A block that the log allocated, with the size of its allocation in bytes.
    Block(u64, B),
    /// A block that was live before the log began.
    Before,
    /// No block, because the block was already freed.
    Again,
}

impl<K, B> Default for LiveBlocks<K, B> {
    fn default() -> Self {
        Self { live: HashMap::default(), freed: HashSet::default(), flaws: Flaws::default() }
    }
}

impl<K: Copy + Eq + Hash, B> LiveBlocks<K, B> {
    /// Adds a block. If an older block has the same key, the log lacks the free of the older block. In this
    /// case, returns the older block.
    pub fn allocate(&mut self, place: K, bytes: u64, line: u64, block: B) -> Option<(u64, B)> {
        let older = self.live.insert(place, (bytes, block));
        if older.is_some() {
            self.flaws.duplicate_allocations += 1;
            self.flaws.first_duplicate_allocation_line.get_or_insert(line);
        }
        older
    }

    /// Frees the block with this key.
    pub fn free(&mut self, place: K, bytes: u64, line: u64) -> Freed<B> {
        let is_known = match self.freed.len() < MOST_FREED {
            true => !self.freed.insert(place),
            false => self.freed.contains(&place),
        };
        match self.live.remove(&place) {
            Some((allocated, block)) => {
                if allocated != bytes {
                    self.flaws.size_mismatches += 1;
                    self.flaws.first_size_mismatch_line.get_or_insert(line);
                }
                Freed::Block(allocated, block)
            }
            None if !is_known => {
                self.flaws.unknown_frees += 1;
                self.flaws.first_unknown_free_line.get_or_insert(line);
                self.flaws.bytes_before = self.flaws.bytes_before.saturating_add(bytes);
                Freed::Before
            }
            None => {
                self.flaws.repeated_frees += 1;
                self.flaws.first_repeated_free_line.get_or_insert(line);
                Freed::Again
            }
        }
    }

    /// Removes all blocks, because another log begins. Keeps the flaws that were found so far.
    pub fn restart(&mut self) {
        self.live.clear();
        self.freed.clear();
    }

    /// Returns the number of keys that are stored: the keys of live blocks and of freed blocks.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Returns whether no block is live.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Returns the number of places that are remembered: places of live blocks and of freed blocks.
    pub fn places(&self) -> usize {
        self.live.len() + self.freed.len()
    }

    /// Returns the flaws that were found so far.
    pub fn flaws(&self) -> &Flaws {
        &self.flaws
    }

    /// Returns the blocks that are still live, and the flaws.
    pub fn finish(self) -> (impl Iterator<Item = (u64, B)>, Flaws) {
        (self.live.into_values(), self.flaws)
    }
}
