//! Keeps the last events of memory in a ring.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use millpond_core::segments::{SegmentAction, SegmentEvent, SegmentWatcher, watch};
use millpond_core::{BlockInfo, DeviceId, DevicePtr, Holder, StreamRef};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::frames::{Frame, StackSource, source, text_of_frames};

/// The kind of a recorded event. [`name`](Self::name) returns PyTorch's name of the kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Action {
    /// A block was allocated.
    Allocate,
    /// The program freed a block. Other streams may still use it.
    FreeRequested,
    /// A freed block returned to its resource, which can allocate the block again.
    FreeCompleted,
    /// A pool took a segment from its upstream.
    SegmentAllocate,
    /// A pool returned a segment to its upstream.
    SegmentFree,
    /// A pool mapped physical memory.
    SegmentMap,
    /// A pool unmapped physical memory.
    SegmentUnmap,
    /// A request ran out of memory.
    OutOfMemory,
}

impl Action {
    /// All kinds of events.
    pub const ALL: [Self; 8] = [
        Self::Allocate,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAllocate,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::OutOfMemory,
    ];

    /// Returns the name of the action in PyTorch's snapshots.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocate => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAllocate => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::OutOfMemory => "oom",
        }
    }
}

/// Selects the calls for which a recorder captures the call stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
#[non_exhaustive]
pub enum RecordStacks {
    /// The recorder captures no call stacks.
    #[default]
    Off,
    /// The recorder captures the call stacks of allocations. A snapshot shows the call stacks only for live
    /// blocks, not for events.
    Live,
    /// The recorder captures the call stacks of allocations. A snapshot shows the call stacks for live blocks
    /// and for events.
    Allocations,
    /// The recorder captures the call stacks of allocations and frees.
    All,
}

/// The options of a [`Recorder`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RecordOptions {
    /// The largest number of events that the recorder keeps (default 100,000). Each event takes 64 bytes of
    /// host memory. New events overwrite the oldest events.
    pub events: usize,
    /// The calls for which the recorder captures the call stack (default: no calls).
    pub stacks: RecordStacks,
    /// The actions that the recorder skips, as bits (default 0). Bit `n` stands for the action at index `n`
    /// of [`Action::ALL`].
    pub skipped: u32,
}

impl RecordOptions {
    millpond_core::setters! { events: usize, stacks: RecordStacks, skipped: u32 }
}

impl Default for RecordOptions {
    fn default() -> Self {
        Self { events: 100_000, stacks: RecordStacks::Off, skipped: 0 }
    }
}

/// A recorded event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// The kind of the event.
    pub action: Action,
    /// The device that holds the memory.
    pub device: DeviceId,
    /// The address of the block or segment. For [`Action::OutOfMemory`], this field contains the number of
    /// the device's free bytes instead.
    pub address: u64,
    /// The requested size of the block, or the size of the segment, in bytes.
    pub bytes: u64,
    /// The raw handle of the stream on which the block was allocated; 0 for a segment.
    pub stream: u64,
    /// The time of the event, in microseconds since 1970. The times never decrease.
    pub time_us: u64,
    /// The captured stack; 0 for none.
    pub(super) stack: u64,
    /// The pool that a segment belongs to.
    pub(super) pool: u64,
}

/// A live block since the recorder began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    bytes: u64,
    stream: u64,
    pub(super) stack: u64,
    /// Whether the program has freed it, and it waits for other streams.
    pub(super) is_waiting: bool,
}

/// Keeps the last memory events, with the call stacks of the recorded calls.
///
/// The adaptor [`RecordingResourceAdaptor`](super::RecordingResourceAdaptor) reports its calls to a recorder.
/// Pools report their segments to it. Any thread may call all methods of a recorder.
pub struct Recorder {
    options: RecordOptions,
    source: Arc<dyn StackSource>,
    state: Mutex<State>,
    /// The stacks that [`holders`](Self::holders) has named. Naming one takes a thousand times as long as
    /// finding it here.
    named: Mutex<FxHashMap<u64, Arc<str>>>,
}

#[derive(Default)]
struct State {
    ring: Vec<RecordedEvent>,
    /// The place of the oldest event once the ring is full.
    oldest: usize,
    /// The number of overwritten events.
    lost: u64,
    live: FxHashMap<(DeviceId, u64), Live>,
    last_time: u64,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Creates a recorder, which records from now on.
    pub fn new(options: RecordOptions) -> Arc<Self> {
        let recorder =
            Arc::new(Self { options, source: source(), state: Mutex::default(), named: Mutex::default() });
        let watcher: Arc<dyn SegmentWatcher> = Arc::clone(&recorder) as _;
        watch(&watcher);
        recorder
    }

    /// Returns the options of the recorder.
    pub fn options(&self) -> RecordOptions {
        self.options
    }

    /// Removes all recorded events.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        (state.oldest, state.lost) = (0, 0);
        state.ring.clear();
    }

    fn capture(&self, least: RecordStacks) -> u64 {
        if self.options.stacks >= least { self.source.capture() } else { 0 }
    }

    /// Records that a block was allocated. Call this method after the allocation, without a lock.
    pub fn allocated(&self, device: DeviceId, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        let (stack, stream) = (self.capture(RecordStacks::Live), stream.handle());
        let in_event = if self.options.stacks == RecordStacks::Live { 0 } else { stack };
        let mut state = self.state.lock();
        state.live.insert((device, ptr.address()), Live { bytes, stream, stack, is_waiting: false });
        self.push(&mut state, event(Action::Allocate, device, ptr.address(), bytes, stream, in_event));
    }

    /// Records that the program freed a block, but other streams may still use the block. The event names the
    /// stream of the allocation. If the block was allocated before the recorder began, the event names
    /// `stream`.
    pub fn free_requested(&self, device: DeviceId, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        let stack = self.capture(RecordStacks::All);
        self.freed(device, ptr, bytes, stream, &[Action::FreeRequested], stack);
    }

    /// Records that a freed block returns to its resource. Call this method just before the block returns.
    pub fn free_completed(&self, device: DeviceId, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        self.freed(device, ptr, bytes, stream, &[Action::FreeCompleted], 0);
    }

    /// Records that the program freed a block, and that the block returns to its resource at once. Call this
    /// method just before the block returns.
    pub fn free(&self, device: DeviceId, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        let stack = self.capture(RecordStacks::All);
        self.freed(device, ptr, bytes, stream, &[Action::FreeRequested, Action::FreeCompleted], stack);
    }

    /// Returns the requested bytes of a live block. Returns `None` if the block was allocated before the
    /// recorder began.
    pub fn live_bytes(&self, device: DeviceId, ptr: DevicePtr) -> Option<u64> {
        self.state.lock().live.get(&(device, ptr.address())).map(|live| live.bytes)
    }

    fn freed(
        &self,
        device: DeviceId,
        ptr: DevicePtr,
        bytes: u64,
        stream: StreamRef,
        actions: &[Action],
        stack: u64,
    ) {
        let mut state = self.state.lock();
        let key = (device, ptr.address());
        let live = match state.live.get_mut(&key) {
            Some(live) if !actions.contains(&Action::FreeCompleted) => {
                live.is_waiting = true;
                Some(*live)
            }
            Some(_) => state.live.remove(&key),
            None => None,
        };
        let stream = live.map_or(stream.handle(), |live| live.stream);
        for action in actions {
            self.push(&mut state, event(*action, device, ptr.address(), bytes, stream, stack));
        }
    }

    /// Records that a request for `bytes` ran out of memory while the device had `device_free` free bytes.
    pub fn out_of_memory(&self, device: DeviceId, bytes: u64, stream: StreamRef, device_free: u64) {
        let stack = self.capture(RecordStacks::Allocations);
        let event = event(Action::OutOfMemory, device, device_free, bytes, stream.handle(), stack);
        self.push(&mut self.state.lock(), event);
    }

    fn push(&self, state: &mut State, mut event: RecordedEvent) {
        if self.options.events == 0 || self.options.skipped >> (event.action as u32) & 1 == 1 {
            return;
        }
        event.time_us = now_us().max(state.last_time);
        state.last_time = event.time_us;
        if state.ring.len() < self.options.events {
            return state.ring.push(event);
        }
        let oldest = state.oldest;
        state.ring[oldest] = event;
        state.oldest = (oldest + 1) % self.options.events;
        state.lost += 1;
    }

    /// Returns the recorded events, oldest first, and the number of earlier events that were overwritten.
    pub fn events(&self) -> (Vec<RecordedEvent>, u64) {
        let state = self.state.lock();
        let (later, earlier) = state.ring.split_at(state.oldest);
        ([earlier, later].concat(), state.lost)
    }

    /// Returns the live blocks of a device in any order. Blocks that were allocated before the recorder began
    /// are left out.
    pub fn live_blocks(&self, device: DeviceId) -> Vec<BlockInfo> {
        let state = self.state.lock();
        let here = state.live.iter().filter(|((owner, _), _)| *owner == device);
        let info = |(&(_, address), live): (&(DeviceId, u64), &Live)| {
            let mut info = BlockInfo::default();
            (info.address, info.bytes, info.stream) = (address, live.bytes, Some(live.stream));
            info
        };
        here.map(info).collect()
    }

    /// Returns the live blocks of a device, grouped by the call stack of their allocation. The group with the
    /// most bytes comes first. Blocks that were allocated before the recorder began are left out. The result
    /// is empty if the recorder captures no call stacks.
    pub fn holders(&self, device: DeviceId) -> Vec<Holder> {
        if self.options.stacks == RecordStacks::Off {
            return Vec::new();
        }
        let mut groups: FxHashMap<u64, Holder> = FxHashMap::default();
        for live in self.live(device).into_values() {
            let holder = groups.entry(live.stack).or_default();
            (holder.blocks, holder.bytes) = (holder.blocks + 1, holder.bytes + live.bytes);
        }
        let mut holders: Vec<(u64, Holder)> = groups.into_iter().collect();
        holders.sort_by_key(|(stack, holder)| (std::cmp::Reverse(holder.bytes), *stack));
        let named = holders.into_iter().map(|(stack, mut holder)| {
            holder.backtrace = (stack != 0).then(|| self.name(stack).to_string());
            holder
        });
        named.collect()
    }

    /// Returns the text of a captured stack. The program's source of stacks is asked without a lock.
    fn name(&self, stack: u64) -> Arc<str> {
        let known = self.named.lock().get(&stack).cloned();
        known.unwrap_or_else(|| {
            let text = Arc::<str>::from(text_of_frames(&self.frames(stack)));
            self.named.lock().insert(stack, Arc::clone(&text));
            text
        })
    }

    /// Returns the live blocks of a device by address.
    pub(super) fn live(&self, device: DeviceId) -> FxHashMap<u64, Live> {
        let state = self.state.lock();
        let here = state.live.iter().filter(|((owner, _), _)| *owner == device);
        here.map(|((_, address), live)| (*address, *live)).collect()
    }

    /// Returns the frames of a captured stack.
    pub(super) fn frames(&self, stack: u64) -> Vec<Frame> {
        if stack == 0 { Vec::new() } else { self.source.frames(stack) }
    }
}

impl SegmentWatcher for Recorder {
    /// Captures no stack: another thread may hold a lock of the program until the pool's call ends. The
    /// allocation that led to the segment comes next.
    fn note(&self, segment: &SegmentEvent) {
        let action = match segment.action {
            SegmentAction::Allocate => Action::SegmentAllocate,
            SegmentAction::Free => Action::SegmentFree,
            SegmentAction::Map => Action::SegmentMap,
            SegmentAction::Unmap => Action::SegmentUnmap,
            _ => return,
        };
        let mut event = event(action, segment.device, segment.address, segment.bytes, 0, 0);
        event.pool = segment.pool;
        self.push(&mut self.state.lock(), event);
    }
}

fn event(
    action: Action,
    device: DeviceId,
    address: u64,
    bytes: u64,
    stream: u64,
    stack: u64,
) -> RecordedEvent {
    RecordedEvent { action, device, address, bytes, stream, time_us: 0, stack, pool: 0 }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}
