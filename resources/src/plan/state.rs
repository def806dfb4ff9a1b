//! What the layer's lock guards, and the memory that goes back to upstream after it is released.

use millpond_core::{DeviceMemoryResource, DevicePtr, Layout, StreamRef};
use parking_lot::Mutex;

use crate::plan::history::History;
use crate::plan::running::Running;

/// Counts of a [`PlanMemoryResource`](crate::PlanMemoryResource).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PlanStatistics {
    /// The requests that got a slot of the plan.
    pub served: u64,
    /// The requests that got no slot while a plan was in use: upstream served them, or a gap of the plan.
    pub missed: u64,
    /// Those of them that a gap of the plan's memory served.
    pub served_beside: u64,
    /// The plans that were made.
    pub plans: u64,
    /// The plans that were dropped, because the program did not follow them or memory was short.
    pub dropped: u64,
    /// The allocations of the present plan's body; 0 without a plan.
    pub body_allocations: u64,
    /// The bytes that the present plan needs; 0 without a plan.
    pub plan_bytes: u64,
    /// The bytes that the layer holds from upstream for plans.
    pub held_bytes: u64,
    /// Whether the layer gave up: upstream serves all requests.
    pub has_given_up: bool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) history: History,
    pub(crate) running: Option<Running>,
    /// The allocations over which a part has to repeat.
    pub(crate) least_span: usize,
    /// The length of the history at which it is searched next.
    pub(crate) search_at: usize,
    pub(crate) has_given_up: bool,
    pub(crate) counts: PlanStatistics,
    /// Lanes that go back to upstream on these streams once the lock is released.
    leaving: Vec<(DevicePtr, u64, StreamRef)>,
}

impl State {
    pub(crate) fn new(least_span: usize) -> Self {
        Self {
            history: History::default(),
            running: None,
            least_span,
            search_at: 2 * least_span,
            has_given_up: false,
            counts: PlanStatistics::default(),
            leaving: Vec::new(),
        }
    }

    /// Whether the program is watched, and no plan serves it.
    pub(crate) fn is_learning(&self) -> bool {
        !self.has_given_up && self.running.as_ref().is_none_or(|running| running.is_retired)
    }

    /// Takes a lane without blocks out of the plan; it goes back once the lock is released. The caller's
    /// stream is `stream`; with `has_waited` all work of the device is done. Returns its bytes.
    pub(crate) fn release(&mut self, lane: usize, stream: StreamRef, has_waited: bool) -> Option<u64> {
        let id = (!has_waited).then(|| stream.id());
        let (base, bytes) = self.running.as_mut()?.take_idle(lane, id)?;
        self.leaving.push((base, bytes, stream));
        Some(bytes)
    }

    pub(crate) fn learn_anew(&mut self) {
        self.history.clear();
        self.search_at = 2 * self.least_span;
    }
}

/// Runs `body` under the lock, and gives lanes back after it is released: an upstream may call back into the
/// stack, or wait for threads that need the lock.
pub(crate) fn locked<R: DeviceMemoryResource, T>(
    state: &Mutex<State>,
    upstream: &R,
    body: impl FnOnce(&mut State) -> T,
) -> T {
    let mut guard = state.lock();
    let result = body(&mut guard);
    if guard.leaving.is_empty() {
        return result;
    }
    let leaving = std::mem::take(&mut guard.leaving);
    drop(guard);
    for (base, bytes, stream) in leaving {
        // SAFETY: the lane came from upstream with this layout, once (`State::release`). Its blocks were
        // freed on this stream, or all work of the device is done.
        unsafe { upstream.deallocate(base, Layout::new(bytes), stream) };
    }
    result
}
