//! Builds the report of an out-of-memory error: why the request failed, and what would have helped.
//!
//! The report is computed from the state after all steps failed. It advises nothing that the slow path does
//! itself: outside a capture that has waited, synchronised and released memory by then.

use millpond_core::driver::{DeviceAttribute, call};
use millpond_core::{
    DeviceMemoryResource, Error, Layout, MemoryInfo, OutOfMemoryReport, Remedy, RemedyAction, StreamRef,
    downcast,
};

use crate::driver_memory::CudaMemoryResource;
use crate::heap::request::Request;
use crate::pool::central::grow::Refusal;
use crate::pool::central::{Central, State};
use crate::pool::protocol::{Room, Shortage};
use crate::stream_order::Epoch;
use crate::tuning::{DEVICE_PAGE, STREAMS_NAMED};

impl<R: DeviceMemoryResource> Central<R> {
    /// Returns the error of a request that failed after all steps; `refusal` is why there was no new memory.
    #[cold]
    pub(crate) fn out_of_memory(&self, request: &Request, stream: StreamRef, refusal: Refusal) -> Error {
        let layout = Layout::with_alignment(request.requested, request.alignment);
        let layout = layout.unwrap_or(Layout::new(request.requested));
        let (mut refused, hopeless) = match refusal {
            Refusal::OwnLimit => (None, None),
            Refusal::Below(error) => (error, None),
            Refusal::Impossible(info) => (None, Some(info)),
        };
        let below = refused.as_mut().and_then(Error::take_out_of_memory_report);
        let is_by_device = below.is_none()
            && refused.as_ref().and_then(Error::driver_error).is_some_and(|error| error.is_out_of_memory());
        // Whether memory that the pool returns goes to the device.
        let is_direct = self.maps_pages || downcast::<CudaMemoryResource>(&self.upstream).is_some();
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
        let could = !self.maps_pages && downcast::<CudaMemoryResource>(&self.upstream).is_some();
        (could && matches!(has_pages(), Ok(1)))
            .then(|| call(&*self.driver, |driver| driver.mem_get_allocation_granularity()).ok())
            .flatten()
    }

    /// Adds what the pool holds, for which streams it is free, and which streams are worth waiting for.
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
        (report.live_blocks, report.largest_free_block) = (totals.blocks_in_use, heaps.largest_free_block());
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
        let waits =
            fits.iter().take(STREAMS_NAMED).map(|(bytes, stream)| Remedy::wait_for_stream(*stream, *bytes));
        report.remedies.extend(waits);
        if fits.is_empty() && shortage.merging_suffices {
            report.remedies.push(Remedy::merge_streams(shortage.free.iter().map(|free| free.bytes).sum()));
        }
        shortage
    }

    /// Adds what the resource's maximum and the device lacked for new memory.
    fn advise_on_growth(&self, report: &mut OutOfMemoryReport, shortage: &Shortage, is_direct: bool) {
        let limit = limit_short(report, shortage);
        let Some(MemoryInfo { free, total }) = report.device else { return };
        let from_device =
            if self.maps_pages { shortage.needed } else { shortage.needed.next_multiple_of(DEVICE_PAGE) };
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

    /// Adds upstream's report. Its advice applies here too, except to free blocks: upstream's blocks are this
    /// resource's regions.
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

/// Returns how many bytes the resource's maximum is too small for the request.
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
