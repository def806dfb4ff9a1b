//! The best-fit allocator with coalescing of TensorFlow and XLA as a layer: `bfc`.
//!
//! A request takes the smallest free chunk that fits, at the lowest address. The rest is split off if the
//! chunk has twice what is wanted, or 128 MiB more. Free neighbours are merged. It takes all its memory at
//! its first request, or in regions that double.

use std::collections::BTreeSet;

use millpond_core::driver::DriverResult;
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{ByteSize, DevicePtr, Driver, Error, StreamRef};
use rustc_hash::FxHashMap;

use super::resource::{Model, Peer};
use super::stream_order::StreamOrder;

const ALIGNMENT: u64 = 256;

/// What a chunk may have beyond a request without being split, if it has less than twice the request.
const MOST_BEYOND: u64 = 128 << 20;

/// The first region of an allocator that grows, in bytes.
const FIRST_REGION: u64 = 2 << 20;

/// Builds `bfc` from text.
pub(super) const ENTRY: LayerEntry = LayerEntry {
    name: "bfc",
    about: "a model of the best-fit allocator of TensorFlow and XLA, to compare with",
    params: &[
        ("limit", "the most that it takes (default 75%, as JAX)"),
        ("growth", "on: it takes regions as needed; off: all at once (default off)"),
    ],
    kind: LayerKind::ReadBase(|params| {
        let limit = params.get("limit")?.unwrap_or(ByteSize::PercentOfFree(75.0));
        let grows = match params.text("growth")? {
            Some("on") => true,
            None | Some("off") => false,
            Some(other) => {
                return Err(Error::invalid_stack(format!("`growth={other}` of `bfc`: it is on or off")));
            }
        };
        Ok(Box::new(move |driver, _| {
            let limit = limit.resolve(&**driver)? / ALIGNMENT * ALIGNMENT;
            let growth = if grows { ",growth=on" } else { "" };
            let text = format!("bfc:limit={}{growth}", ByteSize::Bytes(limit));
            let next_region = if grows { FIRST_REGION.min(limit) } else { limit };
            Ok(Peer::erased(driver, text, Bfc { limit, next_region, ..Bfc::default() }))
        }))
    }),
};

/// A chunk; its neighbours by address.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    bytes: u64,
    prev: Option<u64>,
    next: Option<u64>,
    is_free: bool,
}

#[derive(Debug, Default)]
struct Bfc {
    limit: u64,
    /// The size of the region that it takes next.
    next_region: u64,
    chunks: FxHashMap<u64, Chunk>,
    /// Free chunks by size and address.
    free: BTreeSet<(u64, u64)>,
    regions: Vec<u64>,
    reserved: u64,
    order: StreamOrder,
}

impl Bfc {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(size, address) = self.free.range((bytes, 0)..).next()?;
        self.free.remove(&(size, address));
        if size >= 2 * bytes || size - bytes >= MOST_BEYOND {
            let end = address + bytes;
            let next = self.chunks[&address].next;
            self.chunks.insert(end, Chunk { bytes: size - bytes, prev: Some(address), next, is_free: true });
            self.free.insert((size - bytes, end));
            self.change(next, |chunk| chunk.prev = Some(end));
            self.change(Some(address), |chunk| (chunk.bytes, chunk.next) = (bytes, Some(end)));
        }
        self.change(Some(address), |chunk| chunk.is_free = false);
        Some(address)
    }

    fn change(&mut self, at: Option<u64>, change: impl FnOnce(&mut Chunk)) {
        if let Some(chunk) = at.and_then(|at| self.chunks.get_mut(&at)) {
            change(chunk);
        }
    }

    /// Merges the second of two free neighbours into the first.
    fn merge(&mut self, first: u64, second: u64) {
        let (Some(one), Some(two)) = (self.chunks.get(&first).copied(), self.chunks.get(&second).copied())
        else {
            return;
        };
        if !(one.is_free && two.is_free) {
            return;
        }
        self.free.remove(&(one.bytes, first));
        self.free.remove(&(two.bytes, second));
        self.chunks.remove(&second);
        let bytes = one.bytes + two.bytes;
        self.change(Some(first), |chunk| (chunk.bytes, chunk.next) = (bytes, two.next));
        self.change(two.next, |chunk| chunk.prev = Some(first));
        self.free.insert((bytes, first));
    }

    /// Takes another region that has room for a request; returns whether it could.
    fn extend(&mut self, driver: &dyn Driver, bytes: u64) -> DriverResult<bool> {
        let left = (self.limit - self.reserved) / ALIGNMENT * ALIGNMENT;
        if bytes > left {
            return Ok(false);
        }
        let mut is_doubled = false;
        while bytes > self.next_region {
            self.next_region = self.next_region.saturating_mul(2);
            is_doubled = true;
        }
        let mut size = self.next_region.min(left);
        loop {
            match driver.mem_alloc(size) {
                Ok(ptr) => {
                    self.add_region(ptr.address(), size);
                    break;
                }
                Err(error) if !error.is_out_of_memory() => return Err(error),
                Err(_) => {
                    size = size / 10 * 9 / ALIGNMENT * ALIGNMENT;
                    if size < bytes {
                        return Ok(false);
                    }
                }
            }
        }
        if !is_doubled {
            self.next_region = self.next_region.saturating_mul(2);
        }
        Ok(true)
    }

    /// Adds a region.
    fn add_region(&mut self, address: u64, bytes: u64) {
        self.regions.push(address);
        self.reserved += bytes;
        self.chunks.insert(address, Chunk { bytes, prev: None, next: None, is_free: true });
        self.free.insert((bytes, address));
    }
}

impl Model for Bfc {
    fn allocate(&mut self, driver: &dyn Driver, bytes: u64, stream: StreamRef) -> DriverResult<Option<u64>> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        self.order.wait(driver, stream)?;
        if let Some(address) = self.take(bytes) {
            return Ok(Some(address));
        }
        Ok(if self.extend(driver, bytes)? { self.take(bytes) } else { None })
    }

    fn free(
        &mut self,
        driver: &dyn Driver,
        address: u64,
        _bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<()> {
        self.order.freed(driver, stream)?;
        let Some(chunk) = self.chunks.get_mut(&address) else { return Ok(()) };
        chunk.is_free = true;
        let Chunk { bytes, prev, next, .. } = *chunk;
        self.free.insert((bytes, address));
        if let Some(next) = next {
            self.merge(address, next);
        }
        if let Some(prev) = prev {
            self.merge(prev, address);
        }
        Ok(())
    }

    fn reserved_bytes(&self) -> u64 {
        self.reserved
    }

    fn free_blocks(&self) -> (u64, u64) {
        (self.free.last().map_or(0, |chunk| chunk.0), self.free.len() as u64)
    }

    fn release_all(&mut self, driver: &dyn Driver) {
        for region in &self.regions {
            // SAFETY: the region is ours; the driver waits for work that uses it.
            let _ = unsafe { driver.mem_free(DevicePtr::new(*region)) };
        }
        self.order.release(driver);
    }
}
