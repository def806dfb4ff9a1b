//! Measures virtual memory management as a pool uses it, while hundreds of other mappings exist. Handles are
//! created, mapped, made accessible, mapped at a second address, and released, one after another.

use millpond_core::DevicePtr;
use millpond_core::driver::{AccessFlags, Driver, DriverResult, PhysicalHandle, PhysicalProps};
use millpond_driver::CallKind;
use millpond_driver::sim::{SetAccessCosts, SizeCosts, UnmapCosts};

use super::samples::Samples;
use super::session::Session;

const MIB: u64 = 1 << 20;

/// The bytes of addresses that one page table of the device covers. The first mapping in such an area costs
/// more.
const AREA: u64 = 512 * MIB;

/// The most areas in use. Half of them are for first mappings, and half for second mappings.
const AREAS: u64 = 64;

/// The most other mappings that exist.
const BACKGROUND: u64 = 256;

/// The most handles in a row, and the fewest samples of each size.
const ROW: u64 = 32;

/// How many mappings one call makes accessible or unmaps. The number of samples is the same.
const BATCH: u64 = 8;
const BATCHES: u64 = 40;

/// A reservation of addresses, with its mappings. Dropping it releases everything.
struct Range<'a> {
    driver: &'a dyn Driver,
    start: DevicePtr,
    bytes: u64,
    mappings: Vec<(DevicePtr, u64)>,
    handles: Vec<PhysicalHandle>,
}

impl<'a> Range<'a> {
    fn reserve(driver: &'a dyn Driver, bytes: u64) -> DriverResult<Self> {
        let start = driver.mem_address_reserve(bytes, AREA)?;
        Ok(Self { driver, start, bytes, mappings: Vec::new(), handles: Vec::new() })
    }

    /// Creates a handle, and maps it at an offset. If asked to, also makes the mapping accessible.
    fn add(&mut self, times: &mut Times, session: &mut Session<'_>, at: u64, bytes: u64) -> DriverResult<()> {
        let handle = session
            .timed
            .call_cold(&mut times.create, |driver| driver.mem_create(bytes, PhysicalProps::default()))?;
        self.handles.push(handle);
        self.map(times, session, handle, at, bytes)
    }

    fn map(
        &mut self,
        times: &mut Times,
        session: &mut Session<'_>,
        handle: PhysicalHandle,
        at: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        let ptr = self.start.offset(at);
        // SAFETY: the address is in this reservation, and nothing is mapped there. The handle is alive.
        session.timed.call_cold(&mut times.map, |driver| unsafe { driver.mem_map(ptr, bytes, handle) })?;
        self.mappings.push((ptr, bytes));
        Ok(())
    }

    fn open(
        &self,
        session: &mut Session<'_>,
        samples: &mut Samples,
        at: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        let ptr = self.start.offset(at);
        // SAFETY: the range is mapped as a whole.
        let open = |driver: &dyn Driver| unsafe {
            driver.mem_set_access(ptr, bytes, AccessFlags::ReadWrite, &[driver.device()])
        };
        session.timed.call_cold(samples, open)
    }

    /// Unmaps the last mappings, `batch` of them in each call, until `keep` mappings are left.
    fn unmap_to(
        &mut self,
        session: &mut Session<'_>,
        samples: &mut Samples,
        keep: usize,
        at_a_time: usize,
    ) -> DriverResult<()> {
        while self.mappings.len() > keep {
            let first = self.mappings.len().saturating_sub(at_a_time).max(keep);
            let start = self.mappings[first].0;
            let bytes = self.mappings[first..].iter().map(|(_, bytes)| bytes).sum();
            // SAFETY: these mappings are adjacent, and no work uses them.
            session.timed.call_cold(samples, |driver| unsafe { driver.mem_unmap(start, bytes) })?;
            self.mappings.truncate(first);
        }
        Ok(())
    }

    fn release_to(
        &mut self,
        session: &mut Session<'_>,
        samples: &mut Samples,
        keep: usize,
    ) -> DriverResult<()> {
        while self.handles.len() > keep {
            let Some(handle) = self.handles.pop() else { break };
            // SAFETY: the handle is alive, and not used again.
            session.timed.call_cold(samples, |driver| unsafe { driver.mem_release(handle) })?;
        }
        Ok(())
    }
}

impl Drop for Range<'_> {
    fn drop(&mut self) {
        // An error here follows an earlier error, which the caller has received.
        for (ptr, bytes) in self.mappings.drain(..) {
            // SAFETY: the mapping is alive, and nothing uses it.
            _ = unsafe { self.driver.mem_unmap(ptr, bytes) };
        }
        for handle in self.handles.drain(..) {
            // SAFETY: the handle is alive, and not used again.
            _ = unsafe { self.driver.mem_release(handle) };
        }
        // SAFETY: nothing is mapped there any more.
        _ = unsafe { self.driver.mem_address_free(self.start, self.bytes) };
    }
}

/// Samples of calls for handles of one size.
#[derive(Default)]
struct Times {
    create: Samples,
    map: Samples,
    set_access: Samples,
    /// Samples of making a mapping at a second address accessible.
    set_access_second: Samples,
    unmap: Samples,
    release: Samples,
}

pub(super) fn all(session: &mut Session<'_>) -> DriverResult<()> {
    let granularity = session.driver().mem_get_allocation_granularity()?;
    reservations(session)?;
    let background = BACKGROUND.min(session.budget / 4 / granularity);
    let mut beside = Range::reserve(session.driver(), background * granularity)?;
    for index in 0..background {
        beside.add(&mut Times::default(), session, index * granularity, granularity)?;
    }
    beside.open(session, &mut Samples::default(), 0, background * granularity)?;

    let areas = AREAS.min(session.budget / 4 / granularity).next_multiple_of(2);
    let mut range = Range::reserve(session.driver(), areas * AREA)?;
    let mut new_area = Samples::default();
    for area in 0..areas {
        range.add(&mut Times::default(), session, area * AREA, granularity)?;
        range.open(session, &mut new_area, area * AREA, granularity)?;
    }
    let mut by_bytes = Vec::new();
    let largest = AREA - granularity; // the first mapping takes the rest of the area
    let sizes = std::iter::successors(Some(granularity), |bytes| Some((bytes * 2).min(largest)));
    let most = session.budget / 4;
    for bytes in sizes.take(9).filter(|bytes| *bytes <= most) {
        let mut times = Times::default();
        let row = Row { bytes, first: granularity, areas: areas / 2 };
        let count = session.blocks(2 * bytes, ROW).min(row.room());
        for _ in 0..ROW.div_ceil(count) {
            one_row(session, &mut range, &row, count, &mut times)?;
        }
        by_bytes.push((bytes, times));
    }
    let (mut opened, mut unmapped) = (Samples::default(), Samples::default());
    for _ in 0..BATCHES {
        batch(session, &mut range, granularity, &mut opened, &mut unmapped)?;
    }
    summarize(session, by_bytes, &new_area, &opened, &unmapped);
    Ok(())
}

/// Measures reserving and freeing addresses.
fn reservations(session: &mut Session<'_>) -> DriverResult<()> {
    let (mut reserve, mut free) = (Samples::default(), Samples::default());
    for power in 0..32 {
        let bytes = AREA << (power % 8);
        let start = session.timed.call_cold(&mut reserve, |driver| driver.mem_address_reserve(bytes, 0))?;
        // SAFETY: the reservation is alive, and nothing is mapped there.
        session.timed.call_cold(&mut free, |driver| unsafe { driver.mem_address_free(start, bytes) })?;
    }
    session.constant(CallKind::MemAddressReserve, &reserve);
    session.constant(CallKind::MemAddressFree, &free);
    Ok(())
}

/// Where handles of one size are mapped: after the first mapping of each area.
struct Row {
    bytes: u64,
    first: u64,
    /// Half of the areas. The other half is for second mappings.
    areas: u64,
}

impl Row {
    const fn in_an_area(&self) -> u64 {
        (AREA - self.first) / self.bytes
    }

    const fn room(&self) -> u64 {
        self.in_an_area() * self.areas
    }

    const fn offset(&self, index: u64) -> u64 {
        index / self.in_an_area() * AREA + self.first + index % self.in_an_area() * self.bytes
    }
}

fn one_row(
    session: &mut Session<'_>,
    range: &mut Range<'_>,
    row: &Row,
    count: u64,
    times: &mut Times,
) -> DriverResult<()> {
    let (mappings, handles) = (range.mappings.len(), range.handles.len());
    for index in 0..count {
        range.add(times, session, row.offset(index), row.bytes)?;
        range.open(session, &mut times.set_access, row.offset(index), row.bytes)?;
    }
    for index in 0..count {
        let (handle, at) = (range.handles[handles + index as usize], row.areas * AREA + row.offset(index));
        range.map(times, session, handle, at, row.bytes)?;
        range.open(session, &mut times.set_access_second, at, row.bytes)?;
    }
    range.unmap_to(session, &mut times.unmap, mappings, 1)?;
    range.release_to(session, &mut times.release, handles)
}

/// Makes several adjacent mappings accessible in one call, and unmaps them in one call.
fn batch(
    session: &mut Session<'_>,
    range: &mut Range<'_>,
    bytes: u64,
    opened: &mut Samples,
    unmapped: &mut Samples,
) -> DriverResult<()> {
    let (mappings, handles) = (range.mappings.len(), range.handles.len());
    for index in 1..=BATCH {
        range.add(&mut Times::default(), session, index * bytes, bytes)?;
    }
    range.open(session, opened, bytes, BATCH * bytes)?;
    range.unmap_to(session, unmapped, mappings, BATCH as usize)?;
    range.release_to(session, &mut Samples::default(), handles)
}

fn summarize(
    session: &mut Session<'_>,
    by_bytes: Vec<(u64, Times)>,
    new_area: &Samples,
    opened: &Samples,
    unmapped: &Samples,
) {
    let mut all = Times::default();
    let (mut create, mut set_access, mut unmap, mut release) = (vec![], vec![], vec![], vec![]);
    for (bytes, times) in by_bytes {
        all.map.extend(&times.map);
        if bytes <= 64 * MIB {
            all.set_access.extend(&times.set_access);
            all.set_access_second.extend(&times.set_access_second);
        }
        create.push((bytes, times.create));
        set_access.push((bytes, times.set_access));
        unmap.push((bytes, times.unmap));
        release.push((bytes, times.release));
    }
    let typical = |of: &[(u64, Samples)]| of.first().map_or(0, |(_, samples)| samples.typical());
    session.constant(CallKind::MemMap, &all.map);
    let by_size = SizeCosts::new;
    session.costs.mem_create = session.curve("mem_create", &create, 0).map(by_size);
    session.costs.mem_release = session.curve("mem_release", &release, 0).map(by_size);

    let one = typical(&set_access);
    let call_ns = call_alone(one, opened.typical());
    let second = all.set_access_second.typical().saturating_sub(all.set_access.typical());
    session.comment("mem_set_access.call_ns", None, format!("of {BATCH} mappings: {}", opened.describe()));
    session.comment("mem_set_access.second_mapping_extra_ns", None, all.set_access_second.describe());
    session.comment("mem_set_access.new_512_mib_extra_ns", None, new_area.describe());
    session.costs.mem_set_access = session.curve("mem_set_access", &set_access, call_ns).map(|by_bytes_ns| {
        let mut costs = SetAccessCosts::new(call_ns, by_bytes_ns);
        costs.second_mapping_extra_ns = second;
        costs.new_512_mib_extra_ns = new_area.typical().saturating_sub(one);
        costs
    });
    let call_ns = call_alone(typical(&unmap), unmapped.typical());
    session.comment("mem_unmap.call_ns", None, format!("of {BATCH} mappings: {}", unmapped.describe()));
    session.costs.mem_unmap =
        session.curve("mem_unmap", &unmap, call_ns).map(|by_bytes_ns| UnmapCosts::new(call_ns, by_bytes_ns));
}

/// Returns the cost of a call without the cost of its mappings. It is computed from the costs with one
/// mapping and with [`BATCH`] mappings.
fn call_alone(one: u64, batch: u64) -> u64 {
    let further = batch.saturating_sub(one) / (BATCH - 1);
    one.saturating_sub(further)
}
