//! Builds the report of an out-of-memory error: why the request failed, and what would have helped.
//!
//! The report is computed from the state after all steps failed. It advises nothing that the slow path does
//! itself: outside a capture, the slow path has already waited, synchronised and released memory.

use millpond_core::driver::{DeviceAttribute, call};
use millpond_core::{
    DeviceMemoryResource, Error, Layout, MemoryInfo, OutOfMemoryReport, Remedy, RemedyAction, StreamRef,
    downcast,
};

use crate::driver_memory::CudaMemoryResource;
use crate::heap::request::Request;
use crate::pool::central::{Central, State};
use crate::pool::oom_advice::{Room, Shortage};
use crate::store::NoMemory;
use crate::stream_order::Epoch;
use crate::tuning::DEVICE_PAGE;

impl<R: DeviceMemoryResource> Central<R> {
    /// Returns the error of a request that failed after all steps. `why` says why there was no new memory.
    #[cold]
    pub(crate) fn out_of_memory(&self, request: &Request, stream: StreamRef, why: NoMemory) -> Error {
        let layout = Layout::with_alignment(request.requested, request.alignment);
        let layout = layout.unwrap_or(Layout::new(request.requested));
        let (mut refused, hopeless) = match why {
            NoMemory::OwnLimit => (None, None),
            NoMemory::Below(error) => (error, None),
            NoMemory::Impossible(info) => (None, Some(info)),
        };
        let below = refused.as_mut().and_then(Error::take_out_of_memory_report);
        // This report already states the driver's memory.
        let below = below.filter(|below| !below.is_of_driver());
        let is_by_device = below.is_none()
            && refused.as_ref().and_then(Error::driver_error).is_some_and(|error| error.is_out_of_memory());
        // Whether memory that the pool returns goes to the device.
        let is_direct = self.rules.maps_pages || downcast::<CudaMemoryResource>(&self.upstream).is_some();
        let device = match hopeless.flatten() {
            None if is_direct || is_by_device => self.device_memory(),
            known => known,
        };
        let mut report = OutOfMemoryReport::new(layout, stream);
        report.is_capturing = self.is_capturing(stream).unwrap_or(false);
        report.device = device;
        let room = Room {
            owner: 0,
            is_capturing: report.is_capturing,
            is_impossible: hopeless.is_some(),
            device_free: device.filter(|_| is_direct).map(|device| device.free),
            page_bytes: if hopeless.is_none() { self.page_bytes() } else { None },
        };
        let shortage = self.fill_in(&mut report, request, stream, room);
        if is_by_device || is_direct {
            self.advise_on_growth(&mut report, &shortage, room.device_free.is_some());
        } else {
            advise_on_limit(&mut report, &shortage);
        }
        self.add_upstream(&mut report, below);
        self.advise_on_blocks(&mut report, shortage, room);
        let error = Error::out_of_memory(layout, stream).on_device(self.driver.device()).with_report(report);
        self.trace_out_of_memory(stream, &error);
        match refused {
            Some(cause) => error.caused_by(cause),
            None => error,
        }
    }

    fn device_memory(&self) -> Option<MemoryInfo> {
        self.driver.mem_get_info().inspect_err(|error| self.health.note(error)).ok()
    }

    /// Returns the size of the pages that the resource could map, if it maps none.
    fn page_bytes(&self) -> Option<u64> {
        let attribute = DeviceAttribute::VirtualMemoryManagementSupported;
        let has_pages = || call(&*self.driver, |driver| driver.attribute(attribute));
        let could = !self.rules.maps_pages && downcast::<CudaMemoryResource>(&self.upstream).is_some();
        (could && matches!(has_pages(), Ok(1)))
            .then(|| call(&*self.driver, |driver| driver.mem_get_allocation_granularity()).ok())
            .flatten()
    }

    /// Adds the pool's memory, the streams for which it is free, and the streams worth waiting for.
    fn fill_in(
        &self,
        report: &mut OutOfMemoryReport,
        request: &Request,
        stream: StreamRef,
        room: Room,
    ) -> Shortage {
        let mut state = self.state.lock();
        state.ladder.out_of_memory += 1;
        let owner = state.owner_of(stream);
        let shortage = state.heaps.shortage(request, &Room { owner, ..room });
        let State { heaps, streams, .. } = &*state;
        let totals = heaps.totals();
        (report.held_bytes, report.live_bytes) = (totals.bytes_reserved, totals.bytes_in_use);
        report.live_blocks = Some(totals.blocks_in_use);
        report.largest_free_block = Some(heaps.largest_free_block());
        report.maximum_bytes = shortage.maximum_bytes;
        report.free = state.free_memory(&shortage.free);
        if !report.is_capturing {
            return shortage;
        }
        let others = streams.iter().filter(|(other, _)| *other != owner);
        let mut fits: Vec<(u64, StreamRef)> = others
            .filter_map(|(other, slot)| Some((heaps.find(other, Epoch::MAX, request)?.bytes, slot.stream)))
            .collect();
        fits.sort_unstable_by_key(|(bytes, stream)| (*bytes, stream.handle()));
        let waits = fits.iter().take(4).map(|(bytes, stream)| Remedy::wait_for_stream(*stream, *bytes));
        report.remedies.extend(waits);
        if fits.is_empty() && shortage.merging_suffices {
            report.remedies.push(Remedy::merge_streams(shortage.free.iter().map(|free| free.bytes).sum()));
        }
        shortage
    }

    /// Adds the bytes by which the resource's maximum and the device were too small for new memory.
    fn advise_on_growth(&self, report: &mut OutOfMemoryReport, shortage: &Shortage, is_direct: bool) {
        let limit = limit_short(report, shortage);
        let Some(MemoryInfo { free, total }) = report.device else { return };
        let from_device = if self.rules.maps_pages {
            shortage.needed
        } else {
            shortage.needed.next_multiple_of(DEVICE_PAGE)
        };
        let short = from_device.saturating_sub(free);
        let others = (total - free).saturating_sub(shortage.device_pages);
        // Not rounded up to a page, unlike `short`.
        let missing = shortage.needed.saturating_sub(free).max(limit);
        report.short_bytes = Some(missing).filter(|bytes| *bytes > 0);
        if short > others {
            return;
        }
        if limit > 0 {
            report.remedies.push(Remedy::raise_maximum(limit, is_direct && short == 0));
        }
        if short > 0 {
            report.remedies.push(Remedy::free_device_memory(short, others, limit == 0));
        }
    }

    /// Adds upstream's report. Its advice applies here too, except the advice to free blocks: upstream's
    /// blocks are this resource's regions.
    fn add_upstream(&self, report: &mut OutOfMemoryReport, below: Option<Box<OutOfMemoryReport>>) {
        let Some(mut below) = below else { return };
        let may_follow = |remedy: &Remedy| !matches!(remedy.action, RemedyAction::FreeBlocks { .. });
        report.remedies.extend(std::mem::take(&mut below.remedies).into_iter().filter(may_follow));
        report.short_bytes = report.short_bytes.or(below.short_bytes);
        report.upstream = Some(below);
    }

    fn advise_on_blocks(&self, report: &mut OutOfMemoryReport, shortage: Shortage, room: Room) {
        if !shortage.in_the_way.is_empty() {
            report.remedies.push(Remedy::free_blocks(shortage.in_the_way));
        }
        if let (Some(pages), Some(page_bytes)) = (shortage.pages, room.page_bytes) {
            report.remedies.push(Remedy::map_pages(pages, page_bytes));
        }
        report.map = shortage.map;
    }
}

/// Returns by how many bytes the resource's maximum is too small for the request.
fn limit_short(report: &OutOfMemoryReport, shortage: &Shortage) -> u64 {
    let room = shortage.maximum_bytes.map_or(u64::MAX, |maximum| maximum.saturating_sub(report.held_bytes));
    shortage.needed.saturating_sub(room)
}

/// Adds the bytes by which the resource's maximum is too small, if nothing is known of the device.
fn advise_on_limit(report: &mut OutOfMemoryReport, shortage: &Shortage) {
    let short = limit_short(report, shortage);
    if short > 0 {
        report.short_bytes = Some(short);
        report.remedies.push(Remedy::raise_maximum(short, false));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond_core::driver::{CaptureMode, Driver, StreamFlags};
    use millpond_core::{DeviceMemoryResourceExt, LiveBlock};
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::pool::{PagesMode, PoolLayer, PoolMemoryResource};

    const MIB: u64 = 1 << 20;

    type Pool = PoolMemoryResource<CudaMemoryResource>;

    fn pool(device: &Arc<SimDevice>, layer: PoolLayer) -> Pool {
        CudaMemoryResource::new(device.clone()).layer(layer).expect("an empty pool")
    }

    fn free(pool: &impl DeviceMemoryResource, ptr: millpond_core::DevicePtr, bytes: u64, stream: StreamRef) {
        // SAFETY: the block came from the pool with this size and is freed once.
        unsafe { pool.deallocate(ptr, Layout::new(bytes), stream) };
    }

    fn report_of(error: Error) -> OutOfMemoryReport {
        error.out_of_memory_report().expect("a pool reports").clone()
    }

    /// The stream's own free blocks and unowned ones join during a capture too, so the report names only the
    /// blocks between them.
    #[test]
    fn during_a_capture_unowned_blocks_count_for_the_stream() {
        for pages in [PagesMode::On, PagesMode::Off] {
            let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
            let pool = pool(&device, PoolLayer::new().pages(pages));
            let stream = |()| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
            let [capturing, other] = [(); 2].map(stream);
            let all = pool.allocate_bytes(64 * MIB, other).expect("there is room");
            free(&pool, all, 64 * MIB, other);
            // The other stream's work is done, so the memory around these two blocks is unowned.
            let blocks = [(); 2].map(|()| pool.allocate_bytes(8 * MIB, capturing).expect("there is room"));
            device.begin_capture(capturing, CaptureMode::Global).expect("no capture is under way");
            let request = 52 * MIB;
            let report = report_of(pool.allocate_bytes(request, capturing).expect_err("48 MiB are free"));
            assert!(report.is_capturing);
            let [RemedyAction::FreeBlocks { blocks: named, .. }] =
                &report.remedies.iter().map(|remedy| remedy.action.clone()).collect::<Vec<_>>()[..]
            else {
                panic!("it names one choice of blocks with {pages}: {report}");
            };
            assert_eq!(named[..], [LiveBlock { address: blocks[1].address(), bytes: 8 * MIB }], "{report}");
            free(&pool, blocks[1], 8 * MIB, capturing);
            pool.allocate_bytes(request, capturing).expect("the advice is true");
            pool.validate();
        }
    }

    /// The heap counts a cached block as in use, but no caller can free it.
    #[test]
    fn cached_blocks_are_not_named() {
        const BYTES: u64 = 64 << 10;
        let device = SimDevice::new(SimConfig::with_capacity(16 * MIB));
        let pool = pool(&device, PoolLayer::new().initial_bytes(8 * MIB).pages(PagesMode::Off));
        let blocks = [(); 40].map(|()| pool.allocate_bytes(BYTES, StreamRef::LEGACY).expect("there is room"));
        for ptr in blocks.into_iter().step_by(2) {
            free(&pool, ptr, BYTES, StreamRef::LEGACY);
        }
        let held = pool.shared.thread_caches.my_cache(pool.id).counts.totals().blocks_held;
        assert!(held > 0, "blocks are cached");
        let request = Request::new(Layout::new(8 * MIB)).expect("not too large");
        let room = Room {
            owner: 0,
            is_capturing: false,
            is_impossible: false,
            device_free: Some(0),
            page_bytes: None,
        };
        let named = pool.central.with_heaps(|heaps| heaps.shortage(&request, &room)).in_the_way;
        assert!(named.iter().all(|block| block.bytes == BYTES), "{named:?}");
        assert_eq!(named.len(), 20);
    }

    /// A request above the maximum fails before the pool releases memory. So the report counts the memory
    /// that the pool could release. The maximum in the report is the least that serves the request.
    #[test]
    fn free_memory_of_another_stream_counts_for_a_request_above_the_maximum() {
        const MAXIMUM: u64 = 32 * MIB;
        for (pages, live) in
            [(PagesMode::On, 0), (PagesMode::Off, 0), (PagesMode::On, 4), (PagesMode::Off, 4)]
        {
            let run = |maximum| {
                let device = SimDevice::new(SimConfig::with_capacity(128 * MIB));
                let pool = pool(&device, PoolLayer::new().pages(pages).maximum_bytes(maximum));
                let stream = |()| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
                let [freeing, requesting] = [(); 2].map(stream);
                let _live =
                    (live > 0).then(|| pool.allocate_bytes(live * MIB, freeing).expect("there is room"));
                let block = pool.allocate_bytes(24 * MIB, freeing).expect("there is room");
                free(&pool, block, 24 * MIB, freeing);
                pool.allocate_bytes(48 * MIB, requesting).map(|_| {
                    pool.validate();
                    let ladder = pool.statistics().expect("it counts").ladder;
                    // Pages of completed blocks are mapped again; regions are returned first.
                    let served = if pages == PagesMode::On { ladder.completed } else { ladder.reclaim };
                    assert_eq!(served, 1, "{ladder:?}");
                })
            };
            let report = report_of(run(MAXIMUM).expect_err("it is above the maximum"));
            let [RemedyAction::RaiseMaximum { bytes }] =
                report.remedies.iter().map(|remedy| remedy.action.clone()).collect::<Vec<_>>()[..]
            else {
                panic!("it says by how much to raise the maximum with {pages}: {report}");
            };
            assert_eq!((report.short_bytes, bytes), (Some((16 + live) * MIB), (16 + live) * MIB), "{report}");
            run(MAXIMUM + bytes).expect("the advice is true");
            run(MAXIMUM + bytes - 2 * MIB).expect_err("the advice is the least");
        }
    }

    /// A pool over another one says by how much its own maximum is too small.
    #[test]
    fn a_maximum_over_another_pool_is_raised_by_what_is_missing() {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let layer = PoolLayer::new().maximum_bytes(8 * MIB);
        let above = pool(&device, PoolLayer::new()).layer(layer).expect("an empty pool");
        let error = above.allocate_bytes(12 * MIB, StreamRef::LEGACY).expect_err("it is too much");
        let report = report_of(error);
        assert_eq!(report.short_bytes, Some(4 * MIB), "{report}");
        assert!(!report.remedies.is_empty(), "{report}");
    }

    /// The report states the device's memory only if the device had too little, not if a pool below was at
    /// its maximum.
    #[test]
    fn the_device_is_named_only_if_it_refused() {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let below = pool(&device, PoolLayer::new().maximum_bytes(32 * MIB));
        let above = below.layer(PoolLayer::new()).expect("an empty pool");
        let report =
            report_of(above.allocate_bytes(40 * MIB, StreamRef::LEGACY).expect_err("it is too much"));
        assert!(report.device.is_none(), "{report}");
        let upstream = report.upstream.expect("the pool below reports, too");
        assert_eq!(upstream.maximum_bytes, Some(32 * MIB));
        let below = pool(&device, PoolLayer::new());
        let above = below.layer(PoolLayer::new().maximum_bytes(32 * MIB)).expect("an empty pool");
        let report =
            report_of(above.allocate_bytes(40 * MIB, StreamRef::LEGACY).expect_err("it is too much"));
        assert!(report.device.is_none() && report.upstream.is_none(), "{report}");
        assert_eq!(report.maximum_bytes, Some(32 * MIB));
        let direct = pool(&device, PoolLayer::new());
        let report =
            report_of(direct.allocate_bytes(80 * MIB, StreamRef::LEGACY).expect_err("it is too much"));
        assert_eq!(report.device.expect("the device was asked").total, 64 * MIB);
    }

    /// Only a pool that takes regions from the device, and could map its pages, gets the advice to map pages.
    #[test]
    fn pages_are_for_pools_that_map_none_and_could() {
        let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
        let page_bytes = |pages| pool(&device, PoolLayer::new().pages(pages)).central.page_bytes();
        assert_eq!((page_bytes(PagesMode::Off), page_bytes(PagesMode::On)), (Some(2 * MIB), None));
        let above = pool(&device, PoolLayer::new()).layer(PoolLayer::new()).expect("an empty pool");
        assert_eq!(above.central.page_bytes(), None);
    }
}
