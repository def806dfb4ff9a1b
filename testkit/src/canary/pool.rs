//! A small stream-ordered pool that makes a chosen mistake.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use millpond_core::driver::{DriverResult, Event, EventFlags};
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{
    ALLOCATION_ALIGNMENT, Accessibility, AnyResource, DeviceMemoryResource, DevicePtr, DriverHandle, Error,
    Layout, MemoryInfo, ResourceStatistics, Result, StreamRef, Traits, align_up, is_same,
};
use parking_lot::Mutex;

use super::Wrong;
use super::free_list::FreeList;

/// The fewest bytes that the pool takes from the driver at a time.
const REGION_BYTES: u64 = 1 << 20;

/// A small stream-ordered pool that makes one [mistake](Wrong), or none.
#[derive(Debug)]
pub struct CanaryPool {
    driver: DriverHandle,
    wrong: Option<Wrong>,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    /// The free lists, by stream identity.
    lists: BTreeMap<u64, FreeList>,
    /// The start and size of each of the driver's allocations.
    regions: BTreeMap<u64, u64>,
    live: BTreeMap<u64, Live>,
    shared_event: Option<Event>,
    spare_events: Vec<Event>,
    statistics: ResourceStatistics,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    bytes: u64,
    layout: Layout,
    stream: StreamRef,
}

impl CanaryPool {
    /// Builds the pool as a handle; `wrong` is the mistake that it makes.
    ///
    /// # Errors
    /// Never fails; the signature matches other builders.
    pub fn build(driver: &DriverHandle, wrong: Option<Wrong>) -> Result<AnyResource> {
        Ok(Arc::new(Self { driver: Arc::clone(driver), wrong, state: Mutex::default() }))
    }

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    fn key(&self, stream: StreamRef) -> u64 {
        if self.is(Wrong::KeyedByHandle) { stream.handle() } else { stream.id().get() }
    }

    fn list<'a>(&self, state: &'a mut State, stream: StreamRef) -> DriverResult<&'a mut FreeList> {
        let key = self.key(stream);
        let event = match state.lists.contains_key(&key) {
            true => Event(0),
            false => self.event(state)?,
        };
        Ok(state.lists.entry(key).or_insert_with(|| FreeList::new(stream, event)))
    }

    fn event(&self, state: &mut State) -> DriverResult<Event> {
        let known =
            if self.is(Wrong::OneEventForAll) { state.shared_event } else { state.spare_events.pop() };
        let event = known.map_or_else(|| self.driver.event_create(EventFlags::default()), Ok)?;
        state.shared_event = Some(event);
        Ok(event)
    }

    /// Makes the list's event cover all work given to the stream so far.
    fn record(&self, list: &mut FreeList, stream: StreamRef) -> DriverResult<()> {
        if !(self.is(Wrong::CompletedForever) && list.recorded) {
            list.completed = false;
        }
        list.recorded = true;
        self.driver.event_record(list.event, stream)
    }

    /// Makes `stream` wait for the list's event, unless the event is known to be done.
    fn wait(&self, list: &mut FreeList, stream: StreamRef) -> DriverResult<()> {
        if self.is(Wrong::RecordsLazily) {
            self.driver.event_record(list.event, list.stream)?;
        }
        if !list.completed {
            list.completed = self.driver.event_query(list.event)?;
        }
        if list.completed {
            return Ok(());
        }
        self.driver.stream_wait_event(stream, list.event)
    }

    fn insert(&self, regions: &BTreeMap<u64, u64>, list: &mut FreeList, block: (u64, u64)) {
        let excess = if self.is(Wrong::CoalescesTooFar) { ALLOCATION_ALIGNMENT } else { 0 };
        list.insert(block, |address| regions.contains_key(&address), excess);
    }

    fn find(
        &self,
        state: &mut State,
        bytes: u64,
        alignment: u64,
        stream: StreamRef,
    ) -> DriverResult<Option<u64>> {
        let own = self.key(stream);
        if let Some(start) = self.take(state, own, own, bytes, alignment) {
            return Ok(Some(start));
        }
        if self.is(Wrong::GivesUpEarly) {
            return Ok(None);
        }
        let donor = state.lists.iter().find(|&(&key, list)| key != own && list.fits(bytes, alignment));
        if let Some(donor) = donor.map(|(&key, _)| key) {
            self.order_after(state, donor, stream)?;
            return Ok(self.take(state, donor, own, bytes, alignment));
        }
        self.merge(state, stream)?;
        Ok(self.take(state, own, own, bytes, alignment))
    }

    /// Orders `stream` after the frees in a list.
    fn order_after(&self, state: &mut State, donor: u64, stream: StreamRef) -> DriverResult<()> {
        if self.is(Wrong::StealWithoutWait) {
            return Ok(());
        }
        if self.is(Wrong::WaitsBackwards) {
            let mine = self.list(state, stream)?;
            self.record(mine, stream)?;
            let event = mine.event;
            let Some(list) = state.lists.get(&donor) else { return Ok(()) };
            return self.driver.stream_wait_event(list.stream, event);
        }
        match state.lists.get_mut(&donor) {
            Some(list) => self.wait(list, stream),
            None => Ok(()),
        }
    }

    /// Cuts a block from a list; `own` is the key of the stream that gets it.
    fn take(&self, state: &mut State, from: u64, own: u64, bytes: u64, alignment: u64) -> Option<u64> {
        let State { lists, regions, .. } = state;
        let cut = lists.get_mut(&from)?.take(bytes, alignment)?;
        let to = if self.is(Wrong::RemainderToThief) && lists.contains_key(&own) { own } else { from };
        let list = lists.get_mut(&to)?;
        for rest in cut.rest {
            self.insert(regions, list, rest);
        }
        let exact = cut.rest.iter().all(|(_, size)| *size == 0);
        if self.is(Wrong::HandsOutTwice) && from != own && exact {
            self.insert(regions, list, (cut.start, bytes));
        }
        Some(cut.start)
    }

    /// Moves every other stream's free blocks into the list of `stream`.
    fn merge(&self, state: &mut State, stream: StreamRef) -> DriverResult<()> {
        let own = self.key(stream);
        self.list(state, stream)?;
        let others: Vec<u64> = state.lists.keys().copied().filter(|&key| key != own).collect();
        for other in others {
            self.order_after(state, other, stream)?;
            let Some(mut donor) = state.lists.remove(&other) else { continue };
            state.spare_events.push(donor.event);
            let State { lists, regions, .. } = state;
            let Some(mine) = lists.get_mut(&own) else { continue };
            for block in donor.take_all() {
                self.insert(regions, mine, block);
            }
            if !self.is(Wrong::MergeWithoutRecord) {
                self.record(mine, stream)?;
            }
        }
        Ok(())
    }

    /// Takes a region from the driver into the list of `stream`; returns `false` if no memory is left.
    fn grow(&self, state: &mut State, bytes: u64, stream: StreamRef) -> DriverResult<bool> {
        let size = bytes.max(REGION_BYTES);
        let start = match self.driver.mem_alloc_async(size, stream) {
            Ok(ptr) => ptr.address(),
            Err(error) if error.is_out_of_memory() => return Ok(false),
            Err(error) => return Err(error),
        };
        state.regions.insert(start, size);
        let reserved = &mut state.statistics.bytes_reserved;
        *reserved += size;
        state.statistics.peak_bytes_reserved = state.statistics.peak_bytes_reserved.max(*reserved);
        self.list(state, stream)?;
        let State { lists, regions, .. } = state;
        match lists.get_mut(&self.key(stream)) {
            Some(list) => {
                self.insert(regions, list, (start, size));
                self.record(list, stream).map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// Waits for the device and merges all free blocks into one list, which every stream may use.
    fn collapse(&self, state: &mut State) -> DriverResult<()> {
        self.driver.synchronize()?;
        self.list(state, StreamRef::LEGACY)?;
        let all: Vec<_> = state.lists.values_mut().map(FreeList::take_all).collect();
        let State { lists, regions, .. } = state;
        let Some(list) = lists.get_mut(&self.key(StreamRef::LEGACY)) else { return Ok(()) };
        for block in all.into_iter().flatten() {
            self.insert(regions, list, block);
        }
        list.completed = true;
        Ok(())
    }

    /// Releases regions that are entirely free, until at most `keep_bytes` are free.
    fn release(&self, state: &mut State, keep_bytes: u64) -> DriverResult<u64> {
        self.collapse(state)?;
        let mut released = 0;
        let State { lists, regions, statistics, .. } = state;
        let Some(list) = lists.get_mut(&self.key(StreamRef::LEGACY)) else { return Ok(0) };
        let free = |list: &FreeList| list.blocks().values().sum::<u64>();
        for (start, size) in regions.clone() {
            let whole = list.blocks().get(&start) == Some(&size) || self.is(Wrong::TrimsLent);
            if !whole || free(list) <= keep_bytes {
                continue;
            }
            // SAFETY: the region came from the driver, none of its blocks is handed out, and the device is
            // idle.
            unsafe { self.driver.mem_free_async(DevicePtr::new(start), StreamRef::LEGACY)? };
            list.remove(start);
            regions.remove(&start);
            statistics.bytes_reserved -= size;
            released += size;
        }
        Ok(released)
    }

    fn try_allocate(
        &self,
        state: &mut State,
        layout: Layout,
        bytes: u64,
        stream: StreamRef,
    ) -> DriverResult<Option<u64>> {
        let granule = self.granule();
        let alignment = match layout.alignment() {
            ALLOCATION_ALIGNMENT => granule,
            _ if self.is(Wrong::IgnoresAlignment) => granule,
            larger => larger,
        };
        let Some(with_slack) = bytes.checked_add(alignment - granule) else { return Ok(None) };
        let mut found = self.find(state, bytes, alignment, stream)?;
        if found.is_none() && self.grow(state, with_slack, stream)? {
            found = self.find(state, bytes, alignment, stream)?;
        }
        if found.is_none() && !self.is(Wrong::GivesUpEarly) {
            self.collapse(state)?;
            found = self.find(state, bytes, alignment, stream)?;
        }
        if found.is_none() && !self.is(Wrong::GivesUpEarly) {
            self.release(state, 0)?;
            self.driver.synchronize()?; // Freed memory is available only now.
            if self.grow(state, with_slack, stream)? {
                found = self.find(state, bytes, alignment, stream)?;
            }
        }
        let Some(start) = found else { return Ok(None) };
        if self.is(Wrong::RecordAtAllocation) {
            let list = self.list(state, stream)?;
            self.record(list, stream)?;
        }
        state.live.insert(start, Live { bytes, layout, stream });
        let statistics = &mut state.statistics;
        statistics.allocations += 1;
        statistics.blocks_in_use += 1;
        statistics.bytes_requested += layout.bytes();
        statistics.bytes_in_use += bytes;
        statistics.peak_bytes_in_use = statistics.peak_bytes_in_use.max(statistics.bytes_in_use);
        Ok(Some(start))
    }

    fn take_back(&self, state: &mut State, start: u64, live: Live, stream: StreamRef) -> DriverResult<()> {
        let statistics = &mut state.statistics;
        statistics.deallocations += u64::from(!self.is(Wrong::MiscountsFrees) || stream == live.stream);
        statistics.blocks_in_use -= 1;
        statistics.bytes_requested -= live.layout.bytes();
        statistics.bytes_in_use -= live.bytes;
        let allocating = self.is(Wrong::FreesToAllocatingStream);
        let stream = if allocating { live.stream } else { stream };
        self.list(state, stream)?;
        let State { lists, regions, .. } = state;
        if let Some(list) = lists.get_mut(&self.key(stream)) {
            self.insert(regions, list, (start, live.bytes));
            list.stream = stream;
            match self.wrong {
                Some(Wrong::FreesToAllocatingStream) => {}
                Some(Wrong::RecordAtAllocation | Wrong::RecordsLazily) => list.completed = false,
                _ => self.record(list, stream)?,
            }
        }
        if self.is(Wrong::ReturnsEarly) { self.return_early(state, start, stream) } else { Ok(()) }
    }

    /// Returns the region around `address` to the driver if none of its blocks is handed out, on any stream.
    fn return_early(&self, state: &mut State, address: u64, stream: StreamRef) -> DriverResult<()> {
        let Some((&start, &size)) = state.regions.range(..=address).next_back() else { return Ok(()) };
        if state.live.range(start..start + size).next().is_some() {
            return Ok(());
        }
        for list in state.lists.values_mut() {
            let inside: Vec<u64> =
                list.blocks().range(start..start + size).map(|(&start, _)| start).collect();
            inside.into_iter().for_each(|start| list.remove(start));
        }
        state.regions.remove(&start);
        state.statistics.bytes_reserved -= size;
        // SAFETY: the region came from the driver, and none of its blocks is handed out. The mistake is to
        // ignore the frees on other streams; the simulated device reports it.
        unsafe { self.driver.mem_free_async(DevicePtr::new(start), stream) }
    }

    fn reported(&self, error: Error) -> Error {
        let device = self.driver.mem_get_info().ok();
        error.report_if_missing(|report| report.note_device(device)).in_stack(self)
    }

    /// Sizes are rounded up to multiples of this many bytes.
    fn granule(&self) -> u64 {
        if self.is(Wrong::SplitsUnrounded) { 64 } else { ALLOCATION_ALIGNMENT }
    }
}

// SAFETY: a stream gets a block after a wait for all frees in its list. Blocks are cut from free ones.
// Regions return to the driver when the device is idle. A pool with a mistake breaks this, so it runs only on
// the simulated device, where nothing else uses the memory.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for CanaryPool {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let too_large = || Error::request_too_large(layout, stream).in_stack(self);
        let bytes = align_up(layout.bytes(), self.granule()).ok_or_else(too_large)?;
        match self.try_allocate(&mut self.state.lock(), layout, bytes, stream) {
            Ok(Some(start)) => Ok(DevicePtr::new(start)),
            Ok(None) => Err(self.reported(Error::out_of_memory(layout, stream))),
            Err(error) => Err(self.reported(Error::from(error).for_request(layout, stream))),
        }
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() {
            return;
        }
        let mut state = self.state.lock();
        if let Some(live) = state.live.remove(&ptr.address()) {
            // After a driver error, the block stays out of use until the pool is dropped.
            drop(self.take_back(&mut state, ptr.address(), live, stream));
            return;
        }
        state.statistics.misuses += 1;
        drop(state);
        misuse::report(&Misuse::new(MisuseKind::ForeignPointer, ptr, layout.bytes(), stream, self));
    }

    fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let MemoryInfo { free, total } = self.driver.mem_get_info()?;
        Ok(MemoryInfo { free: free + self.state.lock().statistics.bytes_free(), total })
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn accessibility(&self) -> Accessibility {
        Accessibility::DEVICE
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        let state = self.state.lock();
        let free = || state.lists.values().flat_map(|list| list.blocks().values());
        Some(
            state
                .statistics
                .largest_free_block(free().copied().max().unwrap_or(0))
                .blocks_free(free().count() as u64)
                .regions(state.regions.len() as u64),
        )
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.release(&mut self.state.lock(), keep_bytes).map_err(|error| Error::from(error).in_stack(self))
    }

    fn provide(&self, _traits: &mut Traits) {}
}

impl fmt::Display for CanaryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("canary")
    }
}

impl Drop for CanaryPool {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let leaked = usize::from(self.wrong == Some(Wrong::LeaksRegion));
        // A drop cannot report an error, so memory whose free fails stays with the driver.
        drop(self.driver.synchronize());
        for &start in state.regions.keys().skip(leaked) {
            // SAFETY: the region came from the driver, the device is idle, and the pool is not used any more.
            drop(unsafe { self.driver.mem_free_async(DevicePtr::new(start), StreamRef::LEGACY) });
        }
        drop(self.driver.synchronize());
        let events: BTreeSet<u64> = state
            .lists
            .values()
            .map(|list| list.event.0)
            .chain(state.spare_events.iter().map(|e| e.0))
            .collect();
        for event in events {
            // SAFETY: the event belongs to the pool, and the pool is not used any more.
            drop(unsafe { self.driver.event_destroy(Event(event)) });
        }
    }
}
