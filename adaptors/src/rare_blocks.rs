//! The few blocks that an adaptor treats differently from the others.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{DevicePtr, Layout, ResourceStatistics, StreamRef};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// A table of blocks that costs one load as long as it is empty. It refuses to remove a block with a wrong
/// size.
pub(crate) struct RareBlocks<T> {
    blocks: Mutex<FxHashMap<DevicePtr, Entry<T>>>,
    /// The number of blocks. A thread that frees a block learned its address after the block was counted, so
    /// it does not read an older zero.
    len: AtomicUsize,
    misuses: AtomicU64,
}

#[derive(Debug)]
struct Entry<T> {
    /// The requested size in bytes.
    bytes: u64,
    value: T,
}

impl<T> fmt::Debug for RareBlocks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RareBlocks").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The result of [`RareBlocks::remove`].
#[derive(Debug)]
pub(crate) enum Removed<T> {
    /// The block is not in the table.
    NotHere,
    /// The block was in the table.
    Here(T),
    /// The block has another size. It stays in the table, and the misuse was reported.
    Refused,
}

impl<T> RareBlocks<T> {
    pub(crate) fn new() -> Self {
        Self { blocks: Mutex::default(), len: AtomicUsize::new(0), misuses: AtomicU64::new(0) }
    }

    /// Adds a block before the caller gets it.
    pub(crate) fn insert(&self, ptr: DevicePtr, bytes: u64, value: T) {
        let mut blocks = self.blocks.lock();
        blocks.insert(ptr, Entry { bytes, value });
        self.len.store(blocks.len(), Ordering::Relaxed);
    }

    /// Removes a block before it is freed, so that its address cannot come again meanwhile. `stack` names the
    /// resource in the report of a wrong size.
    #[inline]
    pub(crate) fn remove(
        &self,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
        stack: &dyn Display,
    ) -> Removed<T> {
        match self.len.load(Ordering::Relaxed) {
            0 => Removed::NotHere,
            _ => self.remove_found(ptr, layout, stream, stack),
        }
    }

    #[cold]
    fn remove_found(
        &self,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
        stack: &dyn Display,
    ) -> Removed<T> {
        let mut blocks = self.blocks.lock();
        let allocated_bytes = match blocks.get(&ptr) {
            None => return Removed::NotHere,
            Some(entry) => entry.bytes,
        };
        if allocated_bytes == layout.bytes() {
            let entry = blocks.remove(&ptr);
            self.len.store(blocks.len(), Ordering::Relaxed);
            return entry.map_or(Removed::NotHere, |entry| Removed::Here(entry.value));
        }
        drop(blocks);
        self.misuses.fetch_add(1, Ordering::Relaxed);
        let kind = MisuseKind::WrongSize { allocated_bytes };
        misuse::report(&Misuse::new(kind, ptr, layout.bytes(), stream, stack));
        Removed::Refused
    }

    /// Returns the number of blocks in the table.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Adds the refusals of this table to the statistics of the resources below.
    pub(crate) fn add_misuses(&self, known: Option<ResourceStatistics>) -> Option<ResourceStatistics> {
        match self.misuses.load(Ordering::Relaxed) {
            0 => known,
            misuses => Some(known.unwrap_or_default().with_more_misuses(misuses)),
        }
    }
}
