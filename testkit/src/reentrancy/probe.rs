//! The foreign code: whenever it is called, it calls the layers back, on its own thread and on another one.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef,
};
use parking_lot::Mutex;

/// A call's name and function.
type Call = (&'static str, fn(&AnyResource));

/// The calls that the probe makes to each layer.
const CALLS: &[Call] = &[
    ("Display", |layer| drop(layer.to_string())),
    ("Debug", |layer| drop(format!("{layer:?}"))),
    ("allocate and deallocate a small block", |layer| take_and_give(layer, 5000)),
    ("allocate and deallocate a large block", |layer| take_and_give(layer, 3 << 20)),
    ("statistics", |layer| _ = layer.statistics()),
    ("memory_info", |layer| drop(layer.memory_info())),
    ("memory_report", |layer| drop(layer.memory_report())),
    ("memory_map", |layer| drop(layer.memory_map())),
    ("trim", |layer| drop(layer.trim(0))),
];

fn take_and_give(layer: &AnyResource, bytes: u64) {
    let layout = Layout::new(bytes);
    if let Ok(ptr) = layer.allocate(layout, StreamRef::LEGACY) {
        // SAFETY: the block was just allocated with this layout, and nothing used it.
        unsafe { layer.deallocate(ptr, layout, StreamRef::LEGACY) };
    }
}

/// How many calls in a row of each caller wait for another thread, in each state of the stack. A layer may
/// rightly make that thread wait for a moment each time.
const WAITS_IN_A_ROW: u32 = 3;

/// After that, one call in this many waits.
const WAITS_SELDOM: u32 = 64;

/// Code that a layer calls without knowing it: an upstream, the driver, a hook, a subscriber, a writer.
///
/// Put [`call`](Self::call) into every piece of your own code that a layer calls. Clones share the state.
#[derive(Clone)]
pub struct Probe(Arc<Shared>);

struct Shared {
    /// The layers to call back, the lowest first, with their texts.
    layers: Mutex<Vec<(String, Weak<dyn DeviceMemoryResource + Send + Sync>)>>,
    /// Blocks of the topmost layer that are left to be freed from inside.
    spare: Mutex<Vec<(DevicePtr, Layout)>>,
    patience: Duration,
    /// The call that the probe is making.
    doing: Mutex<Option<Doing>>,
    findings: Mutex<Vec<Finding>>,
    calls: AtomicU64,
    /// How often each caller has called in this state.
    callers: Mutex<HashMap<String, u32>>,
    /// Whether only hooks and subscribers call back.
    is_reserved: AtomicBool,
    is_over: AtomicBool,
    helper: Helper,
}

/// A call to a layer from code that another call of that layer runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Doing {
    pub(super) caller: String,
    pub(super) layer: String,
    pub(super) call: &'static str,
    pub(super) is_on_another_thread: bool,
}

/// A layer that hangs or panics if code that it calls uses it again.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The function that the layer called, for example `cuMemAlloc` or `upstream's allocate`.
    pub caller: String,
    /// The stack up to the layer whose call did not return; the layers below it answered.
    pub layer: String,
    /// The call that did not return.
    pub call: &'static str,
    /// The outcome of the call.
    pub outcome: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caller, layer, call, outcome } = self;
        write!(f, "`{layer}`: {call}, from inside {caller}, {outcome}")
    }
}

impl Doing {
    pub(super) fn found(self, outcome: &str) -> Finding {
        let thread = if self.is_on_another_thread { "on another thread" } else { "on the same thread" };
        let Self { caller, layer, call, .. } = self;
        Finding { caller, layer, call, outcome: format!("{outcome} ({thread})") }
    }
}

thread_local! {
    /// Whether the thread is in a probe. Code that the probe calls is not probed again.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The thread's probe for the misuse hook and the subscriber; a process has only one of each.
    static OF_THREAD: RefCell<Option<Probe>> = const { RefCell::new(None) };
}

impl Probe {
    pub(super) fn new(patience: Duration) -> Self {
        Self(Arc::new(Shared {
            layers: Mutex::default(),
            spare: Mutex::default(),
            patience,
            doing: Mutex::default(),
            findings: Mutex::default(),
            calls: AtomicU64::new(0),
            callers: Mutex::default(),
            is_reserved: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            helper: Helper::start(),
        }))
    }

    /// Calls all layers back on behalf of `caller`. Returns when they have answered, or when one did not
    /// answer in time.
    pub fn call(&self, caller: &str) {
        if !self.0.is_reserved.load(Ordering::Relaxed) {
            self.call_rare(caller);
        }
    }

    /// Lets only rare callers call back, or all. While the driver and upstream call back, no layer sees
    /// requests that repeat.
    pub(super) fn reserve(&self, is_reserved: bool) {
        self.0.is_reserved.store(is_reserved, Ordering::Relaxed);
    }

    /// [`call`](Self::call) for rare callers: a hook or a subscriber.
    pub(super) fn call_rare(&self, caller: &str) {
        if self.0.is_over.load(Ordering::Relaxed) || IS_INSIDE.replace(true) {
            return;
        }
        let layers: Vec<_> = self.0.layers.lock().clone();
        let living = layers.into_iter().filter_map(|(text, layer)| Some((text, layer.upgrade()?)));
        let waits = self.waits(caller);
        for (text, layer) in living {
            self.call_layer(caller, &text, layer, waits);
        }
        IS_INSIDE.set(false);
    }

    /// Resets each caller's waits for another thread, because the stack is in a new state.
    pub(super) fn new_state(&self) {
        self.0.callers.lock().clear();
    }

    /// Whether this call of the caller also waits for another thread.
    fn waits(&self, caller: &str) -> bool {
        let mut callers = self.0.callers.lock();
        let calls = callers.entry(caller.to_owned()).or_default();
        *calls += 1;
        *calls <= WAITS_IN_A_ROW || calls.is_multiple_of(WAITS_SELDOM)
    }

    fn call_layer(&self, caller: &str, text: &str, layer: AnyResource, waits: bool) {
        for &(call, body) in CALLS {
            for is_on_another_thread in [false, true] {
                if self.0.is_over.load(Ordering::Relaxed) || is_on_another_thread && !waits {
                    continue;
                }
                let (caller, layer_text) = (caller.to_owned(), text.to_owned());
                let doing = Doing { caller, layer: layer_text, call, is_on_another_thread };
                *self.0.doing.lock() = Some(doing.clone());
                self.0.calls.fetch_add(1, Ordering::Relaxed);
                let answer = match is_on_another_thread {
                    true => self.0.helper.run(Arc::clone(&layer), body, self.0.patience),
                    false => caught(&layer, body),
                };
                if let Err(outcome) = answer {
                    self.find(doing.found(&outcome));
                }
            }
        }
        self.free_spare(&layer);
        *self.0.doing.lock() = None;
    }

    /// Frees a spare block of the topmost layer.
    fn free_spare(&self, layer: &AnyResource) {
        let is_top = self
            .0
            .layers
            .lock()
            .last()
            .is_some_and(|(_, top)| std::ptr::addr_eq(top.as_ptr(), Arc::as_ptr(layer)));
        let spare = if is_top { self.0.spare.lock().pop() } else { None };
        if let Some((ptr, layout)) = spare {
            // SAFETY: the scenario allocated the block from this layer with this layout, and left it here.
            unsafe { layer.deallocate(ptr, layout, StreamRef::LEGACY) };
        }
    }

    pub(super) fn find(&self, finding: Finding) {
        self.0.findings.lock().push(finding);
        self.0.is_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn add_layer(&self, layer: &AnyResource) {
        let text = layer.to_string(); // calls the probe, so no lock is held
        self.0.layers.lock().push((text, Arc::downgrade(layer)));
    }

    /// Leaves a block of the topmost layer to be freed from inside.
    pub(super) fn leave(&self, ptr: DevicePtr, layout: Layout) {
        self.0.spare.lock().push((ptr, layout));
    }

    pub(super) fn take_spare(&self) -> Vec<(DevicePtr, Layout)> {
        std::mem::take(&mut *self.0.spare.lock())
    }

    pub(super) fn doing(&self) -> Option<Doing> {
        self.0.doing.lock().clone()
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        self.0.findings.lock().clone()
    }

    /// Returns the number of calls from inside so far.
    pub fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    /// Makes this the calling thread's probe while `body` runs.
    pub(super) fn on_this_thread(&self, body: impl FnOnce()) {
        let before = OF_THREAD.replace(Some(self.clone()));
        body();
        OF_THREAD.set(before);
    }

    /// The calling thread's probe.
    pub(super) fn of_thread() -> Option<Self> {
        OF_THREAD.try_with(|probe| probe.borrow().clone()).ok().flatten()
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("calls", &self.calls()).finish_non_exhaustive()
    }
}

fn caught(layer: &AnyResource, body: fn(&AnyResource)) -> Result<(), String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| body(layer)));
    outcome.map_err(|panic: Box<dyn Any + Send>| format!("panics: {}", crate::text_of(&*panic)))
}

type Job = (AnyResource, fn(&AnyResource), mpsc::Sender<Result<(), String>>);

/// The other thread, which makes calls for the probe.
struct Helper(Mutex<mpsc::Sender<Job>>);

impl Helper {
    fn start() -> Self {
        let (jobs, received) = mpsc::channel::<Job>();
        thread::spawn(move || {
            IS_INSIDE.set(true);
            for (layer, body, answer) in received {
                let outcome = caught(&layer, body);
                // The requesting thread may have given up.
                let _ = answer.send(outcome);
            }
        });
        Self(Mutex::new(jobs))
    }

    /// Makes a call on the other thread and waits for it, as code that joins a thread does.
    fn run(&self, layer: AnyResource, body: fn(&AnyResource), patience: Duration) -> Result<(), String> {
        let (answer, answers) = mpsc::channel();
        let sent = self.0.lock().send((layer, body, answer));
        sent.map_err(|_| "has no other thread".to_owned())?;
        match answers.recv_timeout(patience) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err("hangs".to_owned()),
        }
    }
}
