//! RMM's pool memory resource as a layer: `rmm_pool`.
//!
//! Each stream has its own list of free blocks. A request takes the smallest block that fits, at the lowest
//! address, and splits it exactly. If the list has no such block, the request takes a block of another
//! stream, and waits for that stream's last free. If no stream has one, the other lists are merged into the
//! stream's own list, one by one. If that does not help, the pool grows. Without a maximum size, it doubles.
//! With a maximum, it grows by half of the remaining size. If the driver refuses, it grows by less.

use std::collections::{BTreeMap, BTreeSet};

use millpond_core::driver::{DriverResult, Event, EventFlags};
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{AnyResource, ByteSize, DevicePtr, Driver, DriverHandle, StreamId, StreamRef};
use rustc_hash::FxHashMap;

use super::resource::{Model, Peer};

const ALIGNMENT: u64 = 256;

/// Builds `rmm_pool` from text.
pub(super) const ENTRY: LayerEntry = LayerEntry {
    name: "rmm_pool",
    about: "a model of RMM's pool memory resource, for comparison",
    params: &[
        ("initial", "the memory that the pool reserves at first, as in 1GiB or 50% (default 1MiB)"),
        ("max", "the most memory that the pool reserves (default: no limit)"),
    ],
    kind: LayerKind::ReadBase(|params| {
        let initial = params.get("initial")?.unwrap_or(ByteSize::Bytes(1 << 20));
        let max: Option<ByteSize> = params.get("max")?;
        Ok(Box::new(move |driver, _| build(initial, max, driver)))
    }),
};

fn build(
    initial: ByteSize,
    max: Option<ByteSize>,
    driver: &DriverHandle,
) -> millpond_core::Result<AnyResource> {
    let whole = |size: ByteSize| size.resolve(&**driver).map(|bytes| bytes / ALIGNMENT * ALIGNMENT);
    let (initial, max) = (whole(initial)?, max.map(whole).transpose()?);
    if let Some(max) = max.filter(|max| *max < initial) {
        return Err(millpond_core::Error::invalid_stack(format!(
            "`initial` of `rmm_pool` is {}, above its `max`, {}",
            ByteSize::Bytes(initial),
            ByteSize::Bytes(max)
        )));
    }
    let mut text = format!("rmm_pool:initial={}", ByteSize::Bytes(initial));
    if let Some(max) = max {
        text += &format!(",max={}", ByteSize::Bytes(max));
    }
    let mut pool = RmmPool { max, ..RmmPool::default() };
    if initial > 0 {
        let taken = pool.take(&**driver, initial).map_err(millpond_core::Error::from)?;
        let list = pool.list(&**driver, StreamRef::LEGACY).map_err(millpond_core::Error::from)?;
        let address = taken.ok_or_else(|| {
            millpond_core::Error::invalid_argument(format!(
                "the device has too little free memory for `{text}`, which reserves {initial} bytes at first"
            ))
        })?;
        pool.insert(list, address, initial);
    }
    Ok(Peer::erased(driver, text, pool))
}

/// The free blocks of a stream.
#[derive(Debug)]
struct List {
    stream: StreamId,
    /// An event that is recorded after the stream's last free.
    event: Event,
    /// Whether the event was recorded. Fresh memory from the driver is ordered for all streams.
    is_recorded: bool,
    by_address: BTreeMap<u64, u64>,
    /// The free blocks by size and address.
    by_size: BTreeSet<(u64, u64)>,
}

#[derive(Debug, Default)]
struct RmmPool {
    max: Option<u64>,
    /// The lists in the order in which their streams first appeared.
    lists: Vec<List>,
    /// The starts of ranges from the driver. Blocks never merge across such a start.
    taken: FxHashMap<u64, u64>,
    reserved: u64,
}

impl RmmPool {
    fn list(&mut self, driver: &dyn Driver, stream: StreamRef) -> DriverResult<usize> {
        let id = stream.id();
        if let Some(at) = self.lists.iter().position(|list| list.stream == id) {
            return Ok(at);
        }
        let event = driver.event_create(EventFlags::default())?;
        let (by_address, by_size) = (BTreeMap::new(), BTreeSet::new());
        self.lists.push(List { stream: id, event, is_recorded: false, by_address, by_size });
        Ok(self.lists.len() - 1)
    }

    /// Adds a free block to a list. Merges it with its neighbours in the list.
    fn insert(&mut self, list: usize, address: u64, mut bytes: u64) {
        let list = &mut self.lists[list];
        let end = address + bytes;
        if let Some(&size) = list.by_address.get(&end)
            && !self.taken.contains_key(&end)
        {
            list.remove(end, size);
            bytes += size;
        }
        if let Some((&start, size)) = list.by_address.range_mut(..address).next_back()
            && start + *size == address
            && !self.taken.contains_key(&address)
        {
            list.by_size.remove(&(*size, start));
            *size += bytes;
            list.by_size.insert((*size, start));
        } else {
            list.put(address, bytes);
        }
    }

    /// Takes the best block of a list for a request, and leaves the rest of the block in the list.
    fn take_from(&mut self, list: usize, bytes: u64) -> Option<u64> {
        let list = &mut self.lists[list];
        let &(size, address) = list.by_size.range((bytes, 0)..).next()?;
        list.remove(address, size);
        if size > bytes {
            // The block had no free neighbours, so its rest has none.
            list.put(address + bytes, size - bytes);
        }
        Some(address)
    }

    /// Reserves memory from the driver.
    fn take(&mut self, driver: &dyn Driver, bytes: u64) -> DriverResult<Option<u64>> {
        match driver.mem_alloc(bytes) {
            Ok(ptr) => {
                self.taken.insert(ptr.address(), bytes);
                self.reserved += bytes;
                Ok(Some(ptr.address()))
            }
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Grows the pool for a request.
    fn grow(&mut self, driver: &dyn Driver, list: usize, bytes: u64) -> DriverResult<Option<u64>> {
        let mut size = match self.max {
            Some(max) => {
                let left = max.saturating_sub(self.reserved);
                if bytes > left {
                    return Ok(None);
                }
                bytes.max(left / 2)
            }
            None => bytes.max(self.reserved),
        };
        loop {
            size = size.next_multiple_of(ALIGNMENT);
            if let Some(address) = self.take(driver, size)? {
                if size > bytes {
                    self.insert(list, address + bytes, size - bytes);
                }
                return Ok(Some(address));
            }
            if size == bytes {
                return Ok(None);
            }
            size = bytes.max(size / 2);
        }
    }
}

impl List {
    fn record(&mut self, driver: &dyn Driver, stream: StreamRef) -> DriverResult<()> {
        self.is_recorded = true;
        driver.event_record(self.event, stream)
    }

    /// Makes another stream wait for the memory that was freed on this stream.
    fn make_wait(&self, driver: &dyn Driver, stream: StreamRef) -> DriverResult<()> {
        if self.is_recorded { driver.stream_wait_event(stream, self.event) } else { Ok(()) }
    }

    fn put(&mut self, address: u64, bytes: u64) {
        self.by_address.insert(address, bytes);
        self.by_size.insert((bytes, address));
    }

    fn remove(&mut self, address: u64, bytes: u64) {
        self.by_address.remove(&address);
        self.by_size.remove(&(bytes, address));
    }
}

impl Model for RmmPool {
    fn allocate(&mut self, driver: &dyn Driver, bytes: u64, stream: StreamRef) -> DriverResult<Option<u64>> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let own = self.list(driver, stream)?;
        if let Some(address) = self.take_from(own, bytes) {
            return Ok(Some(address));
        }
        for other in (0..self.lists.len()).filter(|other| *other != own) {
            if let Some(address) = self.take_from(other, bytes) {
                self.lists[other].make_wait(driver, stream)?;
                return Ok(Some(address));
            }
        }
        for other in 0..self.lists.len() {
            if other == own || self.lists[other].by_address.is_empty() {
                continue;
            }
            self.lists[other].make_wait(driver, stream)?;
            self.lists[other].by_size.clear();
            for (address, size) in std::mem::take(&mut self.lists[other].by_address) {
                self.insert(own, address, size);
            }
            // If a stream takes a merged block from this list, it waits for this event.
            self.lists[own].record(driver, stream)?;
            if let Some(address) = self.take_from(own, bytes) {
                return Ok(Some(address));
            }
        }
        self.grow(driver, own, bytes)
    }

    fn free(&mut self, driver: &dyn Driver, address: u64, bytes: u64, stream: StreamRef) -> DriverResult<()> {
        let list = self.list(driver, stream)?;
        self.lists[list].record(driver, stream)?;
        self.insert(list, address, bytes.next_multiple_of(ALIGNMENT));
        Ok(())
    }

    fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    fn free_blocks(&self) -> (u64, u64) {
        let largest = self.lists.iter().filter_map(|list| list.by_size.last()).map(|block| block.0).max();
        (largest.unwrap_or(0), self.lists.iter().map(|list| list.by_size.len() as u64).sum())
    }

    fn release_all(&mut self, driver: &dyn Driver) {
        for address in self.taken.keys() {
            // SAFETY: the memory is ours; the driver waits for work that uses it.
            let _ = unsafe { driver.mem_free(DevicePtr::new(*address)) };
        }
        for list in &self.lists {
            // SAFETY: the event is ours, and is not used again.
            let _ = unsafe { driver.event_destroy(list.event) };
        }
    }
}
