//! Does the steps of the slow path: calls the driver and upstream, without the pool's lock.
//!
//! The [ladder](crate::pool::central::ladder) decides the steps. A step may begin a task or a record under
//! the lock. If the step panics, that task or record is ended too.
//!
//! A request that grows the pool makes these calls. `T` marks calls with the turn, and `L` calls that also
//! hold the pool's lock:
//!
//! ```text
//!    serve
//!       act(Look): look                       takes the turn, then reads the device and the stream
//! T L   decide: next, begin, try_rung         down the rungs, to `Rung::Grow`
//! T L      grow, plan, Heaps::plan_growth, Store::plan     a task: a region, or pages to map
//! T     act(Run): run_task, run_growth        in `abort_if_panics`
//! T        promise                            the device's books; too little: the ladder plans again
//! T        take_memory                        upstream's `allocate`, or `Task::make_calls`
//! T        report_segments, trace_growth      watchers and subscribers; the promise ends after them
//! T L   decide: note_task, commit_growth, Heaps::commit    the block; after an error: abort, try_again
//! T     tidy                                  removes mappings, if there are too many
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{
    ALLOCATION_ALIGNMENT, DeviceId, DeviceMemoryResource, DevicePtr, Error, Layout, Result, StreamRef,
};

use crate::heap::request::Request;
use crate::pool::central::device_books::{Device, Promise, Reading, Returns};
use crate::pool::central::peer_pool::PeerPool;
use crate::pool::central::peer_reclaim::PeerReclaim;
use crate::pool::central::steps::{Answer, Look, SlowRequest, Step};
use crate::pool::central::trace::event;
use crate::pool::central::turns::Turn;
use crate::pool::central::{Central, CentralCore, State};
use crate::store::{Task, Try};
use crate::tuning::DEVICE_PAGE;

/// The state of a call on the slow path between its steps.
#[derive(Default)]
struct Call<'a> {
    turn: Option<Turn<'a>>,
    /// How often memory had been returned before this attempt. The attempt may have missed later returns.
    returns: Returns,
    peers: PeerReclaim,
}

/// The outcome of a growth's request for a promise of the device's memory.
enum Promised<'a> {
    /// The growth may continue. If the pool uses the device's books, it has a promise.
    Yes(Option<Promise<'a>>),
    TooLittle(Reading),
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Serves a request that found no free block, step by step. Returns the block, or `None` for a request to
    /// reserve memory.
    ///
    /// # Errors
    /// [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory), or an error of the driver or upstream.
    #[cold]
    pub(crate) fn serve(&self, mut slow: SlowRequest) -> Result<Option<DevicePtr>> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let mut call = Call::default();
        let mut step = Step::Look;
        loop {
            let (done, answer) = self.act(&mut slow, step, &mut call);
            step = self.decide(&mut slow, done, answer);
            slow.discarded.clear();
            if slow.told.is_some() || slow.flushed > 0 {
                step = self.tell(&mut slow, step);
            }
            match step {
                Step::Served(ptr, tidying) => {
                    self.tidy(&slow, ptr, tidying);
                    return Ok(Some(ptr));
                }
                Step::Reserved => return Ok(None),
                Step::Fail(error) => return Err(error),
                Step::Refuse(why) => {
                    drop(call.turn);
                    return Err(self.out_of_memory(&slow.exact, slow.stream, why));
                }
                _ => {}
            }
        }
    }

    /// Returns the next step.
    fn decide(&self, slow: &mut SlowRequest, step: Step, answer: Answer) -> Step {
        let mut state = self.state.lock();
        if matches!(step, Step::Look) {
            state.forget_idle_streams(&self.turns);
        }
        let next = state.next(slow, step, answer);
        slow.flushed = std::mem::take(&mut state.heaps.flushed);
        next
    }

    /// Does a step, and returns it with its answer.
    fn act<'a>(&'a self, slow: &mut SlowRequest, step: Step, call: &mut Call<'a>) -> (Step, Answer) {
        let stream = slow.stream;
        let answer = match step {
            Step::Run(task) => {
                let (task, answer) = self.run_task(slow, task);
                return (Step::Run(task), answer);
            }
            Step::Collect(mut inquiry) => {
                self.query(&mut inquiry, Some(stream));
                return (Step::Collect(inquiry), Answer::Done);
            }
            Step::Look => self.look(slow, call),
            Step::WaitFor(donor) => self.recorded_event_of(donor, Some(stream)).and_then(|recorded| {
                let Some(event) = recorded else { return Ok(Answer::Skipped) };
                if self.rules.reuse.completed && self.is_reached(&event)? {
                    return Ok(Answer::Ordered { event, is_reached: true });
                }
                if let Err(error) = self.driver.stream_wait_event(stream, event.event) {
                    return self.skip_stream(donor.id, error).map(|()| Answer::Skipped);
                }
                self.trace_wait(stream, donor.id.get(), slow.request.requested);
                Ok(Answer::Ordered { event, is_reached: false })
            }),
            // Growth may still serve the request.
            Step::Synchronize { may_fail } => match self.wait_for_owners(Some(stream)) {
                Err(_) if may_fail && !self.health.is_lost() => Ok(Answer::Skipped),
                waited => waited.map(|()| Answer::Done),
            },
            Step::AwaitRivals(reading) => {
                let ended =
                    self.device.as_ref().is_some_and(|it| it.wait_for_rivals(&reading, &mut slow.waits));
                Ok(if ended { Answer::Done } else { Answer::Skipped })
            }
            Step::AskPeers => {
                // A peer pool may be asking this one at the same time, so this call gives up its turn here.
                call.turn = None;
                match self.ask_peer_pools(&mut call.peers, call.returns, &slow.usual, stream) {
                    Ok(true) => return (Step::Look, self.look(slow, call).unwrap_or_else(Answer::Failed)),
                    asked => asked.map(|_| Answer::Skipped),
                }
            }
            Step::Served(..) | Step::Reserved | Step::Refuse(_) | Step::Fail(_) => Ok(Answer::Skipped),
        };
        (step, answer.unwrap_or_else(Answer::Failed))
    }

    /// Begins an attempt: takes a turn, and looks at the device and the stream.
    fn look<'a>(&'a self, slow: &SlowRequest, call: &mut Call<'a>) -> Result<Answer> {
        if call.turn.is_none() {
            // Read this first: the request may miss memory that is returned later.
            call.returns = self.returns();
            call.turn = Some(self.turns.enter());
        }
        let mut look = Look::default();
        if slow.is_impossible {
            return Ok(Answer::Looked(look));
        }
        if let Some(idle) = slow.idle {
            (look.reading, look.is_beyond_device) = self.exceeds_device(&slow.exact, idle)?;
        }
        if !look.is_beyond_device {
            look.active_peers = self.active_peers()?;
            look.is_capturing = slow.serves && self.is_capturing(slow.stream)?;
        }
        Ok(Answer::Looked(look))
    }

    /// Makes the calls of a task, and answers its step.
    fn run_task(&self, slow: &mut SlowRequest, task: Task) -> (Task, Answer) {
        if task.is_growth() {
            return self.run_growth(slow, task);
        }
        let (task, outcome) = self.run_change(task, Some(self.below(slow.stream)));
        let answer = match outcome {
            Ok(()) => Answer::Done,
            Err(error) if task.is_admission() && self.health.is_lost() => Answer::Failed(error),
            Err(error) => {
                let (task, ()) = self.abort_if_panics(task, |task| self.warn_of(task, &error), |_| {});
                return (task, Answer::Skipped);
            }
        };
        (task, answer)
    }

    /// Makes the calls of a growth, if the device has enough memory: allocates its region from upstream, or
    /// maps its pages.
    fn run_growth(&self, slow: &mut SlowRequest, task: Task) -> (Task, Answer) {
        let (bytes, stream) = (task.new_bytes(), slow.stream);
        let run = |task: &mut Task| -> Result<Option<Reading>> {
            let watch = self.watch();
            let _promise = match self.promise(slow, task)? {
                Promised::Yes(promise) => promise,
                Promised::TooLittle(reading) => return Ok(Some(reading)),
            };
            let before = self.before(task);
            self.span("growth", bytes, stream).in_scope(|| self.take_memory(task, stream))?;
            self.report_segments(before, task);
            self.trace_growth(&slow.request, stream, bytes, &watch);
            if let (Some(checked), Task::Region(region)) = (&self.checked, &*task) {
                checked.arrived(region.base, region.bytes);
            }
            Ok(None)
        };
        let (task, outcome) = self.abort_if_panics(task, run, |task| self.undo_growth(task, stream));
        let answer = match outcome {
            Ok(None) => Answer::Done,
            Ok(Some(reading)) => Answer::TooLittle(reading),
            Err(error) if task.is_region() => Answer::Failed(error),
            Err(error) => {
                self.note_return();
                let trace = |_: &mut Task| {
                    if error.is_out_of_memory() {
                        self.trace_rival(bytes, &error);
                    }
                };
                let (task, ()) = self.abort_if_panics(task, trace, |_| {});
                return (task, Answer::Failed(error));
            }
        };
        (task, answer)
    }

    /// Gets the promise of a growth's memory, if the device has it. Changes the task to take the memory in
    /// one driver call, if the growth is [`Try::AtOnce`] or goes beyond a reading that is only a hint.
    fn promise(&self, slow: &mut SlowRequest, task: &mut Task) -> Result<Promised<'_>> {
        let bytes = task.new_bytes();
        let Some(device) = self.device.as_ref().filter(|_| bytes > 0) else { return Ok(Promised::Yes(None)) };
        // The driver serves regions below a page from pages that it already has.
        let is_in_page = task.is_region() && bytes < DEVICE_PAGE;
        loop {
            let earlier = slow.reading.take();
            let now = earlier.map_or_else(|| self.read_device(device, &slow.request), Ok)?;
            if bytes > now.most_new(slow.how) && !is_in_page {
                // The device may have more memory since an earlier reading.
                if earlier.is_some() {
                    continue;
                }
                return Ok(Promised::TooLittle(now));
            }
            if matches!(slow.how, Try::AtOnce(_)) || bytes > now.available {
                task.take_at_once();
            }
            // If another resource got a promise since the reading, the device is read again.
            if let Some(promise) = device.promise(bytes, &now) {
                return Ok(Promised::Yes(Some(promise)));
            }
        }
    }

    fn take_memory(&self, task: &mut Task, stream: StreamRef) -> Result<()> {
        if let Task::Region(region) = task {
            let base = self.upstream.allocate(Layout::new(region.bytes), stream)?;
            debug_assert!(base.is_aligned_to(ALLOCATION_ALIGNMENT));
            region.base = base;
            return Ok(());
        }
        task.make_calls(&*self.driver).map_err(|error| self.driver_error(error))
    }

    /// Undoes a growth whose run panicked: returns its region to upstream, or undoes its driver calls.
    fn undo_growth(&self, task: &mut Task, stream: StreamRef) {
        match task {
            Task::Region(region) if region.base != DevicePtr::NULL => {
                // SAFETY: upstream allocated the region with this layout, and no block of it was handed out.
                unsafe { self.upstream.deallocate(region.base, Layout::new(region.bytes), stream) };
            }
            task => task.undo(&*self.driver),
        }
    }

    /// Runs the task that remains after a request is served: the removal of mappings. The request has its
    /// block, so an error does not fail it.
    fn tidy(&self, slow: &SlowRequest, ptr: DevicePtr, tidying: Option<Task>) {
        let Some(task) = tidying else { return };
        self.free_if_panics(ptr, &slow.request, slow.stream, || {
            if let Err(error) = self.run_and_commit(task, None) {
                event!(self, WARN, "mappings could not be undone", %error);
            }
        });
    }

    /// Reports flushed blocks, and why a growth was not tried. If a subscriber panics, the step's task or
    /// record is ended, and its block is free again.
    fn tell(&self, slow: &mut SlowRequest, step: Step) -> Step {
        let (why, flushed) = (slow.told.take(), std::mem::take(&mut slow.flushed));
        let tell = || {
            self.trace_flush(flushed);
            if let Some(why) = why {
                self.trace_refusal(&slow.request, slow.reading.as_ref(), &why);
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(tell)) {
            match step {
                Step::Run(task) => self.state.lock().heaps.store.abort(task),
                Step::Collect(mut inquiry) => self.settle_all(&mut inquiry),
                Step::Served(ptr, tidying) => {
                    tidying.into_iter().for_each(|task| self.state.lock().heaps.store.abort(task));
                    self.free_again(ptr, &slow.request, slow.stream);
                }
                _ => {}
            }
            resume_unwind(panic);
        }
        step
    }

    /// Reserves `bytes` of new memory for later requests, rounded up to whole pages if the pool maps pages.
    ///
    /// # Errors
    /// [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) if there is too little, or an error of the
    /// driver or upstream.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<()> {
        let layout = Layout::new(bytes);
        let too_large =
            || Error::request_too_large(layout, StreamRef::LEGACY).on_device(self.driver.device());
        let request = Request::new(layout).ok_or_else(too_large)?;
        self.serve(SlowRequest::new(request, request, false, StreamRef::LEGACY)).map(|_| ())
    }
}

impl CentralCore {
    /// Runs a task with `run`, which calls foreign code: upstream, the driver, a subscriber. If that panics,
    /// this undoes the task with `undo` and aborts it, so that others can use its planned memory.
    pub(crate) fn abort_if_panics<T>(
        &self,
        mut task: Task,
        run: impl FnOnce(&mut Task) -> T,
        undo: impl FnOnce(&mut Task),
    ) -> (Task, T) {
        match catch_unwind(AssertUnwindSafe(|| run(&mut task))) {
            Ok(outcome) => (task, outcome),
            Err(panic) => {
                // If this panics too, the memory that is not undone stays out of the pool.
                let _ = catch_unwind(AssertUnwindSafe(|| undo(&mut task)));
                self.state.lock().heaps.store.abort(task);
                self.note_return();
                resume_unwind(panic)
            }
        }
    }

    /// Makes further calls for a request that has its block. If they panic, the caller never gets the block,
    /// so this frees it.
    pub(crate) fn free_if_panics<T>(
        &self,
        ptr: DevicePtr,
        request: &Request,
        stream: StreamRef,
        call: impl FnOnce() -> T,
    ) -> T {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
            self.free_again(ptr, request, stream);
            resume_unwind(panic)
        })
    }

    /// Frees a block that its caller never got.
    pub(crate) fn free_again(&self, ptr: DevicePtr, request: &Request, stream: StreamRef) {
        let mut state = self.state.lock();
        let owner = state.owner_of(stream);
        let State { heaps, streams, .. } = &mut *state;
        let freed = heaps.free(ptr, Layout::new(request.requested), owner, streams.slot_mut(owner).epoch());
        debug_assert!(freed.is_ok(), "{ptr:?} is in use: {freed:?}");
    }

    /// Reads the device's free memory, if it matters to the request. Returns whether the request exceeds that
    /// memory plus all idle memory of the process's pools. `own_idle` are this pool's idle bytes.
    ///
    /// Returned idle memory becomes free memory. Idle memory is read first, so memory that is returned
    /// meanwhile counts twice and is never missed.
    fn exceeds_device(&self, request: &Request, own_idle: u64) -> Result<(Option<Reading>, bool)> {
        let Some(device) = &self.device else { return Ok((None, false)) };
        // The driver serves small allocations from pages that it already has, even if no page is free.
        if !self.maps_pages() && request.bytes < DEVICE_PAGE {
            return Ok((None, false));
        }
        let exceeds = |idle: u64, reading: &Reading| {
            reading.free_at_most().is_some_and(|free| request.bytes > free.saturating_add(idle))
        };
        let first = self.read_device(device, request)?;
        if !exceeds(own_idle, &first) {
            return Ok((Some(first), false));
        }
        // One lock at a time: a peer pool may be doing the same.
        let others = device.peer_pools().into_iter().filter(|it| it.id() != self.id());
        let idle = others.fold(own_idle, |idle, other| idle.saturating_add(other.idle_bytes()));
        let mut last = self.read_device(device, request)?;
        if exceeds(idle, &last) && self.device_memory.as_ref().is_some_and(|it| it.free_refused()) {
            last = self.read_device(device, request)?;
        }
        Ok((Some(last), exceeds(idle, &last)))
    }

    /// Reads how much memory the device has free for `request`.
    fn read_device(&self, device: &Device, request: &Request) -> Result<Reading> {
        let wanted = request.padded_bytes().saturating_add(DEVICE_PAGE);
        device.read(&*self.driver, wanted).map_err(|error| self.driver_error(error))
    }

    /// Returns the devices with an active context, if devices get access when they become active.
    ///
    /// # Errors
    /// If the device is lost.
    fn active_peers(&self) -> Result<Vec<DeviceId>> {
        if !self.admits_peers {
            return Ok(Vec::new());
        }
        match self.driver.active_peers() {
            Err(error) if error.is_sticky() => Err(self.driver_error(error)),
            active => Ok(active.unwrap_or_default()),
        }
    }

    /// Reports the error of a memory change that no request waits for.
    fn warn_of(&self, task: &Task, error: &Error) {
        if task.is_admission() {
            event!(
                self, WARN,
                "other devices get no access to the pool's memory, and can copy it only with \
                 cuMemcpyPeer", %error
            );
        } else {
            event!(self, WARN, "memory could not be released", %error);
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::DeviceMemoryResourceExt;
    use millpond_core::driver::Driver;
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::store::{NewRegion, Purpose};
    use crate::{CudaMemoryResource, PagesMode, PoolLayer};

    /// A device without a free page still serves regions below a page.
    #[test]
    fn a_region_below_a_page_needs_no_free_memory() {
        let device = SimDevice::new(SimConfig::with_capacity(64 << 20));
        device.mem_alloc(64 << 20).expect("the device is empty");
        let cuda = CudaMemoryResource::new(device);
        let pool = cuda.layer(PoolLayer::new().pages(PagesMode::Off)).expect("an empty pool");
        for (bytes, is_promised) in
            [(256, true), (DEVICE_PAGE - 256, true), (DEVICE_PAGE, false), (2 * DEVICE_PAGE, false)]
        {
            let request = Request::new(Layout::new(bytes)).expect("not too large");
            let mut slow = SlowRequest::new(request, request, false, StreamRef::LEGACY);
            let mut task = Task::Region(NewRegion::new(bytes, None, Purpose::Reserve { bytes }));
            let promised = pool.central.promise(&mut slow, &mut task).expect("the device answers");
            assert_eq!(matches!(promised, Promised::Yes(Some(_))), is_promised, "{bytes} bytes");
        }
    }
}
