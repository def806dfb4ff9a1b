//! A stand-in for CuPy's memory pool on the simulated device.
//!
//! As in CuPy, sizes are multiples of 512 bytes, and each stream has its own free chunks, under its handle. A
//! request gets the smallest chunk that fits, and the rest of the chunk stays free. Free neighbours merge. If
//! the driver has no memory, the pool frees all allocations that are not split, and tries again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::thread::ThreadId;

use millpond_core::driver::{DriverResult, call};
use millpond_core::{DevicePtr, Driver, DriverHandle, Result, StreamRef};
use parking_lot::Mutex;

use crate::common::Bench;
use crate::cupy::{self, Pool};

const UNIT: u64 = 512;

/// The function that allocates, as `MemoryPool(malloc_managed)` replaces CuPy's own.
type Allocator = fn(&dyn Driver, u64) -> DriverResult<DevicePtr>;

#[derive(Debug)]
pub(crate) struct StandIn {
    /// The driver of the present context.
    driver: Mutex<DriverHandle>,
    allocator: Allocator,
    chunks: Mutex<Chunks>,
}

#[derive(Debug, Default)]
struct Chunks {
    /// All chunks by address.
    all: BTreeMap<u64, Chunk>,
    /// The free chunks of each stream, as size and address.
    arenas: HashMap<Arena, BTreeSet<(u64, u64)>>,
}

/// A stream's handle, and the thread if it is the per-thread stream.
type Arena = (u64, Option<ThreadId>);

#[derive(Clone, Copy, Debug)]
struct Chunk {
    bytes: u64,
    arena: Arena,
    is_free: bool,
    /// The driver's allocation around the chunk.
    base: u64,
    base_bytes: u64,
}

/// Makes a bench for a manager over a new pool.
pub(crate) fn bench(driver: DriverHandle) -> Bench {
    let pool = StandIn::new(&driver, |driver, bytes| driver.mem_alloc(bytes));
    cupy::bench(driver, pool)
}

impl StandIn {
    pub(crate) fn new(driver: &DriverHandle, allocator: Allocator) -> Arc<Self> {
        let driver = Mutex::new(Arc::clone(driver));
        Arc::new(Self { driver, allocator, chunks: Mutex::default() })
    }

    /// Returns the driver of the present context, as CUDA's runtime finds it.
    fn driver(&self) -> Result<DriverHandle> {
        let known = self.driver.lock().clone();
        if !known.was_reset() {
            return Ok(known);
        }
        let driver = millpond_driver::open(known.device())?;
        *self.driver.lock() = Arc::clone(&driver);
        Ok(driver)
    }
}

impl Pool for StandIn {
    fn malloc(&self, bytes: u64, stream: StreamRef) -> Result<Option<(u64, DevicePtr)>> {
        let bytes = bytes.next_multiple_of(UNIT);
        let thread = stream.is_per_thread().then(|| std::thread::current().id());
        let arena = (stream.handle(), thread);
        let found = self.chunks.lock().take(bytes, arena);
        if let Some(address) = found {
            return Ok(Some((address, DevicePtr::new(address))));
        }
        let driver = self.driver()?;
        let mut outcome = call(&*driver, |driver| (self.allocator)(driver, bytes));
        if outcome.as_ref().is_err_and(millpond_core::Error::is_out_of_memory) {
            self.free_all_blocks();
            outcome = call(&*driver, |driver| (self.allocator)(driver, bytes));
        }
        let base = match outcome {
            Ok(ptr) => ptr.address(),
            Err(error) if error.is_out_of_memory() => return Ok(None),
            Err(error) => return Err(error),
        };
        let chunk = Chunk { bytes, arena, is_free: false, base, base_bytes: bytes };
        self.chunks.lock().all.insert(base, chunk);
        Ok(Some((base, DevicePtr::new(base))))
    }

    fn free(&self, block: u64) {
        self.chunks.lock().give_back(block);
    }

    fn free_all_blocks(&self) {
        let Ok(driver) = self.driver() else { return };
        let taken = self.chunks.lock().take_unsplit(); // not in the loop, which would keep the lock
        for (address, chunk) in taken {
            // SAFETY: the chunk is the driver's whole allocation, and it was taken out of the free chunks.
            let freed = call(&*driver, |driver| unsafe { driver.mem_free(DevicePtr::new(address)) });
            if freed.is_err() {
                self.chunks.lock().put(address, chunk);
            }
        }
    }

    fn free_bytes(&self) -> u64 {
        self.chunks.lock().arenas.values().flatten().map(|(bytes, _)| bytes).sum()
    }

    fn total_bytes(&self) -> u64 {
        self.chunks.lock().all.values().map(|chunk| chunk.bytes).sum()
    }
}

impl Chunks {
    /// Takes the smallest free chunk that fits, and leaves the rest of it free.
    fn take(&mut self, bytes: u64, arena: Arena) -> Option<u64> {
        let free = self.arenas.get_mut(&arena)?;
        let (found, address) = *free.range((bytes, 0)..).next()?;
        free.remove(&(found, address));
        let chunk = self.all.get_mut(&address).expect("a free chunk is a chunk");
        (chunk.bytes, chunk.is_free) = (bytes, false);
        let rest = Chunk { bytes: found - bytes, ..*chunk };
        if rest.bytes > 0 {
            self.put(address + bytes, rest);
        }
        Some(address)
    }

    fn put(&mut self, address: u64, chunk: Chunk) {
        self.all.insert(address, Chunk { is_free: true, ..chunk });
        self.arenas.entry(chunk.arena).or_default().insert((chunk.bytes, address));
    }

    /// Frees a used chunk, and merges it with its free neighbours.
    fn give_back(&mut self, mut address: u64) {
        let mut chunk = self.all.remove(&address).expect("CuPy: cannot free out-of-pool memory");
        assert!(!chunk.is_free, "CuPy: cannot free out-of-pool memory");
        let behind = self.all.range(address..).next().map(|(at, next)| (*at, *next));
        let before = self.all.range(..address).next_back().map(|(at, previous)| (*at, *previous));
        for (at, neighbour) in [behind, before].into_iter().flatten() {
            if neighbour.is_free && neighbour.base == chunk.base {
                self.all.remove(&at);
                self.arenas.entry(neighbour.arena).or_default().remove(&(neighbour.bytes, at));
                address = address.min(at);
                chunk.bytes += neighbour.bytes;
            }
        }
        self.put(address, chunk);
    }

    /// Takes the free chunks that are a whole allocation of the driver.
    fn take_unsplit(&mut self) -> Vec<(u64, Chunk)> {
        let whole = |chunk: &Chunk| chunk.is_free && chunk.bytes == chunk.base_bytes;
        let taken: Vec<_> =
            self.all.iter().filter(|(_, chunk)| whole(chunk)).map(|(at, chunk)| (*at, *chunk)).collect();
        for (address, chunk) in &taken {
            self.all.remove(address);
            self.arenas.entry(chunk.arena).or_default().remove(&(chunk.bytes, *address));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_driver::sim::{SimConfig, SimDevice};

    #[test]
    fn chunks_are_cut_merged_and_returned_as_in_cupy() {
        let device = SimDevice::new(SimConfig::with_capacity(32 << 20));
        let driver: DriverHandle = device.clone();
        let pool = StandIn::new(&driver, |driver, bytes| driver.mem_alloc(bytes));
        let malloc = |bytes| pool.malloc(bytes, StreamRef::LEGACY).unwrap().map(|(block, _)| block);
        let whole = malloc(4096).unwrap();
        assert_eq!((pool.total_bytes(), pool.free_bytes()), (4096, 0));
        pool.free(whole);
        let others = pool.malloc(512, StreamRef::PER_THREAD).unwrap().unwrap().0;
        assert!(!(whole..whole + 4096).contains(&others), "another stream's memory");
        let parts = [513, 1].map(|bytes| malloc(bytes).unwrap());
        assert_eq!((parts, pool.free_bytes()), ([whole, whole + 1024], 4096 - 1536));
        pool.free_all_blocks();
        assert_eq!(device.live_allocations(), 2, "a split allocation stays");
        // The smallest chunk that fits: the hole between two parts, and not the rest behind them.
        pool.free(parts[0]);
        assert_eq!(malloc(1000), Some(whole));
        pool.free(whole);
        pool.free(parts[1]);
        assert_eq!((device.live_allocations(), pool.free_bytes()), (2, 4096));
        assert!(malloc(32 << 20).is_none());
        assert_eq!((device.live_allocations(), pool.total_bytes()), (1, 512), "the failure freed the rest");
    }
}
