//! The steps of the ladder that call the driver or upstream.

use millpond_core::{
    ALLOCATION_ALIGNMENT, DeviceMemoryResource, DevicePtr, Error, ErrorKind, LadderCounts, Layout, Result,
    StreamRef,
};

use super::points::{Donor, Point};
use super::pressure::Pressure;
use super::store::{ANYONE, Epoch, Errand, Fit, Gather, Growth, Owner, Request, Store};
use super::{Ordered, State};

/// How often other threads may come in between before a request that somebody's block would serve fails.
const LAST_TRIES: usize = 8;

impl<R: DeviceMemoryResource, S: Store> Ordered<R, S> {
    /// Goes down the ladder beyond the steps that need no driver.
    #[cold]
    pub(super) fn climb(&self, request: &Request, stream: StreamRef) -> Result<DevicePtr> {
        let exact = request.exact();
        let mut pressure = Pressure::default();
        loop {
            let slow = self.slow.lock();
            if self.is_hopeless(&exact) {
                return Err(self.out_of_memory(&exact, stream, None));
            }
            self.admit_newcomers()?;
            let mut refused = match self.climb_for(request, stream)? {
                Ok(ptr) => return Ok(ptr),
                Err(refused) => refused,
            };
            if exact != *request {
                match self.climb_for(&exact, stream)? {
                    Ok(ptr) => return Ok(ptr),
                    Err(again) => refused = again,
                }
            }
            // Others are asked without this resource's locks: they may be asking, too.
            drop(slow);
            if refused.is_none() || !self.ask_others(&mut pressure, request, stream)? {
                return Err(self.out_of_memory(&exact, stream, refused));
            }
        }
    }

    /// Whether no state of memory would serve the request. Then what threads keep is taken back, for the
    /// report: it is free, too.
    fn is_hopeless(&self, request: &Request) -> bool {
        let mut state = self.state.lock();
        let is_hopeless = !state.store.can_ever_serve(request);
        if is_hopeless {
            state.store.gather(Gather::Everything);
        }
        is_hopeless
    }

    /// The inner error is upstream's last refusal, if it was asked.
    fn climb_for(&self, request: &Request, stream: StreamRef) -> Result<Result<DevicePtr, Option<Error>>> {
        {
            // Here nobody uses a stream's event: all who do hold the lock, or a ticket.
            let mut state = self.state.lock();
            let State { store, streams, .. } = &mut *state;
            streams.sweep(store);
        }
        // Recording, querying, waiting and synchronising would break the capture of a graph, or become part
        // of it.
        let capturing = self.is_capturing(stream)?;
        if !capturing && self.reuse.completed && self.collection_is_due(request, stream) {
            self.collect_completed(Some(request), stream)?;
        }
        // Another thread may have brought memory while this one waited for the lock.
        if let Some(ptr) = self.try_hit(request, stream) {
            return Ok(Ok(ptr));
        }
        if let Some(ptr) = self.gather_and_take(request, stream, capturing)? {
            return Ok(Ok(ptr));
        }
        if !capturing && let Some(ptr) = self.make_room(request, stream)? {
            return Ok(Ok(ptr));
        }
        let mut refused = match self.grow(request, stream, |ladder| &mut ladder.grow)? {
            Ok(ptr) => return Ok(Ok(ptr)),
            Err(refused) => refused,
        };
        {
            let mut state = self.state.lock();
            state.store.refused();
            state.store.gather(Gather::All);
        }
        if let Some(ptr) = self.try_hit(request, stream) {
            return Ok(Ok(ptr));
        }
        if !capturing && let Some(ptr) = self.reclaim(request, stream)? {
            return Ok(Ok(ptr));
        }
        if self.runs_errands {
            match self.grow(request, stream, |ladder| &mut ladder.reclaim)? {
                Ok(ptr) => return Ok(Ok(ptr)),
                Err(again) => refused = again,
            }
        }
        if self.release_free_regions(0, stream) > 0 {
            match self.grow(request, stream, |ladder| &mut ladder.reclaim)? {
                Ok(ptr) => return Ok(Ok(ptr)),
                Err(again) => refused = again,
            }
        }
        // What other threads gave back meanwhile may fit, and may belong to any stream.
        for _ in 0..LAST_TRIES {
            self.state.lock().store.gather(Gather::All);
            if capturing || !self.anybody_has_a_fit(request) {
                break;
            }
            if let Some(ptr) = self.take_from_others(request, stream)? {
                return Ok(Ok(ptr));
            }
            if let Some(ptr) = self.reclaim(request, stream)? {
                return Ok(Ok(ptr));
            }
        }
        Ok(Err(refused))
    }

    /// Takes back what threads keep, and then what other streams have.
    fn gather_and_take(
        &self,
        request: &Request,
        stream: StreamRef,
        capturing: bool,
    ) -> Result<Option<DevicePtr>> {
        // What threads keep is taken back in two steps: all of it is much work, and saves only memory.
        for how in [Gather::Large, Gather::All] {
            // Within a capture, growth may be refused for reasons of its own.
            let only_for = (!capturing).then_some(request);
            let gathered = self.state.lock().store.gather_for(only_for, how);
            if gathered && let Some(ptr) = self.try_hit(request, stream) {
                return Ok(Some(ptr));
            }
            if (gathered || how == Gather::Large)
                && !capturing
                && let Some(ptr) = self.take_from_others(request, stream)?
            {
                return Ok(Some(ptr));
            }
        }
        Ok(None)
    }

    /// Gives regions back that are free from end to end, if growth would otherwise set a new peak: together
    /// with what they leave, one larger region serves where several smaller ones did not.
    fn make_room(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        let sets_a_peak = || {
            let state = self.state.lock();
            let totals = state.store.totals();
            let growth = state.store.growth(request).map_or(0, |growth| growth.preferred);
            totals.bytes_reserved + growth > totals.peak_bytes_reserved
        };
        if self.runs_errands {
            // What is anyone's joins, and can be put together, whosever it was.
            if self.owned_free_bytes(Some(request)) == 0 {
                return Ok(None);
            }
            self.collect_completed(Some(request), stream)?;
            return Ok(self.try_hit(request, stream));
        }
        if !self.upstream_is_ordered && sets_a_peak() {
            self.collect_completed(Some(request), stream)?;
            let keep = self.bytes_reserved().saturating_sub(request.bytes);
            self.release_free_regions(keep, stream);
        }
        Ok(None)
    }

    /// The steps between streams: what is ordered, done, or can be waited for; and what lies with streams
    /// that may be gone, where that is much.
    fn take_from_others(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        if let Some(ptr) = self.take_from_best_donor(request, stream)? {
            return Ok(Some(ptr));
        }
        if self.reuse.completed && self.others_could_serve(request, stream) {
            self.collect_completed(Some(request), stream)?;
            if let Some(ptr) = self.try_hit(request, stream) {
                return Ok(Some(ptr));
            }
        }
        if self.lost_bytes() > self.bytes_reserved() / 8 {
            // Growth may serve as well: only a lost device stops here.
            return self.reclaim(request, stream).or_else(|error| match self.health.is_lost() {
                true => Err(error),
                false => Ok(None),
            });
        }
        Ok(None)
    }

    fn anybody_has_a_fit(&self, request: &Request) -> bool {
        let state = self.state.lock();
        let fits = |owner| state.store.find(owner, Epoch::MAX, request).is_some();
        fits(ANYONE) || state.streams.iter().any(|(owner, _)| fits(owner))
    }

    fn collection_is_due(&self, request: &Request, stream: StreamRef) -> bool {
        let mut state = self.state.lock();
        let owner = state.owner_of(stream);
        let largest = state.largest_without_collection(request);
        let fits = |fit: Fit| fit.bytes <= largest;
        largest < u64::MAX && !state.store.find(owner, Epoch::MAX, request).is_some_and(fits)
    }

    fn try_hit(&self, request: &Request, stream: StreamRef) -> Option<DevicePtr> {
        let mut state = self.state.lock();
        let owner = state.owner_of(stream);
        state.hit(owner, request, self.reuse, u64::MAX).or_else(|| {
            let joined = state.store.join_with_anyones(owner, request);
            joined.then(|| state.hit(owner, request, self.reuse, u64::MAX))?
        })
    }

    /// Steps three and four: one other stream has a block that fits.
    fn take_from_best_donor(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        if !self.reuse.completed && !self.reuse.waited {
            return Ok(None);
        }
        for donor in self.donors_with_fit(request, stream) {
            let Some(point) = self.point_of(donor, stream)? else { continue };
            if self.reuse.completed && self.is_done(&point, Some(request))? {
                if let Some(ptr) = self.try_hit(request, stream) {
                    return Ok(Some(ptr));
                }
            } else if self.reuse.waited
                && let Some(ptr) = self.wait_and_take(&point, request, stream)?
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
        let State { store, streams, .. } = &*state;
        let mut found: Vec<(u64, Donor)> = streams
            .iter()
            .filter(|(owner, _)| *owner != me)
            .filter_map(|(owner, slot)| {
                let fit = store.find(owner, Epoch::MAX, request)?;
                Some((fit.bytes, Donor { id: slot.id, epoch: fit.epoch }))
            })
            .collect();
        found.sort_by_key(|(bytes, _)| *bytes);
        found.into_iter().map(|(_, donor)| donor).collect()
    }

    /// Makes `stream` wait for the point and hands a block out that the point covers.
    fn wait_and_take(
        &self,
        point: &Point,
        request: &Request,
        stream: StreamRef,
    ) -> Result<Option<DevicePtr>> {
        if let Err(error) = self.driver.stream_wait_event(stream, point.event) {
            self.do_without(point.donor.id, error)?;
            return Ok(None);
        }
        let mut state = self.state.lock();
        let me = state.owner_of(stream);
        let Some((donor, _)) = state.streams.find_mut(point.donor.id) else { return Ok(None) };
        state.streams.waited(me, donor, point.donor.epoch, &point.seen);
        let Some(ptr) = state.store.take(donor, point.donor.epoch, request) else { return Ok(None) };
        state.ladder.waited += 1;
        Ok(Some(ptr))
    }

    /// Whether the blocks of all others together are worth asking for.
    fn others_could_serve(&self, request: &Request, stream: StreamRef) -> bool {
        let mut state = self.state.lock();
        let me = state.owner_of(stream);
        let State { store, streams, .. } = &*state;
        let free_bytes = |owner| store.free_bytes_for(Some(request), owner);
        let others: u64 =
            streams.iter().map(|(owner, _)| owner).filter(|owner| *owner != me).map(free_bytes).sum();
        others > 0 && others + free_bytes(ANYONE) + free_bytes(me) >= request.bytes
    }

    /// Bytes that no point can be had for: their streams could not be recorded on and have not called since.
    fn lost_bytes(&self) -> u64 {
        let state = self.state.lock();
        let lost = state.streams.iter().filter(|(_, slot)| slot.cell.is_wanted());
        lost.map(|(owner, _)| state.store.free_bytes(owner)).sum()
    }

    /// Takes memory from upstream and serves the request from it, which counts as `step`. The inner error is
    /// upstream's refusal, or
    /// `None` where the resource's own limit refused.
    fn grow(
        &self,
        request: &Request,
        stream: StreamRef,
        step: impl FnOnce(&mut LadderCounts) -> &mut u64,
    ) -> Result<Result<DevicePtr, Option<Error>>> {
        if self.runs_errands {
            return self.grow_by_errand(request, stream, step);
        }
        let Some(growth) = self.state.lock().store.growth(request) else { return Ok(Err(None)) };
        let (base, bytes) = match self.take_region(growth, stream)? {
            Ok(region) => region,
            Err(refused) => return Ok(Err(Some(refused))),
        };
        let mut state = self.state.lock();
        let owner = self.add_region(&mut state, base, bytes, stream);
        let ptr = state.store.take(owner, Epoch::MAX, request).expect("growth covers the request");
        *step(&mut state.ladder) += 1;
        Ok(Ok(ptr))
    }

    /// The same for a store that gets its memory by itself: with as much new memory as it likes; where the
    /// device has less, with what that has; at last with none.
    fn grow_by_errand(
        &self,
        request: &Request,
        stream: StreamRef,
        step: impl FnOnce(&mut LadderCounts) -> &mut u64,
    ) -> Result<Result<DevicePtr, Option<Error>>> {
        let mut refused = None;
        for attempt in 0..3 {
            let most_new = match attempt {
                0 => u64::MAX,
                1 => self.driver.mem_get_info().map_or(0, |info| info.free),
                _ => 0,
            };
            let errand = {
                let mut state = self.state.lock();
                let owner = state.owner_of(stream);
                state.store.errand_for(owner, request, most_new)
            };
            let Some(mut errand) = errand else { continue };
            let carried_out = errand.carry_out(&*self.driver);
            let mut state = self.state.lock();
            match carried_out {
                Ok(()) => {
                    if let Some(ptr) = errand.finish(&mut state.store) {
                        *step(&mut state.ladder) += 1;
                        let tidying = state.store.errand_to_tidy();
                        drop(state);
                        // The block is there: what stays untidy is no error of this call.
                        if let Some(Err(error)) = tidying.map(|errand| self.run(errand)) {
                            tracing::warn!(target: "millpond::pool", %error, "mappings could not be undone");
                        }
                        return Ok(Ok(ptr));
                    }
                }
                Err(error) => {
                    errand.abandon(&mut state.store);
                    drop(state);
                    let is_out_of_memory = error.is_out_of_memory();
                    let error = self.driver_error(error);
                    if !is_out_of_memory {
                        return Err(error);
                    }
                    refused = Some(error);
                }
            }
        }
        Ok(Err(refused))
    }

    /// Adds a region for whom upstream's memory is ordered; says who that is.
    fn add_region(&self, state: &mut State<S>, base: DevicePtr, bytes: u64, stream: StreamRef) -> Owner {
        let (owner, epoch) = if self.upstream_is_ordered {
            let owner = state.owner_of(stream);
            (owner, state.streams.slot(owner).epoch())
        } else {
            (ANYONE, 0)
        };
        state.store.add_region(base, bytes, owner, epoch);
        owner
    }

    /// Asks upstream for the preferred size, and for less where it refuses.
    fn take_region(&self, growth: Growth, stream: StreamRef) -> Result<Result<(DevicePtr, u64), Error>> {
        let mut bytes = growth.preferred;
        loop {
            match self.upstream.allocate(Layout::new(bytes), stream) {
                Ok(base) => {
                    debug_assert!(base.is_aligned_to(ALLOCATION_ALIGNMENT));
                    tracing::debug!(target: "millpond::pool", bytes, "took a region from upstream");
                    return Ok(Ok((base, bytes)));
                }
                // An upstream with a largest request says that the argument is invalid.
                Err(error) if error.is_out_of_memory() || error.kind() == ErrorKind::InvalidArgument => {
                    match growth.after_refusal(bytes) {
                        Some(less) => bytes = less,
                        None if error.is_out_of_memory() => return Ok(Err(error)),
                        None => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the first region, before anybody asks.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<()> {
        if self.runs_errands {
            self.admit_newcomers()?;
            let errand = self.state.lock().store.errand_to_reserve(bytes);
            return match errand {
                Some(errand) => self.run(errand).map(|_| ()),
                None => Ok(()),
            };
        }
        let growth = Growth { preferred: bytes, least: bytes, unit: ALLOCATION_ALIGNMENT };
        let (base, bytes) = self.take_region(growth, StreamRef::LEGACY)??;
        let mut state = self.state.lock();
        self.add_region(&mut state, base, bytes, StreamRef::LEGACY);
        Ok(())
    }

    /// Waits for the device and tries again, if any stream has blocks that waiting would free.
    fn reclaim(&self, request: &Request, stream: StreamRef) -> Result<Option<DevicePtr>> {
        if self.owned_free_bytes(None) == 0 {
            return Ok(None);
        }
        self.synchronize()?;
        let mut state = self.state.lock();
        let Some(ptr) = state.store.take(ANYONE, Epoch::MAX, request) else {
            drop(state);
            // Another thread may have given a block back on this stream meanwhile.
            return Ok(self.try_hit(request, stream));
        };
        state.ladder.reclaim += 1;
        Ok(Some(ptr))
    }
}
