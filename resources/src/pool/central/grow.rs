//! Takes new memory for the pool: a region from upstream, or pages from the driver. A growth is planned under
//! the lock, run without it, and then committed or aborted.

use std::sync::atomic::Ordering;

use millpond_core::driver::CaptureModeGuard;
use millpond_core::{
    ALLOCATION_ALIGNMENT, DeviceMemoryResource, DevicePtr, Error, ErrorKind, LadderCounts, Layout,
    MemoryInfo, Result, StreamRef,
};

use crate::backing::lack::Lack;
use crate::heap::request::Request;
use crate::pool::Task;
use crate::pool::central::device_books::{Device, PendingReturn, Promise, Reading, Returns};
use crate::pool::central::peer_reclaim::PeerReclaim;
use crate::pool::central::trace::event;
use crate::pool::central::{Central, CentralCore, State};
use crate::pool::protocol::{Purpose, Try};
use crate::stream_order::{ANY_STREAM, Epoch, Owner};
use crate::tuning::DEVICE_PAGE;

/// Why there is no new memory for a request.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The resource's maximum does not allow it.
    OwnLimit,
    /// The driver or upstream has too little: its error, if it was asked for memory.
    Below(Option<Error>),
    /// The request exceeds all memory that could become free: the device's answer, if it was asked.
    Impossible(Option<MemoryInfo>),
}

/// A planned growth, and the promise of its new memory if the pool keeps the device's books.
type Planned<'a> = (Task, Option<Promise<'a>>);

impl CentralCore {
    /// Reads how much memory the device has free for `request`.
    pub(crate) fn read_device(&self, device: &Device, request: &Request) -> Result<Reading> {
        let wanted = request.padded_bytes().saturating_add(DEVICE_PAGE);
        device.read(&*self.driver, wanted).map_err(|error| self.driver_error(error))
    }

    /// Returns how often memory was returned to the device so far, by all resources and by this one.
    pub(crate) fn returns(&self) -> Returns {
        let own = self.own_returns.load(Ordering::Acquire);
        Returns { all: self.device.as_ref().map_or(own, |device| device.returns()), own }
    }

    /// Counts bytes of this resource as on their way to the device; see [`Device::begin_return`].
    pub(crate) fn begin_return(&self, bytes: u64) -> Option<PendingReturn<'_>> {
        self.device.as_ref().map(|device| device.begin_return(bytes))
    }

    /// Notes that this resource returned memory to the device.
    pub(crate) fn note_return(&self) {
        self.own_returns.fetch_add(1, Ordering::Release);
        if let Some(device) = &self.device {
            device.note_return();
        }
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Takes new memory, allocates the request from it, and counts that as `step` of the ladder. `reading` is
    /// the device's answer of a moment ago, if it was asked.
    pub(crate) fn grow(
        &self,
        request: &Request,
        stream: StreamRef,
        reading: &mut Option<Reading>,
        step: impl FnOnce(&mut LadderCounts) -> &mut u64,
    ) -> Result<Result<DevicePtr, Refusal>> {
        let ptr = match self.take_memory(request, Purpose::Serve, stream, reading)? {
            Ok(ptr) => ptr.expect("a growth that serves a request returns a block"),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let mut state = self.state.lock();
        *step(&mut state.ladder) += 1;
        let tidying = state.heaps.plan_tidying();
        drop(state);
        if let Some(task) = tidying {
            self.free_if_panics(ptr, request, stream, || {
                // The request is served, so an error here must not fail it.
                if let Err(error) = self.run_task(task) {
                    event!(self, WARN, "mappings could not be undone", %error);
                }
            });
        }
        Ok(Ok(ptr))
    }

    /// Plans a growth under the lock, runs it without the lock, and commits it. If the driver or upstream
    /// refuses, aborts it and tries again with the next [`Try`]. Returns the block if the purpose is to serve
    /// the request.
    fn take_memory(
        &self,
        request: &Request,
        purpose: Purpose,
        stream: StreamRef,
        reading: &mut Option<Reading>,
    ) -> Result<Result<Option<DevicePtr>, Refusal>> {
        let (mut refused, mut next) = (None, Some(Try::Preferred));
        while let Some(this) = next {
            let (task, promise) = match self.plan_growth(request, purpose, this, stream, reading)? {
                Ok(planned) => planned,
                Err(Lack::OwnLimit) if refused.is_none() => return Ok(Err(Refusal::OwnLimit)),
                // No memory was refused yet, so there is no smaller plan that would serve the request.
                Err(_) if refused.is_none() => return Ok(Err(Refusal::Below(None))),
                Err(_) => {
                    next = this.after(None);
                    continue;
                }
            };
            let (bytes, smaller, watch) = (task.new_bytes(), task.smaller_region(), self.watch());
            let run = |task: &mut Task| -> Result<()> {
                let growth = || self.run_growth(task, stream);
                self.span("growth", bytes, stream).in_scope(growth)?;
                self.trace_growth(request, stream, bytes, &watch);
                Ok(())
            };
            let (mut task, outcome) =
                self.run_or_abort(task, run, |task: &mut Task| self.undo_growth(task, stream));
            drop(promise);
            next = this.after(smaller);
            let Err(error) = outcome else {
                let mut state = self.state.lock();
                if let Task::Region(region) = &mut task {
                    region.owner = self.owner_of_region(&mut state, stream);
                }
                let ptr = task.commit(&mut state.heaps);
                drop(state);
                if ptr.is_some() || purpose == Purpose::Reserve {
                    return Ok(Ok(ptr));
                }
                continue;
            };
            let is_region = matches!(task, Task::Region(_));
            task.abort(&mut self.state.lock().heaps);
            // An upstream that bounds its requests reports an invalid argument for larger ones.
            let is_too_large = is_region && next.is_some() && error.kind() == ErrorKind::InvalidArgument;
            if !is_region {
                self.note_return();
            }
            if !error.is_out_of_memory() && !is_too_large {
                return Err(error);
            }
            if !is_region {
                self.trace_rival(bytes, &error);
            }
            refused = Some(error).filter(Error::is_out_of_memory);
        }
        if refused.is_some() {
            self.trace_refusal(request, None, &"upstream has too little");
        }
        Ok(Err(Refusal::Below(refused)))
    }

    /// Runs a growth: allocates its region from upstream, or makes its driver calls.
    fn run_growth(&self, task: &mut Task, stream: StreamRef) -> Result<()> {
        if let Task::Region(region) = task {
            let base = self.upstream.allocate(Layout::new(region.bytes), stream)?;
            debug_assert!(base.is_aligned_to(ALLOCATION_ALIGNMENT));
            region.base = base;
            return Ok(());
        }
        task.run(&*self.driver).map_err(|error| self.driver_error(error))
    }

    /// Undoes a growth whose run panicked: its region returns to upstream, or its driver calls are undone.
    fn undo_growth(&self, task: &mut Task, stream: StreamRef) {
        match task {
            Task::Region(region) if region.base != DevicePtr::NULL => {
                // SAFETY: upstream allocated the region with this layout, and no block of it was handed out.
                unsafe { self.upstream.deallocate(region.base, Layout::new(region.bytes), stream) };
            }
            task => task.undo(&*self.driver),
        }
    }

    /// Plans a growth for which the device has enough memory, and gets the promise of that memory.
    fn plan_growth(
        &self,
        request: &Request,
        purpose: Purpose,
        this: Try,
        stream: StreamRef,
        reading: &mut Option<Reading>,
    ) -> Result<Result<Planned<'_>, Lack>> {
        let plan = |most_new| {
            let mut state = self.state.lock();
            let owner = if purpose == Purpose::Serve { state.owner_of(stream) } else { ANY_STREAM };
            state.heaps.plan_growth(owner, request, purpose, this, most_new)
        };
        let trace = |lack: &Lack, reading: Option<&Reading>| {
            let why = match lack {
                Lack::OwnLimit => "its own maximum",
                Lack::NewMemory => "the device has too little",
            };
            self.trace_refusal(request, reading, &why);
        };
        // A pool over regions at its maximum need not ask the driver.
        let is_at_limit = purpose == Purpose::Serve
            && !self.maps_pages
            && self.state.lock().heaps.growth(request).is_none();
        let Some(device) = self.device.as_ref().filter(|_| !is_at_limit) else {
            let most_new = if this == Try::FreeOnly { 0 } else { u64::MAX };
            return Ok(plan(most_new).inspect_err(|lack| trace(lack, None)).map(|task| (task, None)));
        };
        let mut waits = 0;
        loop {
            let earlier = reading.take();
            let now = match earlier {
                Some(reading) => reading,
                None => self.read_device(device, request)?,
            };
            let most_new = match this {
                Try::Preferred | Try::AtMost(_) => now.most_new(),
                Try::AtOnce(_) => now.available,
                Try::FreeOnly => 0,
            };
            let mut task = match plan(most_new) {
                Ok(task) => task,
                // The reading is stale: the device may have more by now.
                Err(Lack::NewMemory) if earlier.is_some() => continue,
                Err(Lack::NewMemory) if this != Try::FreeOnly && device.wait_for_rivals(&now, &mut waits) => {
                    continue;
                }
                Err(lack) => {
                    trace(&lack, Some(&now));
                    return Ok(Err(lack));
                }
            };
            if this != Try::Preferred || task.new_bytes() > now.available {
                task.take_at_once();
            }
            match device.promise(task.new_bytes(), &now) {
                Some(promise) => return Ok(Ok((task, Some(promise)))),
                // Another resource got a promise since the reading: read again.
                None => task.abort(&mut self.state.lock().heaps),
            }
        }
    }

    /// Returns the stream, and its epoch, that owns memory from upstream.
    fn owner_of_region(&self, state: &mut State, stream: StreamRef) -> (Owner, Epoch) {
        if !self.upstream_is_ordered {
            return (ANY_STREAM, 0);
        }
        let owner = state.owner_of(stream);
        (owner, state.streams.slot(owner).epoch())
    }

    /// Takes the pool's initial memory: `bytes`, rounded up to whole pages if the pool maps pages.
    ///
    /// # Errors
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if there is too little; what the driver or upstream reports.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<()> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let layout = Layout::new(bytes);
        let too_large = || Error::request_too_large(layout, StreamRef::LEGACY);
        let request = Request::new(layout).ok_or_else(too_large)?;
        let mut peer_reclaim = PeerReclaim::default();
        loop {
            let returns = self.returns();
            let turn = self.turns.enter();
            self.admit_newcomers()?;
            let reserved = self.take_memory(&request, Purpose::Reserve, StreamRef::LEGACY, &mut None)?;
            // Peer pools are asked without a turn: they may be asking, too.
            drop(turn);
            let Err(refused) = reserved else { return Ok(()) };
            let should_retry = matches!(refused, Refusal::Below(_))
                && self.ask_peer_pools(&mut peer_reclaim, returns, &request, StreamRef::LEGACY)?;
            if !should_retry {
                return Err(self.out_of_memory(&request, StreamRef::LEGACY, refused));
            }
        }
    }
}
