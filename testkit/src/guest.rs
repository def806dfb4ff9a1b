//! Foreign code that a resource calls in the middle of a call, and that uses the resource again.
//!
//! A failure callback, the misuse hook and a `tracing` subscriber may do anything: allocate, free, trim,
//! query. A guest does these things at random. [`Guest::enter`] makes it the guest of the current thread.
//! Callbacks under test call [`called`]. [`listen`] makes millpond's events and spans call the guest.
//! [`misuse_recorder`](crate::misuse_recorder) makes reports of misuse call it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millpond_core::{AnyResource, DeviceMemoryResource, DevicePtr, Layout, StreamRef};
use millpond_driver::sim::{Access, SimDevice};
use parking_lot::Mutex;

use crate::{Checked, Rng};

/// How deep guests may call guests: a callback that allocates may be called again for that allocation.
const DEEPEST: u32 = 2;

/// How many blocks a guest keeps at most.
const MOST_KEPT: usize = 6;

/// Foreign code that uses a resource.
#[derive(Debug)]
pub struct Guest {
    device: Arc<SimDevice>,
    resource: Arc<Checked<AnyResource>>,
    /// The stream of the blocks that the guest keeps.
    stream: StreamRef,
    largest_bytes: u64,
    is_gone: AtomicBool,
    /// Whether the guest leaves the requests' streams alone.
    on_own_stream: AtomicBool,
    calls: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    kept: Vec<Kept>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    ptr: DevicePtr,
    layout: Layout,
    tag: u64,
}

/// One action of a guest.
enum Act {
    Ask(u64),
    Trim(u64),
    /// Allocates and frees.
    Use(u64),
    /// Allocates and keeps the block.
    Keep(u64),
    /// Frees a kept block.
    Free(Kept),
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Guest>>> = const { RefCell::new(None) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Removes the guest from the thread when this value is dropped.
#[must_use = "the thread has the guest only while this value lives"]
#[derive(Debug)]
pub struct Entered(Option<Arc<Guest>>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|current| *current = self.0.take());
    }
}

impl Guest {
    /// Creates a guest that uses `resource`, and `stream` for the blocks that it keeps.
    pub fn new(
        device: Arc<SimDevice>,
        resource: Arc<Checked<AnyResource>>,
        stream: StreamRef,
        largest_bytes: u64,
        seed: u64,
    ) -> Arc<Self> {
        let state = Mutex::new(State { rng: Rng::new(seed ^ 0x6775_6573_7473), kept: Vec::new() });
        let (is_gone, on_own_stream) = (AtomicBool::new(false), AtomicBool::new(false));
        let calls = AtomicU64::new(0);
        Arc::new(Self { device, resource, stream, largest_bytes, is_gone, on_own_stream, calls, state })
    }

    /// Makes this the guest of the current thread.
    pub fn enter(self: &Arc<Self>) -> Entered {
        Entered(CURRENT.with_borrow_mut(|current| current.replace(Arc::clone(self))))
    }

    /// Returns how often the guest used its resource.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the stream of the blocks that the guest keeps.
    pub fn stream(&self) -> StreamRef {
        self.stream
    }

    /// Restricts the guest to its own stream, for example while a stream captures. The restriction is needed
    /// because the program must know everything that its captures contain.
    pub fn keep_to_own_stream(&self, is_on: bool) {
        self.on_own_stream.store(is_on, Ordering::Relaxed);
    }

    /// Makes the guest do nothing from now on.
    pub fn leave(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// Returns the blocks that the guest keeps. The caller must free them on the guest's stream.
    pub fn take_kept(&self) -> Vec<(DevicePtr, Layout)> {
        self.state.lock().kept.drain(..).map(|kept| (kept.ptr, kept.layout)).collect()
    }

    /// Frees the kept blocks.
    pub fn free_all(&self) {
        while let Some(kept) = { self.state.lock().kept.pop() } {
            self.free(kept, self.stream);
        }
    }

    fn choose(&self) -> (Act, bool) {
        let mut state = self.state.lock();
        let State { rng, kept } = &mut *state;
        let again = rng.percent(40);
        let small = rng.percent(70);
        let bytes = if small { rng.between(1, 20_000) } else { rng.between(1, self.largest_bytes.max(1)) };
        let act = match rng.below(10) {
            0..3 => Act::Ask(rng.below(5)),
            3 | 4 => Act::Trim(if rng.percent(50) { 0 } else { rng.below(8 << 20) }),
            5 | 6 => Act::Use(bytes),
            7 if kept.len() < MOST_KEPT => Act::Keep(bytes),
            _ => match kept.len() as u64 {
                0 => Act::Use(bytes),
                some => Act::Free(kept.swap_remove(rng.below(some) as usize)),
            },
        };
        (act, again)
    }

    /// Does something with the resource; returns a random answer.
    fn act(&self, stream: Option<StreamRef>) -> bool {
        if self.is_gone.load(Ordering::Relaxed) {
            return false;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        let (act, again) = self.choose();
        match act {
            Act::Ask(0) => {
                let _ = self.resource.statistics();
            }
            Act::Ask(1) => drop(self.resource.memory_info()),
            Act::Ask(2) => drop(self.resource.to_string()),
            Act::Ask(3) => drop(format!("{:?}", self.resource)),
            Act::Ask(_) => drop(self.resource.is_equal(self.resource.inner())),
            Act::Trim(keep) => drop(self.resource.trim(keep)),
            Act::Use(bytes) => {
                let is_own = self.on_own_stream.load(Ordering::Relaxed);
                let stream = stream.filter(|_| !is_own).unwrap_or(self.stream);
                if let Some(block) = self.allocate(bytes, stream) {
                    self.free(block, stream);
                }
            }
            Act::Keep(bytes) => {
                if let Some(block) = self.allocate(bytes, self.stream) {
                    self.state.lock().kept.push(block);
                }
            }
            Act::Free(kept) => self.free(kept, self.stream),
        }
        again
    }

    /// An error is not a failure here: memory may be out, and some layers refuse calls from inside.
    fn allocate(&self, bytes: u64, stream: StreamRef) -> Option<Kept> {
        let layout = Layout::new(bytes);
        let ptr = self.resource.allocate(layout, stream).ok()?;
        let block = Kept { ptr, layout, tag: ptr.address() ^ 0x5a5a };
        self.touch(stream, Access::write(ptr, bytes, block.tag));
        Some(block)
    }

    fn free(&self, block: Kept, stream: StreamRef) {
        self.touch(stream, Access::check(block.ptr, block.layout.bytes(), block.tag));
        // SAFETY: the block came from this resource with this layout and was used only on this stream. The
        // guest no longer keeps it.
        unsafe { self.resource.deallocate(block.ptr, block.layout, stream) }
    }

    fn touch(&self, stream: StreamRef, access: Access) {
        if self.resource.accessibility().device {
            self.device.launch(stream, &[access]);
        }
    }
}

/// Lets the thread's guest use its resource, with `stream` for blocks that it frees at once. Returns the
/// guest's answer; `false` if there is no guest.
pub fn called(stream: Option<StreamRef>) -> bool {
    let Some(guest) = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten() else {
        return false;
    };
    let depth = DEPTH.get();
    if depth >= DEEPEST {
        return false;
    }
    DEPTH.set(depth + 1);
    let _deeper = Deeper(depth);
    guest.act(stream)
}

/// Restores the depth, even after a panic.
struct Deeper(u32);

impl Drop for Deeper {
    fn drop(&mut self) {
        DEPTH.set(self.0);
    }
}

/// A `tracing` subscriber that lets guests act at some of millpond's events and spans.
struct Listener {
    heard: AtomicU64,
}

/// A guest acts at one event in this many.
const ONE_OF: u64 = 5;

impl Listener {
    fn hear(&self, target: &str) {
        // The simulated device emits events while it is locked; the test includes that.
        if target.starts_with("millpond::")
            && self.heard.fetch_add(1, Ordering::Relaxed).is_multiple_of(ONE_OF)
        {
            called(None);
        }
    }
}

impl tracing::Subscriber for Listener {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("millpond::")
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        self.hear(span.metadata().target());
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        self.hear(event.metadata().target());
    }

    fn enter(&self, _span: &tracing::span::Id) {}

    fn exit(&self, _span: &tracing::span::Id) {}
}

/// Lets the current thread's guest act at millpond's events, until the returned value is dropped.
pub fn listen() -> tracing::subscriber::DefaultGuard {
    crate::events::hear(Listener { heard: AtomicU64::new(0) })
}
