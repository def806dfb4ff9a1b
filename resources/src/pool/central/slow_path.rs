//! The slow path: the steps of the reuse ladder that call the driver or upstream, in their order.
//!
//! [`grow`](crate::pool::central::grow) has the step that takes new memory.

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{DeviceMemoryResource, DevicePtr, Result, StreamRef};

use crate::heap::request::Request;
use crate::pool::central::cross_stream::{Donor, RecordedEvent};
use crate::pool::central::device_books::Reading;
use crate::pool::central::grow::Refusal;
use crate::pool::central::peer_pool::PeerPool;
use crate::pool::central::peer_reclaim::PeerReclaim;
use crate::pool::central::{Central, State};
use crate::pool::protocol::Reclaim;
use crate::stream_order::{ANY_STREAM, Epoch};
use crate::tuning::{DEVICE_PAGE, LAST_RETRIES, UNREACHABLE_SHARE};

impl<R: DeviceMemoryResource> Central<R> {
    /// Allocates a block after the steps that make no driver call found none.
    #[cold]
    pub(crate) fn allocate_slow(&self, request: &Request, stream: StreamRef) -> Result<DevicePtr> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let exact = self.state.lock().heaps.exact(request);
        let mut peer_reclaim = PeerReclaim::default();
        loop {
            // Read first: the request may miss memory that is returned after this.
            let returns = self.returns();
            let turn = self.turns.enter();
            let mut reading = None;
            if self.is_impossible(&exact, &mut reading)? {
                let info = reading.and_then(|reading| reading.info);
                return Err(self.out_of_memory(&exact, stream, Refusal::Impossible(info)));
            }
            self.admit_newcomers()?;
            let mut refused = match self.try_steps(request, stream, &mut reading)? {
                Ok(ptr) => return Ok(ptr),
                Err(refused) => refused,
            };
            if exact != *request {
                match self.try_steps(&exact, stream, &mut None)? {
                    Ok(ptr) => return Ok(ptr),
                    Err(again) => refused = again,
                }
            }
            // A peer pool may be asking this one at the same time, so this one has no turn here.
            drop(turn);
            let should_retry = match &refused {
                Refusal::Below(_) => self.ask_peer_pools(&mut peer_reclaim, returns, request, stream)?,
                Refusal::OwnLimit | Refusal::Impossible(_) => false,
            };
            if !should_retry {
                return Err(self.out_of_memory(&exact, stream, refused));
            }
        }
    }

    /// Returns whether the request exceeds all memory that could become free. Then it also reclaims the
    /// threads' caches, so that the report counts their blocks as free. Leaves the device's answer in
    /// `reading`, for the growth.
    ///
    /// The only driver call is the query of the device's free memory.
    fn is_impossible(&self, request: &Request, reading: &mut Option<Reading>) -> Result<bool> {
        let (can_ever, has_idle) = {
            let mut state = self.state.lock();
            (state.heaps.can_ever_serve(request), state.heaps.has_idle(request.bytes))
        };
        let is_impossible = !can_ever || (!has_idle && self.exceeds_device(request, reading)?);
        if is_impossible {
            self.trace_refusal(request, reading.as_ref(), &"it is more than there can be");
            self.state.lock().heaps.reclaim(Reclaim::Everything);
        }
        Ok(is_impossible)
    }

    /// Returns whether the request exceeds the device's free memory and all idle memory of this process's
    /// pools together.
    fn exceeds_device(&self, request: &Request, reading: &mut Option<Reading>) -> Result<bool> {
        let Some(device) = &self.device else { return Ok(false) };
        // The driver serves small allocations from pages that it has, even if no page is free.
        if !self.maps_pages && request.bytes < DEVICE_PAGE {
            return Ok(false);
        }
        // Idle memory becomes returning memory, and then free memory. Reading in this order counts memory
        // that moves meanwhile twice, and never misses it.
        let exceeds = |idle: u64, reading: &Reading| {
            let free = reading.free_at_most();
            free.is_some_and(|free| request.bytes > free.saturating_add(idle))
        };
        let own = self.state.lock().heaps.idle_bytes();
        let idle = own.saturating_add(device.returning_bytes());
        let first = self.read_device(device, request)?;
        *reading = Some(first);
        if !exceeds(idle, &first) {
            return Ok(false);
        }
        let own_id = self.core.id();
        let peer_pools = device.peer_pools();
        // One lock at a time: a peer pool may be doing the same.
        let others: u64 = peer_pools.iter().filter(|it| it.id() != own_id).map(|it| it.idle_bytes()).sum();
        let idle = own.saturating_add(others).saturating_add(device.returning_bytes());
        let mut last = self.read_device(device, request)?;
        if exceeds(idle, &last) && self.device_memory.as_ref().is_some_and(|it| it.free_refused()) {
            last = self.read_device(device, request)?;
        }
        *reading = Some(last);
        Ok(exceeds(idle, &last))
    }

    /// Tries all steps of the slow path once.
    fn try_steps(
        &self,
        request: &Request,
        stream: StreamRef,
        reading: &mut Option<Reading>,
    ) -> Result<Result<DevicePtr, Refusal>> {
        {
            let mut state = self.state.lock();
            let State { heaps, streams, .. } = &mut *state;
            // No thread uses the events of the forgotten streams: that takes a call here or a pending record.
            if self.turns.is_alone() {
                streams.sweep(|owner| heaps.free_bytes(owner));
                heaps.set_streams(streams.len());
            }
        }
        // A wait would end the capture of a graph, and a record would become a part of it. So memory for a
        // graph comes from the capturing stream itself or is new.
        let capturing = self.is_capturing(stream)?;
        // Another thread may have grown the pool while this one waited for the lock.
        if let Some(ptr) = self.try_take(request, stream) {
            return Ok(Ok(ptr));
        }
        // Counted before records are requested: a stream that is asked from now on may still call.
        let unreachable_bytes = self.unreachable_bytes();
        if let Some(ptr) = self.reclaim_and_take(request, stream, capturing)? {
            return Ok(Ok(ptr));
        }
        if !capturing {
            if let Some(ptr) = self.take_unreachable(request, stream, unreachable_bytes)? {
                return Ok(Ok(ptr));
            }
            if self.make_room(request, stream)? > 0 {
                *reading = None;
            }
        }
        let refused = match self.grow(request, stream, reading, |ladder| &mut ladder.grow)? {
            Ok(ptr) => return Ok(Ok(ptr)),
            Err(refused) => refused,
        };
        self.after_refused_growth(request, stream, capturing, refused)
    }

    /// Tries the steps that follow a refused growth: they wait for other streams, and return free memory to
    /// grow again.
    fn after_refused_growth(
        &self,
        request: &Request,
        stream: StreamRef,
        capturing: bool,
        mut refused: Refusal,
    ) -> Result<Result<DevicePtr, Refusal>> {
        {
            let mut state = self.state.lock();
            state.heaps.note_refusal();
            state.heaps.reclaim(Reclaim::All);
        }
        if let Some(ptr) = self.try_take(request, stream) {
            return Ok(Ok(ptr));
        }
        if !capturing {
            if let Some(ptr) = self.wait_for_others(request, stream)? {
                return Ok(Ok(ptr));
            }
            if let Some(ptr) = self.reclaim(request, stream)? {
                return Ok(Ok(ptr));
            }
        }
        if self.maps_pages {
            match self.grow(request, stream, &mut None, |ladder| &mut ladder.reclaim)? {
                Ok(ptr) => return Ok(Ok(ptr)),
                Err(again) => refused = again,
            }
        }
        if self.release_free_regions(0, stream) > 0 {
            match self.grow(request, stream, &mut None, |ladder| &mut ladder.reclaim)? {
                Ok(ptr) => return Ok(Ok(ptr)),
                Err(again) => refused = again,
            }
        }
        // Other threads may have freed a block that fits meanwhile, on any stream.
        for _ in 0..LAST_RETRIES {
            self.state.lock().heaps.reclaim(Reclaim::All);
            if capturing || !self.any_block_fits(request) {
                break;
            }
            if let Some(ptr) = self.wait_for_others(request, stream)? {
                return Ok(Ok(ptr));
            }
            if let Some(ptr) = self.reclaim(request, stream)? {
                return Ok(Ok(ptr));
            }
        }
        Ok(Err(refused))
    }

    /// Reclaims the threads' caches, and then the completed blocks of other streams.
    fn reclaim_and_take(
        &self,
        request: &Request,
        stream: StreamRef,
        capturing: bool,
    ) -> Result<Option<DevicePtr>> {
        // Large blocks first: reclaiming all of the caches is expensive.
        for how in [Reclaim::Large, Reclaim::All] {
            // The driver may refuse to grow during a capture, so all caches are reclaimed before.
            let only_for = (!capturing).then_some(request);
            let reclaimed = self.state.lock().heaps.reclaim_for(only_for, how);
            if reclaimed && let Some(ptr) = self.try_take(request, stream) {
                return Ok(Some(ptr));
            }
            if (reclaimed || how == Reclaim::Large)
                && !capturing
                && let Some(ptr) = self.take_from_others(request, stream)?
            {
                return Ok(Some(ptr));
            }
        }
        Ok(None)
    }

    /// Returns fully free regions to upstream, if growth would otherwise set a new peak of reserved bytes:
    /// one larger region may serve where several smaller ones did not. Upstream waits for the device to free
    /// them, so this does nothing while streams are far behind. Returns the bytes that it returned.
    fn make_room(&self, request: &Request, stream: StreamRef) -> Result<u64> {
        let sets_a_peak = || {
            let state = self.state.lock();
            let totals = state.heaps.totals();
            let growth = state.heaps.growth(request).map_or(0, |growth| growth.preferred);
            totals.bytes_reserved + growth > totals.peak_bytes_reserved
        };
        if self.maps_pages || self.upstream_is_ordered || !sets_a_peak() {
            return Ok(0);
        }
        self.collect_completed(Some(request), Some(stream), true)?;
        if self.state.lock().backlog.is_long() {
            return Ok(0);
        }
        let keep = self.bytes_reserved().saturating_sub(request.bytes);
        Ok(self.release_free_regions(keep, stream))
    }

    /// Takes a completed block of another stream, unless streams are far behind.
    fn take_from_others(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        // Only `collect_completed` finds out that a backlog has ended.
        let is_behind = self.state.lock().backlog.is_long();
        if !self.reuse.completed || !(is_behind || self.others_could_serve(request, stream)) {
            return Ok(None);
        }
        self.collect_completed(Some(request), Some(stream), true)?;
        Ok(self.try_take(request, stream))
    }

    /// Waits for the blocks of streams that may be destroyed and takes one, if those blocks have many bytes
    /// and no stream is far behind. `bytes` are those that were unreachable before other streams were asked.
    fn take_unreachable(
        &self,
        request: &Request,
        stream: StreamRef,
        bytes: u64,
    ) -> Result<Option<DevicePtr>> {
        let are_many = |bytes: u64| bytes > 0 && bytes > self.bytes_reserved() / UNREACHABLE_SHARE;
        // Some may have called since, or their work may be completed.
        if !are_many(bytes) || !are_many(self.unreachable_bytes()) || self.state.lock().backlog.is_long() {
            return Ok(None);
        }
        // Growth may still serve the request, so only a lost device is an error.
        self.reclaim(request, stream).or_else(|error| match self.health.is_lost() {
            true => Err(error),
            false => Ok(None),
        })
    }

    /// Takes a block of another stream once growth was refused: a completed one, or one that `stream` is made
    /// to wait for.
    fn wait_for_others(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        if self.reuse.completed {
            self.collect_completed(Some(request), Some(stream), false)?;
            if let Some(ptr) = self.try_take(request, stream) {
                return Ok(Some(ptr));
            }
            // The completed blocks may be large enough together.
            if self.maps_pages
                && let Ok(ptr) = self.grow(request, stream, &mut None, |ladder| &mut ladder.completed)?
            {
                return Ok(Some(ptr));
            }
        }
        self.take_from_best_donor(request, stream)
    }

    /// Returns whether any stream has a free block that fits.
    fn any_block_fits(&self, request: &Request) -> bool {
        let state = self.state.lock();
        let fits = |owner| state.heaps.find(owner, Epoch::MAX, request).is_some();
        fits(ANY_STREAM) || state.streams.iter().any(|(owner, _)| fits(owner))
    }

    /// Takes a block without a driver call.
    fn try_take(&self, request: &Request, stream: StreamRef) -> Option<DevicePtr> {
        let mut state = self.state.lock();
        let owner = state.owner_of(stream);
        state.take_ready(owner, request, self.reuse).or_else(|| {
            let ptr = state.heaps.take_with_unowned(owner, request)?;
            state.ladder.own_stream += 1;
            Some(ptr)
        })
    }

    /// Takes a block of one other stream that `stream` is made to wait for, unless it is completed by now.
    fn take_from_best_donor(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        if !self.reuse.waited {
            return Ok(None);
        }
        for donor in self.donors_with_fit(request, stream) {
            let Some(recorded_event) = self.recorded_event_of(donor, Some(stream))? else { continue };
            if self.reuse.completed && self.complete_if_reached(&recorded_event, Some(request))? {
                if let Some(ptr) = self.try_take(request, stream) {
                    return Ok(Some(ptr));
                }
            } else if let Some(ptr) = self.wait_and_take(&recorded_event, request, stream)? {
                return Ok(Some(ptr));
            }
        }
        Ok(None)
    }

    /// Returns the other streams that have a block that fits, the best fit first.
    fn donors_with_fit(&self, request: &Request, stream: StreamRef) -> Vec<Donor> {
        let mut state = self.state.lock();
        let taker = state.owner_of(stream);
        let State { heaps, streams, .. } = &*state;
        let mut found: Vec<(u64, Donor)> = streams
            .iter()
            .filter(|(owner, _)| *owner != taker)
            .filter_map(|(owner, slot)| {
                let fit = heaps.find(owner, Epoch::MAX, request)?;
                Some((fit.bytes, Donor { id: slot.id, epoch: fit.epoch }))
            })
            .collect();
        found.sort_by_key(|(bytes, _)| *bytes);
        found.into_iter().map(|(_, donor)| donor).collect()
    }

    /// Makes `stream` wait for the recorded event and takes a block that the event covers.
    fn wait_and_take(
        &self,
        recorded_event: &RecordedEvent,
        request: &Request,
        stream: StreamRef,
    ) -> Result<Option<DevicePtr>> {
        if let Err(error) = self.driver.stream_wait_event(stream, recorded_event.event) {
            self.skip_stream(recorded_event.donor.id, error)?;
            return Ok(None);
        }
        self.trace_wait(stream, recorded_event.donor.id.get(), request.requested);
        let mut state = self.state.lock();
        let taker = state.owner_of(stream);
        let Some((donor, _)) = state.streams.find_mut(recorded_event.donor.id) else { return Ok(None) };
        state.streams.waited(taker, donor, recorded_event.donor.epoch, &recorded_event.seen);
        let Some(ptr) = state.heaps.take(donor, recorded_event.donor.epoch, request) else { return Ok(None) };
        state.ladder.waited += 1;
        Ok(Some(ptr))
    }

    /// Returns whether the request could be served if all work of the other streams were completed.
    fn others_could_serve(&self, request: &Request, stream: StreamRef) -> bool {
        let mut state = self.state.lock();
        let taker = state.owner_of(stream);
        let State { heaps, streams, .. } = &*state;
        let free_bytes = |owner| heaps.free_bytes_for(Some(request), owner);
        let others: u64 =
            streams.iter().map(|(owner, _)| owner).filter(|owner| *owner != taker).map(free_bytes).sum();
        others > 0 && others + free_bytes(ANY_STREAM) + free_bytes(taker) >= request.bytes
    }

    /// Returns the free bytes of streams that may be destroyed: a record was requested, and they have not
    /// called since.
    fn unreachable_bytes(&self) -> u64 {
        let state = self.state.lock();
        let unreachable = state.streams.iter().filter(|(_, slot)| slot.cell.is_record_requested());
        unreachable.map(|(owner, _)| state.heaps.free_bytes(owner)).sum()
    }

    /// Waits for the streams that own free blocks, if there are any, and takes a block.
    fn reclaim(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        if self.owned_free_bytes(None) == 0 {
            return Ok(None);
        }
        self.wait_for_owners(Some(stream))?;
        let mut state = self.state.lock();
        let Some(ptr) = state.heaps.take(ANY_STREAM, Epoch::MAX, request) else {
            drop(state);
            // Another thread may have freed a block on this stream meanwhile.
            return Ok(self.try_take(request, stream));
        };
        state.ladder.reclaim += 1;
        Ok(Some(ptr))
    }
}

#[cfg(test)]
mod tests;
