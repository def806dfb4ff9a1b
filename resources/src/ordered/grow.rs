//! The step of the ladder that takes memory: a region from upstream, or what a store takes from the driver by
//! itself.

use std::sync::atomic::Ordering;

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{
    ALLOCATION_ALIGNMENT, DeviceMemoryResource, DevicePtr, Error, ErrorKind, LadderCounts, Layout,
    MemoryInfo, Result, StreamRef,
};

use super::device::{Device, Leaving, Promise, Reading};
use super::pressure::Pressure;
use super::shortage::DEVICE_PAGE;
use super::store::{ANYONE, Epoch, Growth, Lack, Owner, Request};
use super::trace::event;
use super::{Core, Ordered, State};
use crate::pool::PoolErrand;

/// Why there is no new memory for a request.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The resource may hold no more.
    OwnLimit,
    /// The driver or upstream has no more: its error, if it was asked for memory.
    Below(Option<Error>),
    /// There is less than the request, however much is given back; what the device said, if it was asked.
    Hopeless(Option<MemoryInfo>),
}

/// How often memory went back to the device up to a moment.
#[derive(Clone, Copy)]
pub(super) struct Returns {
    all: u64,
    own: u64,
}

impl Returns {
    /// Whether others returned some from this moment to that one.
    pub(super) fn others_until(self, later: Self) -> bool {
        later.all - self.all > later.own - self.own
    }
}

/// How the device was looked at for a region.
#[derive(Default)]
struct Looks {
    /// Whether it was since the region was asked for.
    is_fresh: bool,
    waits: u32,
}

/// How new memory is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In handles of the sizes that serve best later.
    Usual,
    /// In one call, after a rival took a part of what there was: then one of the two gets it, and not
    /// neither.
    AtOnce,
    /// Not at all: from what is free here already.
    Nothing,
}

/// An errand, and the promise of its new memory, where that comes from a device whose books are kept.
type Planned<'a> = (PoolErrand, Option<Promise<'a>>);

impl Core {
    /// What the device has free, where `request` may take from it.
    pub(super) fn look_at(&self, device: &Device, request: &Request) -> Result<Reading> {
        let wanted = request.padded_bytes().saturating_add(DEVICE_PAGE);
        device.read(&*self.driver, wanted).map_err(|error| self.driver_error(error))
    }

    /// How often memory went back to the device so far, and how often it was this resource's.
    pub(super) fn returns(&self) -> Returns {
        let own = self.own_returns.load(Ordering::Acquire);
        Returns { all: self.device.as_ref().map_or(own, |device| device.returns()), own }
    }

    /// Counts bytes of this resource as leaving; see [`Device::leave`].
    pub(super) fn leave(&self, bytes: u64) -> Option<Leaving<'_>> {
        self.device.as_ref().map(|device| device.leave(bytes))
    }

    /// Notes that memory went back to the device.
    pub(super) fn note_return(&self) {
        self.own_returns.fetch_add(1, Ordering::Release);
        if let Some(device) = &self.device {
            device.note_return();
        }
    }
}

impl<R: DeviceMemoryResource> Ordered<R> {
    /// Takes new memory and serves the request from it, which counts as `step`. `reading` is what the device
    /// had a moment ago, if it was asked.
    pub(super) fn grow(
        &self,
        request: &Request,
        stream: StreamRef,
        reading: &mut Option<Reading>,
        step: impl FnOnce(&mut LadderCounts) -> &mut u64,
    ) -> Result<Result<DevicePtr, Refusal>> {
        if self.runs_errands {
            return match self.grow_by_errand(request, stream, reading)? {
                Ok(ptr) => {
                    let mut state = self.state.lock();
                    *step(&mut state.ladder) += 1;
                    let tidying = state.store.errand_to_tidy();
                    drop(state);
                    // The block is there: what stays untidy is no error of this call.
                    if let Some(Err(error)) = tidying.map(|errand| self.run(errand)) {
                        event!(self, WARN, "mappings could not be undone", %error);
                    }
                    Ok(Ok(ptr))
                }
                refused => Ok(refused),
            };
        }
        let Some(growth) = self.state.lock().store.growth(request) else {
            self.trace_refusal(request, None, &"its own maximum");
            return Ok(Err(Refusal::OwnLimit));
        };
        let watch = self.watch();
        let (base, bytes) = match self.take_region(growth, stream, reading)? {
            Ok(region) => region,
            Err(refused) => {
                self.trace_refusal(request, reading.as_ref(), &"there is too little below");
                return Ok(Err(Refusal::Below(refused)));
            }
        };
        self.trace_growth(request, stream, bytes, &watch);
        let mut state = self.state.lock();
        let owner = self.add_region(&mut state, base, bytes, stream);
        let ptr = state.store.take(owner, Epoch::MAX, request).expect("growth covers the request");
        *step(&mut state.ladder) += 1;
        Ok(Ok(ptr))
    }

    /// The same for a store that gets its memory by itself, from as much as the device has.
    fn grow_by_errand(
        &self,
        request: &Request,
        stream: StreamRef,
        reading: &mut Option<Reading>,
    ) -> Result<Result<DevicePtr, Refusal>> {
        let mut refused = None;
        for way in [Way::Usual, Way::AtOnce, Way::AtOnce, Way::Nothing] {
            let plan = |state: &mut State, most_new| {
                let owner = state.owner_of(stream);
                state.store.errand_for(owner, request, most_new)
            };
            let (mut errand, promise) = match self.plan_errand(request, way, reading, plan)? {
                Ok(planned) => planned,
                Err(Lack::OwnLimit) if refused.is_none() => return Ok(Err(Refusal::OwnLimit)),
                // Nothing was taken, and nothing less would do.
                Err(_) if refused.is_none() && way == Way::Usual => return Ok(Err(Refusal::Below(None))),
                Err(_) => continue,
            };
            let (bytes, watch) = (errand.new_bytes(), self.watch());
            let span = self.span("growth", bytes, stream);
            let carried_out = span.in_scope(|| errand.carry_out(&*self.driver));
            drop(promise);
            let mut state = self.state.lock();
            match carried_out {
                Ok(()) => {
                    if let Some(ptr) = errand.finish(&mut state.store) {
                        drop(state);
                        self.trace_growth(request, stream, bytes, &watch);
                        return Ok(Ok(ptr));
                    }
                }
                Err(error) => {
                    errand.abandon(&mut state.store);
                    drop(state);
                    self.note_return();
                    let is_out_of_memory = error.is_out_of_memory();
                    let error = self.driver_error(error);
                    if !is_out_of_memory {
                        return Err(error);
                    }
                    self.trace_rival(bytes, &error);
                    refused = Some(error);
                }
            }
        }
        Ok(Err(Refusal::Below(refused)))
    }

    /// An errand for which there is memory, and the promise of it.
    fn plan_errand(
        &self,
        request: &Request,
        way: Way,
        reading: &mut Option<Reading>,
        plan: impl Fn(&mut State, u64) -> Result<PoolErrand, Lack>,
    ) -> Result<Result<Planned<'_>, Lack>> {
        let Some(device) = &self.device else {
            let most_new = if way == Way::Nothing { 0 } else { u64::MAX };
            return Ok(plan(&mut self.state.lock(), most_new).map(|errand| (errand, None)));
        };
        let mut waits = 0;
        loop {
            let earlier = reading.take();
            let now = match earlier {
                Some(reading) => reading,
                None => self.look_at(device, request)?,
            };
            let most_new = match way {
                Way::Usual => now.most_new(),
                Way::AtOnce => now.available,
                Way::Nothing => 0,
            };
            let mut errand = match plan(&mut self.state.lock(), most_new) {
                Ok(errand) => errand,
                // There may be more by now.
                Err(Lack::NewMemory) if earlier.is_some() => continue,
                Err(Lack::NewMemory) if way != Way::Nothing && device.wait_for_rivals(&now, &mut waits) => {
                    continue;
                }
                Err(lack) => {
                    let why = match lack {
                        Lack::OwnLimit => "its own maximum",
                        Lack::NewMemory => "the device has too little",
                    };
                    self.trace_refusal(request, Some(&now), &why);
                    return Ok(Err(lack));
                }
            };
            if way != Way::Usual || errand.new_bytes() > now.available {
                errand.take_at_once();
            }
            match device.promise(errand.new_bytes(), &now) {
                Some(promise) => return Ok(Ok((errand, Some(promise)))),
                // Others were promised some of it since: what is left?
                None => errand.abandon(&mut self.state.lock().store),
            }
        }
    }

    /// Adds a region for whom upstream's memory is ordered; says who that is.
    fn add_region(&self, state: &mut State, base: DevicePtr, bytes: u64, stream: StreamRef) -> Owner {
        let (owner, epoch) = if self.upstream_is_ordered {
            let owner = state.owner_of(stream);
            (owner, state.streams.slot(owner).epoch())
        } else {
            (ANYONE, 0)
        };
        state.store.add_region(base, bytes, owner, epoch);
        owner
    }

    /// Asks upstream for the preferred size, and for less where it refuses, or the device has not as much.
    /// The inner error is upstream's refusal, if it was asked.
    fn take_region(
        &self,
        growth: Growth,
        stream: StreamRef,
        reading: &mut Option<Reading>,
    ) -> Result<Result<(DevicePtr, u64), Option<Error>>> {
        let mut bytes = growth.preferred;
        let (mut refused, mut looks) = (None, Looks::default());
        loop {
            let promise = match &self.device {
                Some(device) => match self.promise_region(device, bytes, growth, reading, &mut looks)? {
                    Some(promise) => Some(promise),
                    None => match growth.after_refusal(bytes) {
                        Some(less) => {
                            bytes = less;
                            continue;
                        }
                        None => return Ok(Err(refused)),
                    },
                },
                None => None,
            };
            let span = self.span("region", bytes, stream);
            let answer = span.in_scope(|| self.upstream.allocate(Layout::new(bytes), stream));
            drop(promise);
            *reading = None;
            match answer {
                Ok(base) => {
                    debug_assert!(base.is_aligned_to(ALLOCATION_ALIGNMENT));
                    return Ok(Ok((base, bytes)));
                }
                // An upstream with a largest request says that the argument is invalid.
                Err(error) if error.is_out_of_memory() || error.kind() == ErrorKind::InvalidArgument => {
                    match growth.after_refusal(bytes) {
                        Some(less) => bytes = less,
                        None if error.is_out_of_memory() => return Ok(Err(Some(error))),
                        None => return Err(error),
                    }
                    refused = Some(error).filter(Error::is_out_of_memory);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The promise of a region's bytes; `None` where the device has less for certain. What it has is left in
    /// `reading`.
    fn promise_region<'a>(
        &self,
        device: &'a Device,
        bytes: u64,
        growth: Growth,
        reading: &mut Option<Reading>,
        looks: &mut Looks,
    ) -> Result<Option<Promise<'a>>> {
        loop {
            let now = match *reading {
                Some(reading) => reading,
                None => {
                    looks.is_fresh = true;
                    let wanted = growth.least.saturating_add(DEVICE_PAGE);
                    device.read(&*self.driver, wanted).map_err(|error| self.driver_error(error))?
                }
            };
            // Small blocks may lie in pages that the driver has already.
            if bytes >= DEVICE_PAGE && now.rules_out(bytes) {
                // Of an earlier reading there may be more by now.
                let is_certain = looks.is_fresh
                    && (bytes > growth.least || !device.wait_for_rivals(&now, &mut looks.waits));
                if is_certain {
                    *reading = Some(now);
                    return Ok(None);
                }
            } else if let Some(promise) = device.promise(bytes, &now) {
                return Ok(Some(promise));
            }
            *reading = None;
        }
    }

    /// Takes the first memory, before anybody asks: all of it, in whole pages where the store has such.
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) where it cannot be had; what the driver or upstream reports.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<()> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let layout = Layout::new(bytes);
        let too_large = || Error::request_too_large(layout, StreamRef::LEGACY);
        let request = Request::new(layout).ok_or_else(too_large)?;
        if self.runs_errands {
            self.admit_newcomers()?;
        }
        let (mut pressure, watch) = (Pressure::default(), self.watch());
        loop {
            let returns = self.returns();
            let refused = match self.reserve_once(&request)? {
                Ok(()) => {
                    self.trace_growth(&request, StreamRef::LEGACY, self.bytes_reserved(), &watch);
                    return Ok(());
                }
                Err(refused) => refused,
            };
            let may_be_had = matches!(refused, Refusal::Below(_))
                && self.ask_others(&mut pressure, returns, &request, StreamRef::LEGACY)?;
            if !may_be_had {
                return Err(self.out_of_memory(&request, StreamRef::LEGACY, refused));
            }
        }
    }

    fn reserve_once(&self, request: &Request) -> Result<Result<(), Refusal>> {
        let mut reading = None;
        if !self.runs_errands {
            let growth =
                Growth { preferred: request.bytes, least: request.bytes, unit: ALLOCATION_ALIGNMENT };
            let (base, bytes) = match self.take_region(growth, StreamRef::LEGACY, &mut reading)? {
                Ok(region) => region,
                Err(refused) => return Ok(Err(Refusal::Below(refused))),
            };
            let mut state = self.state.lock();
            self.add_region(&mut state, base, bytes, StreamRef::LEGACY);
            return Ok(Ok(()));
        }
        let mut refused = None;
        for way in [Way::Usual, Way::AtOnce] {
            let plan = |state: &mut State, most_new| state.store.errand_to_reserve(request.bytes, most_new);
            let (errand, promise) = match self.plan_errand(request, way, &mut reading, plan)? {
                Ok(planned) => planned,
                Err(Lack::OwnLimit) => return Ok(Err(Refusal::OwnLimit)),
                Err(Lack::NewMemory) => return Ok(Err(Refusal::Below(refused))),
            };
            let run = self.run(errand);
            drop(promise);
            match run {
                Ok(_) => return Ok(Ok(())),
                Err(error) if error.is_out_of_memory() => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        Ok(Err(Refusal::Below(refused)))
    }
}
