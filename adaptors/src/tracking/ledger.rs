use std::backtrace::Backtrace;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::misuse::MisuseKind;
use millpond_core::{DevicePtr, StreamRef};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// An allocation that was not given back yet.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Where it starts.
    pub ptr: DevicePtr,
    /// Its size in bytes, as asked for.
    pub bytes: u64,
    /// The stream that it was allocated on.
    pub stream: StreamRef,
    /// The number of the allocation, from 0, in the order in which the upstream's answers were noted.
    pub sequence: u64,
    /// Where it was allocated, with [`Stacks::On`](super::Stacks::On).
    pub backtrace: Option<Arc<Backtrace>>,
}

/// One line, and the backtrace below it if there is one.
impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ptr, bytes, stream, sequence, backtrace } = self;
        write!(f, "{ptr}: {bytes} B, stream {stream}, allocation {sequence}")?;
        backtrace.as_ref().map_or(Ok(()), |backtrace| write!(f, ", allocated at\n{backtrace}"))
    }
}

/// A power of two, well above the number of threads that allocate at the same moment.
const SHARDS: usize = 64;

/// All outstanding allocations by address, in shards with a lock each.
pub(super) struct Ledger {
    shards: Box<[Shard]>,
    next_sequence: AtomicU64,
}

/// Apart from its neighbours' cache lines, which the hardware fetches in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<Blocks>);

#[derive(Default)]
struct Blocks {
    by_address: FxHashMap<u64, Record>,
    bytes: u64,
}

/// An allocation without its address.
struct Record {
    bytes: u64,
    stream: StreamRef,
    sequence: u64,
    backtrace: Option<Arc<Backtrace>>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect(), next_sequence: AtomicU64::new(0) }
    }

    /// Notes an allocation; returns one that was noted at this address before, which must be gone.
    pub(super) fn insert(
        &self,
        ptr: DevicePtr,
        bytes: u64,
        stream: StreamRef,
        backtrace: Option<Arc<Backtrace>>,
    ) -> Option<Allocation> {
        let sequence = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        let record = Record { bytes, stream, sequence, backtrace };
        let mut blocks = self.shard(ptr).lock();
        let replaced = blocks.by_address.insert(ptr.address(), record);
        let gone = replaced.as_ref().map_or(0, |record| record.bytes);
        blocks.bytes = blocks.bytes.saturating_add(bytes).saturating_sub(gone);
        replaced.map(|record| record.at(ptr))
    }

    /// Forgets an allocation if it is there and has that size.
    pub(super) fn remove(&self, ptr: DevicePtr, bytes: u64) -> Result<(), MisuseKind> {
        let mut blocks = self.shard(ptr).lock();
        let Entry::Occupied(entry) = blocks.by_address.entry(ptr.address()) else {
            return Err(MisuseKind::ForeignPointer);
        };
        let allocated_bytes = entry.get().bytes;
        if allocated_bytes != bytes {
            return Err(MisuseKind::WrongSize { allocated_bytes });
        }
        let record = entry.remove();
        blocks.bytes = blocks.bytes.saturating_sub(bytes);
        drop(blocks);
        // A backtrace takes its time to go.
        drop(record);
        Ok(())
    }

    /// All of them, oldest first.
    pub(super) fn outstanding(&self) -> Vec<Allocation> {
        let mut all = Vec::new();
        for Shard(blocks) in &self.shards {
            let blocks = blocks.lock();
            all.extend(blocks.by_address.iter().map(|(&ptr, record)| record.clone_at(DevicePtr::new(ptr))));
        }
        all.sort_unstable_by_key(|allocation| allocation.sequence);
        all
    }

    pub(super) fn bytes(&self) -> u64 {
        self.shards.iter().map(|Shard(blocks)| blocks.lock().bytes).fold(0, u64::saturating_add)
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|Shard(blocks)| blocks.lock().by_address.len()).sum()
    }

    /// Fibonacci hashing of the address, whose low bits are the same for all blocks.
    fn shard(&self, ptr: DevicePtr) -> &Mutex<Blocks> {
        let hash = (ptr.address() >> 8).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(hash >> (u64::BITS - SHARDS.ilog2())) as usize].0
    }
}

impl Record {
    fn at(self, ptr: DevicePtr) -> Allocation {
        let Self { bytes, stream, sequence, backtrace } = self;
        Allocation { ptr, bytes, stream, sequence, backtrace }
    }

    fn clone_at(&self, ptr: DevicePtr) -> Allocation {
        let &Self { bytes, stream, sequence, ref backtrace } = self;
        Allocation { ptr, bytes, stream, sequence, backtrace: backtrace.clone() }
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
