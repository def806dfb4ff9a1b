//! Returns the memory of the plan to upstream. This happens after the plan was dropped, and when there is no
//! memory for a request.

use std::sync::Arc;
use std::time::Duration;

use millpond_core::driver::{CaptureModeGuard, EventFlags, ask, is_capturing, record_unless_capturing};
use millpond_core::{
    ALLOCATION_ALIGNMENT, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Error, Layout, PoolBelow,
    Result, StreamRef, find_trait,
};

use crate::marks::Question;
use crate::resource::PlanMemoryResource;
use crate::state::{Dropped, State};
use crate::sync::{MutexGuard, Ordering, sleep};

/// A pool below releases memory if it has reserved more than this fraction above the bytes in use.
const EXCESS_SHARE: u64 = 128;

/// If the excess has fewer bytes than this, which is a few handles, the pool releases nothing.
const LEAST_EXCESS: u64 = 8 << 20;

/// While another thread returns memory, a request sleeps for this time, and at most this often.
const NAP: Duration = Duration::from_millis(1);
const MOST_NAPS: usize = if cfg!(millpond_loom) { 0 } else { 100 };

impl<R: DeviceMemoryResource> PlanMemoryResource<R> {
    /// Runs `body` under the lock. Returns `None` in a forked child: the lock may be held by a thread that
    /// does not exist in the child.
    ///
    /// Returns lanes to upstream, and reports a dropped plan, after the lock is released. An upstream or a
    /// `tracing` subscriber may call the stack, or wait for threads that need the lock.
    #[inline]
    pub(crate) fn locked<T>(&self, body: impl FnOnce(&mut State) -> T) -> Option<T> {
        let mut state = self.state.try_lock().or_else(|| self.wait_for_lock())?;
        let result = body(&mut state);
        if state.plan.is_none() && self.has_plan.load(Ordering::Relaxed) {
            self.has_plan.store(false, Ordering::Release);
        }
        if state.has_left() {
            self.settle(state);
        }
        Some(result)
    }

    #[cold]
    fn wait_for_lock(&self) -> Option<MutexGuard<'_, State>> {
        if self.is_forked() { None } else { Some(self.state.lock()) }
    }

    #[cold]
    fn settle(&self, mut state: MutexGuard<'_, State>) {
        let (leaving, dropped) = state.take_left();
        let is_giving = !leaving.is_empty() && !self.is_forked();
        if is_giving {
            self.giving.fetch_add(1, Ordering::AcqRel);
        }
        drop(state);
        if is_giving {
            self.give_back(leaving);
            self.giving.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(Dropped { why, log }) = dropped {
            tracing::info!(target: "millpond::plan", stack = %self, why, log, "dropped a plan");
        }
    }

    fn give_back(&self, leaving: Vec<(DevicePtr, u64, StreamRef)>) {
        for (base, bytes, stream) in leaving {
            // SAFETY: the lane came from upstream with this layout, once (`Lane::take_base`). Its blocks were
            // freed on this stream, or the work on them is done (`Lane::may_leave`).
            unsafe { self.upstream.deallocate(base, Layout::new(bytes), stream) };
        }
        self.given_back.fetch_add(1, Ordering::Release);
    }

    /// Returns whether the driver can be asked about work.
    fn has_driver(&self) -> bool {
        !self.is_forked() && !self.driver().health().is_lost()
    }

    /// Records the event after a block that was just freed on `stream`.
    #[cold]
    pub(crate) fn record_behind(&self, number: u64, stream: StreamRef) {
        if !self.has_driver() {
            return;
        }
        let question = self.locked(|state| state.ask_one(number)).flatten();
        let Some(mut question) = question else { return };
        let _captures = CaptureModeGuard::relaxed(&**self.driver());
        self.record(&mut question, stream);
        self.locked(|state| state.note_answers(vec![question]));
    }

    /// Records the event of a mark. The caller's stream is `stream`. Does nothing if the mark's stream
    /// captures a graph or may have ended.
    fn record(&self, question: &mut Question, stream: StreamRef) {
        let driver = &**self.driver();
        if question.event.is_none() {
            question.event = ask(driver, |driver| driver.event_create(EventFlags::default())).ok();
        }
        let Some(event) = question.event else { return };
        let recorded = ask(driver, |driver| match question.id == stream.id() {
            true => record_unless_capturing(driver, event, stream),
            false => driver.event_record_if_alive(event, question.stream),
        });
        question.is_recorded = recorded == Ok(true);
    }

    /// Asks the driver whether work is done, and records missing events after this work. The caller's stream
    /// is `stream`. The call never waits, and calls the driver without the lock.
    pub(crate) fn ask_driver(&self, stream: StreamRef, questions: impl FnOnce(&mut State) -> Vec<Question>) {
        if !self.has_driver() {
            return;
        }
        let Some(mut questions) = self.locked(questions).filter(|questions| !questions.is_empty()) else {
            return;
        };
        let driver = &**self.driver();
        let _captures = CaptureModeGuard::relaxed(driver);
        // The marks of a stream are in the order of the stream.
        let mut busy = Vec::new();
        for question in &mut questions {
            if !question.is_recorded {
                self.record(question, stream);
            }
            if busy.contains(&question.id) {
                continue;
            }
            let event = question.event.filter(|_| question.is_recorded);
            question.is_done =
                event.is_some_and(|event| ask(driver, |driver| driver.event_query(event)) == Ok(true));
            if !question.is_done {
                busy.push(question.id);
            }
        }
        self.locked(|state| state.note_answers(questions));
    }

    /// Returns the lanes of a dropped plan to upstream if their work is done, as far as the driver knows
    /// without waiting.
    #[cold]
    pub(crate) fn query_dropped(&self, stream: StreamRef) {
        self.ask_driver(stream, State::ask_idle);
        self.locked(|state| state.release_dropped(stream));
    }

    /// Makes a pool below release the memory that the program does not need outside the plan. Does not wait.
    #[cold]
    pub(crate) fn release_excess(&self, stream: StreamRef) {
        let pool = find_trait::<dyn PoolBelow>(&self.upstream).filter(|_| self.has_driver());
        let Some((pool, known)) = pool.zip(self.upstream.statistics()) else { return };
        let beside = self.locked(|state| state.followed().map(|plan| plan.most_beside()));
        let Some(beside) = beside.flatten() else { return };
        let keep = known.bytes_in_use.saturating_add(beside).max(pool.initial_bytes());
        if known.bytes_reserved <= keep.saturating_add(LEAST_EXCESS.max(keep / EXCESS_SHARE)) {
            return;
        }
        match pool.release_unused(keep, stream) {
            Ok(0) => {}
            // Each request releases a part of this memory.
            Ok(_) => _ = self.locked(|state| state.is_excess_due = state.followed().is_some()),
            Err(error) => {
                let why = "memory could not be released";
                tracing::warn!(target: "millpond::plan", stack = %self, %error, why);
            }
        }
    }

    /// Waits for all work of the device, so that lanes without blocks have no work left. Returns whether that
    /// was possible. The lock is not held during the wait.
    fn wait(&self) -> bool {
        let Some(last) = self.locked(State::mark_idle).filter(|_| self.has_driver()) else { return false };
        let driver = &**self.driver();
        let _captures = CaptureModeGuard::relaxed(driver);
        let has_waited = ask(driver, |driver| driver.synchronize_beside_captures()) == Ok(true);
        if has_waited {
            self.locked(|state| state.end_waits(|number| number <= last));
        }
        has_waited
    }

    /// Returns lanes without blocks to upstream until `most` bytes are returned. Returns the number of these
    /// bytes. If `may_wait` is set, waits for the device.
    fn release_idle(&self, stream: StreamRef, may_wait: bool, most: u64) -> u64 {
        if self.locked(|state| state.has_waits()) != Some(true) {
            return 0;
        }
        if may_wait {
            self.wait();
        } else {
            self.ask_driver(stream, State::ask_idle);
        }
        self.locked(|state| state.release_all(stream, most)).unwrap_or(0)
    }

    /// Asks upstream for memory. If there is none, the plan's free memory serves the request, or returns to
    /// upstream. `is_open` says whether the request may use memory of the plan.
    #[inline]
    pub(crate) fn allocate_upstream(
        &self,
        layout: Layout,
        stream: StreamRef,
        is_open: bool,
    ) -> Result<DevicePtr> {
        let given_back = self.given_back.load(Ordering::Acquire);
        match self.upstream.allocate(layout, stream) {
            // This also runs after the plan was dropped, because another thread may have returned the plan's
            // last lane since then.
            Err(error) if error.is_out_of_memory() && !error.is_impossible() => {
                self.recover(layout, stream, is_open, given_back, error)
            }
            other => other,
        }
    }

    /// Serves a request for which upstream has no memory, if the plan's memory allows it. The memory is a gap
    /// in a lane, or comes from upstream after lanes were returned. `given_back` is the number of returned
    /// lanes at the time when upstream was asked.
    #[cold]
    pub(super) fn recover(
        &self,
        layout: Layout,
        stream: StreamRef,
        is_open: bool,
        given_back: u64,
        mut error: Error,
    ) -> Result<DevicePtr> {
        if !self.has_driver() {
            return Err(error);
        }
        let is_open = is_open && layout.alignment() <= ALLOCATION_ALIGNMENT;
        let from_gap = || if is_open { self.serve_from_gap(layout, stream) } else { None };
        if let Some(ptr) = from_gap() {
            return Ok(ptr);
        }
        let mut known = given_back;
        for step in [Recovery::OfOthers, Recovery::WithoutWait, Recovery::WithWait] {
            if self.has_more(step, layout, stream, &mut known) {
                match self.upstream.allocate(layout, stream) {
                    Err(again) if again.is_out_of_memory() => error = again,
                    other => return other,
                }
            }
        }
        // Bytes that other streams freed may be free by now.
        from_gap().ok_or(error)
    }

    /// Takes one step to return more memory to upstream. Returns whether memory was returned since the count
    /// `known`.
    fn has_more(&self, step: Recovery, layout: Layout, stream: StreamRef, known: &mut u64) -> bool {
        let before = *known;
        let count = || self.given_back.load(Ordering::Acquire);
        if count() == before && step != Recovery::OfOthers && self.could_serve(layout) {
            self.locked(|state| {
                if state.held().0 > 0 {
                    state.drop_plan("upstream is out of memory");
                }
            });
            let driver = &**self.driver();
            // A request of a capture never waits.
            let may_wait = step == Recovery::WithWait && {
                let _captures = CaptureModeGuard::relaxed(driver);
                is_capturing(driver, stream) == Ok(false)
            };
            self.release_idle(stream, may_wait, u64::MAX);
        }
        if step == Recovery::WithWait {
            self.await_others(before);
        }
        *known = count();
        *known != before
    }

    /// Waits a moment while other threads return lanes, because the memory of these lanes is neither here nor
    /// upstream. The wait is short, because such a thread may be waiting for this thread, or may be this
    /// thread.
    fn await_others(&self, before: u64) {
        for _ in 0..MOST_NAPS {
            let is_over = self.given_back.load(Ordering::Acquire) != before;
            if is_over || self.giving.load(Ordering::Acquire) == 0 {
                return;
            }
            sleep(NAP);
        }
    }

    /// Returns whether a request could be served if all memory of the plan were free.
    fn could_serve(&self, layout: Layout) -> bool {
        let held = self.locked(|state| state.held().0).unwrap_or(0);
        let most = self.upstream.memory_report().layers.iter().filter_map(|layer| layer.limit_bytes).min();
        let free = self.upstream.memory_info().map(|info| info.free.saturating_add(held));
        // Blocks from upstream already have an alignment of 256.
        let to_align = layout.alignment().saturating_sub(ALLOCATION_ALIGNMENT);
        let bytes = layout.bytes().saturating_add(to_align);
        most.is_none_or(|most| layout.bytes() <= most) && free.map_or(true, |free| bytes <= free)
    }

    /// Returns lanes without blocks to upstream until upstream has at most `keep_bytes` in use. Returns the
    /// bytes of these lanes.
    pub(crate) fn trim_lanes(&self, keep_bytes: u64) -> u64 {
        let held = self.locked(|state| state.held().0).unwrap_or(0);
        let known = self.upstream.statistics().filter(|known| !known.knows_only_misuses());
        let holds = known.map_or(held, |known| known.bytes_reserved);
        match holds.saturating_sub(keep_bytes) {
            0 => 0,
            most => self.release_idle(StreamRef::LEGACY, true, most),
        }
    }

    /// Returns all lanes to upstream when the layer ends. No thread holds the lock.
    pub(crate) fn end(&mut self) {
        if self.is_forked() {
            // Another thread may have been changing the state at the fork.
            return std::mem::forget(std::mem::take(self.state.get_mut()));
        }
        // Memory from upstream may outlive the context. Events do not.
        let was_reset = self.driver().was_reset();
        if self.driver().health().is_lost() && !was_reset {
            return;
        }
        let has_waited = was_reset || self.state.get_mut().held().0 == 0 || self.wait();
        let driver = Arc::clone(self.driver());
        let _captures = CaptureModeGuard::relaxed(&*driver);
        let state = self.state.get_mut();
        let (lanes, events) = state.take_everything();
        for event in events.into_iter().filter(|_| !was_reset) {
            // SAFETY: the event is the layer's own, and nothing waits for it.
            let _ = ask(&*driver, |driver| unsafe { driver.event_destroy(event) });
        }
        // Plain memory is freed in any case, because its free waits by itself.
        if !has_waited && self.upstream.is_stream_ordered() {
            tracing::warn!(
                target: "millpond::driver",
                "cannot wait for the device, so a plan's memory stays allocated upstream"
            );
            return;
        }
        for (base, bytes) in lanes {
            // SAFETY: the lane came from upstream with this layout, once, and all work of the device is done.
            unsafe { self.upstream.deallocate(base, Layout::new(bytes), StreamRef::LEGACY) };
        }
    }
}

/// A step to get memory for a request that upstream refused.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recovery {
    /// Other threads may have returned memory.
    OfOthers,
    /// Lanes whose work is done are returned.
    WithoutWait,
    /// All lanes without blocks are returned, after a wait for the device.
    WithWait,
}
