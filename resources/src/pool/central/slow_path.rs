//! The steps of the ladder that call the driver or upstream; `grow` has the one that takes memory.

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{DeviceMemoryResource, DevicePtr, Result, StreamRef};

use crate::heap::request::Request;
use crate::pool::central::cross_stream::{Donor, RecordedEvent};
use crate::pool::central::device_books::Reading;
use crate::pool::central::grow::Refusal;
use crate::pool::central::peer_reclaim::PeerReclaim;
use crate::pool::central::{Central, State};
use crate::pool::protocol::Reclaim;
use crate::stream_order::{ANY_STREAM, Epoch};
use crate::tuning::DEVICE_PAGE;

/// How often other threads may come in between before a request that somebody's block would serve fails.
const LAST_TRIES: usize = 8;

impl<R: DeviceMemoryResource> Central<R> {
    /// Goes down the ladder beyond the steps that need no driver.
    #[cold]
    pub(crate) fn allocate_slow(&self, request: &Request, stream: StreamRef) -> Result<DevicePtr> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let exact = self.state.lock().heaps.exact(request);
        let mut peer_reclaim = PeerReclaim::default();
        loop {
            // Before anything is looked at: whatever is returned later may have been missed.
            let returns = self.returns();
            let slow = self.slow.lock();
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
            // Others are asked without this resource's locks: they may be asking, too.
            drop(slow);
            let may_be_had = match &refused {
                Refusal::Below(_) => self.ask_peer_pools(&mut peer_reclaim, returns, request, stream)?,
                Refusal::OwnLimit | Refusal::Impossible(_) => false,
            };
            if !may_be_had {
                return Err(self.out_of_memory(&exact, stream, refused));
            }
        }
    }

    /// Whether no state of memory would serve the request; then what threads keep is reclaimed, for the
    /// report: it is free, too. What was read of the device is left in `reading`, for the growth.
    ///
    /// Where the device's free memory, and all that the process's resources hold of it and nobody uses, are
    /// less than the request, that is found out by asking what is free. No other driver call is made, but for
    /// the report's question whether the stream captures a graph.
    fn is_impossible(&self, request: &Request, reading: &mut Option<Reading>) -> Result<bool> {
        let (can_ever, has_idle) = {
            let state = self.state.lock();
            (state.heaps.can_ever_serve(request), state.heaps.has_idle(request.bytes))
        };
        let is_impossible = !can_ever || (!has_idle && self.exceeds_device(request, reading)?);
        if is_impossible {
            self.trace_refusal(request, reading.as_ref(), &"it is more than there can be");
            self.state.lock().heaps.reclaim(Reclaim::Everything);
        }
        Ok(is_impossible)
    }

    /// Whether the device cannot have the bytes of a request, whoever gives back what nobody uses.
    fn exceeds_device(&self, request: &Request, reading: &mut Option<Reading>) -> Result<bool> {
        let Some(device) = &self.device else { return Ok(false) };
        // The driver has shared pages for small blocks, of which some may be free where no page is.
        if !self.maps_pages && request.bytes < DEVICE_PAGE {
            return Ok(false);
        }
        // What is idle is read first, then what is leaving, then what is free: memory that goes from one to
        // the next in between counts twice, and is not missed.
        let exceeds = |idle: u64, reading: &Reading| {
            let free = reading.free_at_most();
            free.is_some_and(|free| request.bytes > free.saturating_add(idle))
        };
        let own = self.state.lock().heaps.idle_bytes();
        let idle = own.saturating_add(device.leaving_bytes());
        let first = self.look_at(device, request)?;
        *reading = Some(first);
        if !exceeds(idle, &first) {
            return Ok(false);
        }
        let me = std::ptr::from_ref(&*self.core).cast::<()>();
        let peer_pools = device.peer_pools();
        // Each lock by itself: others may be doing the same.
        let others: u64 = peer_pools.iter().filter(|it| it.id() != me).map(|other| other.idle_bytes()).sum();
        let idle = own.saturating_add(others).saturating_add(device.leaving_bytes());
        let mut last = self.look_at(device, request)?;
        if exceeds(idle, &last) && self.device_memory.as_ref().is_some_and(|it| it.free_refused()) {
            last = self.look_at(device, request)?;
        }
        *reading = Some(last);
        Ok(exceeds(idle, &last))
    }

    fn try_steps(
        &self,
        request: &Request,
        stream: StreamRef,
        reading: &mut Option<Reading>,
    ) -> Result<Result<DevicePtr, Refusal>> {
        {
            // Here nobody uses a stream's event: all who do hold the lock, or a pending record.
            let mut state = self.state.lock();
            let State { heaps, streams, .. } = &mut *state;
            let gone = streams.sweep(|owner| heaps.free_bytes(owner));
            gone.into_iter().for_each(|owner| heaps.remove_owner(owner));
            heaps.set_streams(streams.len());
        }
        // A wait would end the capture of a graph, a record would become a part of it. (What can be asked and
        // waited for elsewhere is left alone, too: memory for a graph comes from the stream or is new.)
        let capturing = self.is_capturing(stream)?;
        // Another thread may have brought memory while this one waited for the lock.
        if let Some(ptr) = self.try_take(request, stream) {
            return Ok(Ok(ptr));
        }
        // Before streams are asked: one that is asked now and cannot be recorded on may still call.
        let lost_bytes = self.lost_bytes();
        if let Some(ptr) = self.reclaim_and_take(request, stream, capturing)? {
            return Ok(Ok(ptr));
        }
        if !capturing {
            if let Some(ptr) = self.take_lost(request, stream, lost_bytes)? {
                return Ok(Ok(ptr));
            }
            self.make_room(request, stream)?;
        }
        let refused = match self.grow(request, stream, reading, |ladder| &mut ladder.grow)? {
            Ok(ptr) => return Ok(Ok(ptr)),
            Err(refused) => refused,
        };
        self.after_refused_growth(request, stream, capturing, refused)
    }

    /// The steps where growth was refused: what is free somewhere, whoever has to be waited for.
    fn after_refused_growth(
        &self,
        request: &Request,
        stream: StreamRef,
        capturing: bool,
        mut refused: Refusal,
    ) -> Result<Result<DevicePtr, Refusal>> {
        {
            let mut state = self.state.lock();
            state.heaps.refused();
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
        // What other threads gave back meanwhile may fit, and may belong to any stream.
        for _ in 0..LAST_TRIES {
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

    /// Reclaims what threads keep, and then what other streams have and is done.
    fn reclaim_and_take(
        &self,
        request: &Request,
        stream: StreamRef,
        capturing: bool,
    ) -> Result<Option<DevicePtr>> {
        // What threads keep is reclaimed in two steps: all of it is much work, and saves only memory.
        for how in [Reclaim::Large, Reclaim::All] {
            // Within a capture, growth may be refused for reasons of its own.
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

    /// Gives regions back that are free from end to end, if growth would otherwise set a new peak: together
    /// with what they leave, one larger region serves where several smaller ones did not. Upstream waits for
    /// the device to free them: not while streams are far behind.
    fn make_room(&self, request: &Request, stream: StreamRef) -> Result<()> {
        let sets_a_peak = || {
            let state = self.state.lock();
            let totals = state.heaps.totals();
            let growth = state.heaps.growth(request).map_or(0, |growth| growth.preferred);
            totals.bytes_reserved + growth > totals.peak_bytes_reserved
        };
        if self.maps_pages || self.upstream_is_ordered || !sets_a_peak() {
            return Ok(());
        }
        self.collect_completed(Some(request), Some(stream), true)?;
        if !self.state.lock().backlog.is_long() {
            let keep = self.bytes_reserved().saturating_sub(request.bytes);
            self.release_free_regions(keep, stream);
        }
        Ok(())
    }

    /// What other streams have and is done, if they keep up with the host.
    fn take_from_others(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        // A backlog ends only where somebody looks.
        let is_behind = self.state.lock().backlog.is_long();
        if !self.reuse.completed || !(is_behind || self.others_could_serve(request, stream)) {
            return Ok(None);
        }
        self.collect_completed(Some(request), Some(stream), true)?;
        Ok(self.try_take(request, stream))
    }

    /// What lies with streams that may be gone, where that is much and streams keep up with the host.
    fn take_lost(&self, request: &Request, stream: StreamRef, bytes: u64) -> Result<Option<DevicePtr>> {
        if self.state.lock().backlog.is_long() || bytes <= self.bytes_reserved() / 8 {
            return Ok(None);
        }
        // Growth may serve as well: only a lost device stops here.
        self.reclaim(request, stream).or_else(|error| match self.health.is_lost() {
            true => Err(error),
            false => Ok(None),
        })
    }

    /// What other streams have, once there is no more memory: what is done first, then what can be waited
    /// for.
    fn wait_for_others(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        if self.reuse.completed {
            self.collect_completed(Some(request), Some(stream), false)?;
            if let Some(ptr) = self.try_take(request, stream) {
                return Ok(Some(ptr));
            }
            // In several places it may be enough.
            if self.maps_pages
                && let Ok(ptr) = self.grow(request, stream, &mut None, |ladder| &mut ladder.completed)?
            {
                return Ok(Some(ptr));
            }
        }
        self.take_from_best_donor(request, stream)
    }

    fn any_block_fits(&self, request: &Request) -> bool {
        let state = self.state.lock();
        let fits = |owner| state.heaps.find(owner, Epoch::MAX, request).is_some();
        fits(ANY_STREAM) || state.streams.iter().any(|(owner, _)| fits(owner))
    }

    fn try_take(&self, request: &Request, stream: StreamRef) -> Option<DevicePtr> {
        let mut state = self.state.lock();
        let owner = state.owner_of(stream);
        state.take_ready(owner, request, self.reuse).or_else(|| {
            let ptr = state.heaps.take_with_unowned(owner, request)?;
            state.ladder.own_stream += 1;
            Some(ptr)
        })
    }

    /// A block of one other stream that is done, or that this one is made to wait for.
    fn take_from_best_donor(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        if !self.reuse.completed && !self.reuse.waited {
            return Ok(None);
        }
        for donor in self.donors_with_fit(request, stream) {
            let Some(recorded_event) = self.recorded_event_of(donor, Some(stream))? else { continue };
            if self.reuse.completed && self.complete_if_reached(&recorded_event, Some(request))? {
                if let Some(ptr) = self.try_take(request, stream) {
                    return Ok(Some(ptr));
                }
            } else if self.reuse.waited
                && let Some(ptr) = self.wait_and_take(&recorded_event, request, stream)?
            {
                return Ok(Some(ptr));
            }
        }
        Ok(None)
    }

    /// The other streams that have a block that fits, the best fit first.
    fn donors_with_fit(&self, request: &Request, stream: StreamRef) -> Vec<Donor> {
        let mut state = self.state.lock();
        let me = state.owner_of(stream);
        let State { heaps, streams, .. } = &*state;
        let mut found: Vec<(u64, Donor)> = streams
            .iter()
            .filter(|(owner, _)| *owner != me)
            .filter_map(|(owner, slot)| {
                let fit = heaps.find(owner, Epoch::MAX, request)?;
                Some((fit.bytes, Donor { id: slot.id, epoch: fit.epoch }))
            })
            .collect();
        found.sort_by_key(|(bytes, _)| *bytes);
        found.into_iter().map(|(_, donor)| donor).collect()
    }

    /// Makes `stream` wait for the recorded event and hands a block out that the recorded event covers.
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
        let me = state.owner_of(stream);
        let Some((donor, _)) = state.streams.find_mut(recorded_event.donor.id) else { return Ok(None) };
        state.streams.waited(me, donor, recorded_event.donor.epoch, &recorded_event.seen);
        let Some(ptr) = state.heaps.take(donor, recorded_event.donor.epoch, request) else { return Ok(None) };
        state.ladder.waited += 1;
        Ok(Some(ptr))
    }

    /// Whether the blocks of all others together are worth asking for.
    fn others_could_serve(&self, request: &Request, stream: StreamRef) -> bool {
        let mut state = self.state.lock();
        let me = state.owner_of(stream);
        let State { heaps, streams, .. } = &*state;
        let free_bytes = |owner| heaps.free_bytes_for(Some(request), owner);
        let others: u64 =
            streams.iter().map(|(owner, _)| owner).filter(|owner| *owner != me).map(free_bytes).sum();
        others > 0 && others + free_bytes(ANY_STREAM) + free_bytes(me) >= request.bytes
    }

    /// Bytes that no recorded event can be had for: their streams could not be recorded on and have not
    /// called since.
    fn lost_bytes(&self) -> u64 {
        let state = self.state.lock();
        let lost = state.streams.iter().filter(|(_, slot)| slot.cell.is_record_requested());
        lost.map(|(owner, _)| state.heaps.free_bytes(owner)).sum()
    }

    /// Waits for the streams that own blocks and tries again, if there are any.
    fn reclaim(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        if self.owned_free_bytes(None) == 0 {
            return Ok(None);
        }
        self.wait_for_owners(Some(stream))?;
        let mut state = self.state.lock();
        let Some(ptr) = state.heaps.take(ANY_STREAM, Epoch::MAX, request) else {
            drop(state);
            // Another thread may have given a block back on this stream meanwhile.
            return Ok(self.try_take(request, stream));
        };
        state.ladder.reclaim += 1;
        Ok(Some(ptr))
    }
}
