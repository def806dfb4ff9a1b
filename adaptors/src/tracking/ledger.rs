//! The outstanding allocations, in shards with one lock each.

use std::backtrace::Backtrace;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::misuse::MisuseKind;
use millpond_core::{DevicePtr, StreamRef};
use rustc_hash::FxHashMap;

use super::hash::{SHARDS, shard_of};
use super::table::{Block, Details, Table, Unknown};
use crate::shards::Padded;

/// An allocation that has not been freed yet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Allocation {
    /// The address of the block.
    pub ptr: DevicePtr,
    /// The requested size in bytes.
    pub bytes: u64,
    /// The stream of the allocation.
    pub stream: StreamRef,
    /// The number of the allocation. The adaptor counts the allocations that it records, starting from 0.
    pub sequence: u64,
    /// The backtrace of the allocation; `None` unless [`Stacks::On`](super::Stacks::On) is set.
    pub backtrace: Option<Arc<Backtrace>>,
    /// The [tag](super::tag) that the thread had set when it allocated the block.
    pub tag: Option<Arc<str>>,
}

/// The part of the program that made an allocation.
#[derive(Clone, Default)]
pub(super) struct Origin {
    pub(super) backtrace: Option<Arc<Backtrace>>,
    pub(super) tag: Option<Arc<str>>,
}

/// Prints one line, and the backtrace below it if there is one.
impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ptr, bytes, stream, sequence, backtrace, tag } = self;
        write!(f, "{ptr}: {bytes} B, stream {stream}, allocation {sequence}")?;
        if let Some(tag) = tag {
            write!(f, ", for `{tag}`")?;
        }
        backtrace.as_ref().map_or(Ok(()), |backtrace| write!(f, ", allocated at\n{backtrace}"))
    }
}

/// All outstanding allocations by address, in shards with one lock each.
pub(super) struct Ledger {
    shards: Box<[Padded<Shard>]>,
    next_sequence: AtomicU64,
    /// The stack as text, for reports.
    stack: String,
}

struct Shard {
    table: Table,
    /// The last allocation. It is written to the table at the next use of the shard, so that its cache line
    /// can arrive meanwhile. Address 0 if there is none.
    latest: (u64, Block),
    /// The bytes of all allocations of the shard.
    bytes: u64,
    /// The known origins, by address: with [`Stacks::On`](super::Stacks::On), or with a tag.
    origins: FxHashMap<u64, Origin>,
}

impl Ledger {
    pub(super) fn new(stack: String) -> Self {
        let shards = (0..SHARDS).map(|_| Padded::default()).collect();
        Self { shards, next_sequence: AtomicU64::new(0), stack }
    }

    /// Records an allocation. An earlier allocation at this address must have been lost.
    #[inline]
    pub(super) fn insert(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef, origin: Option<Origin>) {
        let sequence = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.shard(ptr).lock();
        let mut lost = shard.settle();
        shard.latest = (ptr.address(), Block { bytes, details: Details { stream, sequence } });
        shard.table.prefetch(ptr.address());
        shard.bytes = shard.bytes.saturating_add(bytes);
        if let Some(origin) = origin {
            // The map of origins is written, too, so the insert is not deferred.
            let Origin { backtrace, tag } = shard.origins.insert(ptr.address(), origin).unwrap_or_default();
            lost = shard.settle().map(|lost| Allocation { backtrace, tag, ..lost });
        }
        drop(shard);
        self.report(lost);
    }

    /// Removes an allocation if it exists and has this size.
    #[inline]
    pub(super) fn remove(&self, ptr: DevicePtr, bytes: u64) -> Result<(), MisuseKind> {
        let mut shard = self.shard(ptr).lock();
        let lost = shard.settle();
        let removed = shard.table.remove(ptr.address(), bytes);
        let mut origin = None;
        if removed.is_ok() {
            shard.bytes = shard.bytes.saturating_sub(bytes);
            if !shard.origins.is_empty() {
                origin = shard.origins.remove(&ptr.address());
            }
        }
        drop(shard);
        // Dropped after the lock is released, because it takes long.
        drop(origin);
        self.report(lost);
        removed.map_err(|unknown| match unknown {
            Unknown::Address => MisuseKind::ForeignPointer,
            Unknown::Size(allocated_bytes) => MisuseKind::WrongSize { allocated_bytes },
        })
    }

    /// Returns all allocations, oldest first.
    pub(super) fn outstanding(&self) -> Vec<Allocation> {
        let mut all = Vec::new();
        self.each(|shard| all.extend(shard.table.iter().map(|(address, block)| shard.at(address, block))));
        all.sort_unstable_by_key(|allocation| allocation.sequence);
        all
    }

    /// Returns the allocation at an address.
    pub(super) fn find(&self, ptr: DevicePtr) -> Option<Allocation> {
        let mut shard = self.shard(ptr).lock();
        let lost = shard.settle();
        let found = shard.table.iter().find(|(address, _)| *address == ptr.address());
        let found = found.map(|(address, block)| shard.at(address, block));
        drop(shard);
        self.report(lost);
        found
    }

    pub(super) fn bytes(&self) -> u64 {
        let mut bytes: u64 = 0;
        self.each(|shard| bytes = bytes.saturating_add(shard.bytes));
        bytes
    }

    pub(super) fn len(&self) -> usize {
        let mut allocations = 0;
        self.each(|shard| allocations += shard.table.len());
        allocations
    }

    pub(super) fn stack(&self) -> &str {
        &self.stack
    }

    fn each(&self, mut visit: impl FnMut(&Shard)) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let lost = shard.settle();
            visit(&shard);
            drop(shard);
            self.report(lost);
        }
    }

    #[inline]
    fn shard(&self, ptr: DevicePtr) -> &Padded<Shard> {
        &self.shards[shard_of(ptr.address())]
    }

    #[inline]
    fn report(&self, lost: Option<Allocation>) {
        if let Some(lost) = lost {
            self.warn(&lost);
        }
    }

    #[cold]
    fn warn(&self, lost: &Allocation) {
        tracing::warn!(
            target: "millpond::tracking",
            stack = self.stack,
            "{} was allocated again, but this resource saw no free of the block: {lost}; free blocks on the \
             resource that allocated them",
            lost.ptr
        );
    }
}

impl Shard {
    /// Writes the latest allocation to the table. Returns an earlier allocation at its address, which must
    /// have been lost.
    #[inline]
    fn settle(&mut self) -> Option<Allocation> {
        let (address, block) = self.latest;
        if address == 0 {
            return None;
        }
        self.latest.0 = 0;
        let lost = self.table.insert(address, block)?;
        self.bytes = self.bytes.saturating_sub(lost.bytes);
        Some(Allocation { backtrace: None, tag: None, ..self.at(address, lost) })
    }

    fn at(&self, address: u64, Block { bytes, details }: Block) -> Allocation {
        let Details { stream, sequence } = details;
        let Origin { backtrace, tag } = self.origins.get(&address).cloned().unwrap_or_default();
        Allocation { ptr: DevicePtr::new(address), bytes, stream, sequence, backtrace, tag }
    }
}

impl Default for Shard {
    fn default() -> Self {
        let nothing = Block { bytes: 0, details: Details { stream: StreamRef::LEGACY, sequence: 0 } };
        Self { table: Table::new(), latest: (0, nothing), bytes: 0, origins: FxHashMap::default() }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("allocations", &self.len())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
