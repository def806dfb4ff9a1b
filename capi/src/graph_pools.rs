//! The pools of PyTorch's captured graphs. The hooks of PyTorch's `CUDAPluggableAllocator` announce these
//! pools.
//!
//! A graph uses the same addresses at each launch. So a capture allocates from a scope, which keeps the
//! memory as long as the graphs of its pool exist. PyTorch passes a filter that says which streams belong to
//! a capture. The library does not call this filter, because a call would need the layout of a C++ object.
//! Instead, the library asks the driver to which capture a stream belongs, because the driver numbers the
//! captures.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use millpond_core::driver::call;
use millpond_core::{
    AnyResource, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, DriverHandle, Error, ErrorKind,
    Result, StreamId, StreamRef, find_trait, watch,
};
use millpond_resources::registry::get_per_device_resource;
use millpond_resources::{CaptureScope, CaptureScopes, CaptureScopesLayer, ScopedStream};
use parking_lot::Mutex;

use crate::device::device_id;
use crate::exception::throw_runtime_error;
use crate::process::{check_process, is_copy};
use crate::status::{Status, guarded};

/// PyTorch's name of a pool: `c10::MempoolId_t`, a `std::pair` of these two numbers, which C passes in the
/// same way.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the C interface fixes it")]
pub struct GraphPoolId {
    /// Not 0 if a graph made the pool for itself.
    pub first: u64,
    /// Not 0 if the program named the pool.
    pub second: u64,
}

/// A pool of PyTorch on one device.
struct GraphPool {
    device: DeviceId,
    id: GraphPoolId,
    /// How many of the pool's graphs were or are being captured, and were not released.
    graphs: usize,
    scope: CaptureScope,
    /// The layer that serves the scope. It is built on the resource that was the device's default when the
    /// pool began.
    layer: AnyResource,
}

/// A capture that has begun.
struct Capture {
    device: DeviceId,
    id: GraphPoolId,
    /// The thread that began the capture, and a value that lives as long as that thread.
    thread: ThreadId,
    is_thread_alive: Weak<()>,
    /// The driver's number of the capture, known after one of its streams has allocated.
    number: Option<u64>,
    /// The streams of the capture that have allocated. The scope is open for these streams.
    streams: Vec<(StreamRef, StreamId, ScopedStream)>,
    /// Whether one of the capture's streams was later seen to capture another graph, or none.
    is_over: bool,
    /// Whether the capture's thread has since begun another capture on the device.
    is_followed: bool,
}

impl Capture {
    /// Returns whether the capture failed, and no call will announce its end. The capture is over or never
    /// allocated, and its thread has gone on. A thread captures one graph of a device at a time.
    fn has_failed(&self) -> bool {
        let has_gone_on = self.is_followed || self.is_thread_alive.strong_count() == 0;
        has_gone_on && (self.is_over || self.number.is_none())
    }
}

thread_local! {
    /// A value that lives as long as the thread.
    static ALIVE: Arc<()> = Arc::default();
}

/// Returns whether both are the same live stream. The handle of a default stream names another stream on each
/// thread.
fn is_same_stream((stream, id): (StreamRef, StreamId), other: StreamRef) -> bool {
    let is_default = stream.is_legacy() || stream.is_per_thread();
    if is_default { id == other.id() } else { stream.handle() == other.handle() }
}

/// The layer that serves the scopes on top of a resource.
struct Scoped {
    base: AnyResource,
    layer: AnyResource,
}

/// While this is locked, no resource is called.
struct State {
    pools: Vec<GraphPool>,
    captures: Vec<Capture>,
    /// The layers of all scopes that may have memory.
    layers: Vec<Scoped>,
}

static STATE: Mutex<State> =
    Mutex::new(State { pools: Vec::new(), captures: Vec::new(), layers: Vec::new() });
/// How many captures have begun.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Returns the layers of all scopes that may have memory.
pub(crate) fn layers() -> Vec<AnyResource> {
    STATE.lock().layers.iter().map(|scoped| scoped.layer.clone()).collect()
}

impl State {
    fn pool(&mut self, device: DeviceId, id: GraphPoolId) -> Option<&mut GraphPool> {
        self.pools.iter_mut().find(|pool| pool.device == device && pool.id == id)
    }

    /// Counts the captures that may need memory.
    fn count(&self) {
        OPEN.store(self.captures.iter().filter(|capture| !capture.is_over).count(), Ordering::Relaxed);
    }

    /// Ends a capture. The caller drops the result after it releases the lock.
    fn end(&mut self, index: usize) -> Capture {
        let capture = self.captures.remove(index);
        self.count();
        capture
    }

    /// Returns whether the stream has begun in the scope of a running capture.
    fn has_stream(&self, device: DeviceId, stream: StreamRef) -> bool {
        let its_id = stream.id();
        let on_device = self.captures.iter().filter(|it| it.device == device && !it.is_over);
        on_device.flat_map(|it| &it.streams).any(|(_, known, _)| *known == its_id)
    }

    /// Notes that a stream has begun in the scope of a capture. If another thread was faster or the capture
    /// is over, returns `begun`. The caller drops it after it releases the lock.
    fn add_stream(
        &mut self,
        device: DeviceId,
        number: u64,
        stream: StreamRef,
        begun: ScopedStream,
    ) -> Option<ScopedStream> {
        let its_id = stream.id();
        let is_its = |it: &&mut Capture| it.device == device && it.number == Some(number) && !it.is_over;
        match self.captures.iter_mut().find(is_its) {
            Some(capture) if capture.streams.iter().all(|(_, known, _)| *known != its_id) => {
                capture.streams.push((stream, its_id, begun));
                None
            }
            _ => Some(begun),
        }
    }

    /// Notes the present capture of a live stream, which ends an earlier capture of that stream. The caller
    /// drops the result after it releases the lock.
    fn note_capture_of(&mut self, device: DeviceId, stream: StreamRef, number: Option<u64>) -> Ended {
        let mut ended = Ended::default();
        for capture in &mut self.captures {
            let is_another = capture.device == device && capture.number != number;
            let has_it =
                || capture.streams.iter().any(|(known, id, _)| is_same_stream((*known, *id), stream));
            if is_another && has_it() {
                capture.is_over = true;
                ended.streams.append(&mut capture.streams);
            }
        }
        if !ended.streams.is_empty() {
            self.end_failed(&mut ended);
        }
        ended
    }

    /// Ends the failed captures and their graphs.
    fn end_failed(&mut self, ended: &mut Ended) {
        let failed: Vec<Capture> = self.captures.extract_if(.., |capture| capture.has_failed()).collect();
        for capture in &failed {
            ended.pools.extend(self.release(capture.device, capture.id));
        }
        ended.captures.extend(failed);
        self.count();
    }

    /// Releases one graph of a pool. With the last graph, the failed captures of the pool end, too. The
    /// caller drops the result after it releases the lock.
    fn release(&mut self, device: DeviceId, id: GraphPoolId) -> Option<(GraphPool, Vec<Capture>)> {
        let pool = self.pool(device, id)?;
        pool.graphs -= 1;
        if pool.graphs > 0 {
            return None;
        }
        let index = self.pools.iter().position(|pool| pool.device == device && pool.id == id)?;
        let is_its = |capture: &mut Capture| capture.device == device && capture.id == id;
        let failed = self.captures.extract_if(.., is_its).collect();
        self.count();
        Some((self.pools.swap_remove(index), failed))
    }
}

/// The pools and captures that have ended. Dropping this value frees their memory. The caller drops it
/// without the lock of the state.
#[derive(Default)]
struct Ended {
    streams: Vec<(StreamRef, StreamId, ScopedStream)>,
    captures: Vec<Capture>,
    pools: Vec<(GraphPool, Vec<Capture>)>,
}

/// Returns the number of the capture that a stream belongs to.
fn capture_of(driver: &DriverHandle, stream: StreamRef) -> Result<Option<u64>> {
    let driver = &**driver;
    match driver.stream_capture_id(stream) {
        Ok(number) => Ok(number),
        // The driver refuses this query while a blocking stream captures.
        Err(error) if error.is_capture_refusal() && stream.is_legacy() => Ok(None),
        Err(error) if error.is_capture_refusal() => {
            let why = "a call that cannot be captured has invalidated the capture of this stream; end \
                       it, and capture again without that call";
            call(driver, |_| Err(error)).map_err(|error| error.context(why))
        }
        Err(error) if error.is_unsupported() => {
            match call(driver, |driver| driver.stream_is_capturing(stream))? {
                false => Ok(None),
                true => {
                    let why = "memory of captured graphs needs CUDA 11.3 or later, which numbers captures";
                    Err(Error::new(ErrorKind::Unsupported, why))
                }
            }
        }
        Err(error) => call(driver, |_| Err(error)),
    }
}

/// Returns whether a capture has begun.
pub(crate) fn are_open() -> bool {
    OPEN.load(Ordering::Relaxed) > 0
}

/// Returns the resource that serves a stream, if the stream belongs to a capture that has begun.
pub(crate) fn resource_for(
    device: DeviceId,
    stream: StreamRef,
    driver: &DriverHandle,
) -> Result<Option<AnyResource>> {
    if !are_open() {
        return Ok(None);
    }
    let number = capture_of(driver, stream)?;
    let ended = STATE.lock().note_capture_of(device, stream, number);
    drop(ended);
    let Some(number) = number else { return Ok(None) };
    let found = served_by(&mut STATE.lock(), device, stream, number);
    let Some((layer, new_in)) = found? else { return Ok(None) };
    if let Some(scope) = new_in {
        // The lock is not held here, because the scope calls the layers below it.
        match scope.begin(stream) {
            Ok(begun) => {
                let unused = STATE.lock().add_stream(device, number, stream, begun);
                drop(unused);
            }
            // Another thread may have been faster.
            Err(_) if STATE.lock().has_stream(device, stream) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(layer))
}

/// Returns the resource of the capture's pool. `number` is the driver's number of the capture that the stream
/// belongs to. If the stream is new in the scope and must begin there, also returns the scope.
fn served_by(
    state: &mut State,
    device: DeviceId,
    stream: StreamRef,
    number: u64,
) -> Result<Option<(AnyResource, Option<CaptureScope>)>> {
    let here = thread::current().id();
    let captures = state.captures.iter().enumerate();
    let is_open = |it: &Capture| it.device == device && !it.is_over;
    let on_device: Vec<(usize, &Capture)> = captures.filter(|(_, it)| is_open(it)).collect();
    let known = on_device.iter().find(|(_, it)| it.number == Some(number)).map(|(index, _)| *index);
    let index = known.or_else(|| {
        // If the driver's number is new, the capture is the latest capture of this thread, or the only
        // capture without a number.
        let mut new = on_device.iter().filter(|(_, it)| it.number.is_none());
        let begun_here = new.clone().rfind(|(_, it)| it.thread == here);
        begun_here.or_else(|| new.next().filter(|_| new.next().is_none())).map(|(index, _)| *index)
    });
    // A capture that another library began is not in the list.
    let Some(index) = index else {
        // But if this thread has also begun a capture, the library may have confused the two captures.
        if on_device.iter().all(|(_, it)| it.number.is_some() && it.thread != here) {
            return Ok(None);
        }
        let why = "several threads began to capture graphs at once, so the capture of this stream is not \
                   known; let the thread that begins a capture allocate first";
        return Err(Error::new(ErrorKind::Unsupported, why).on_device(device));
    };
    let id = state.captures[index].id;
    let Some(pool) = state.pool(device, id) else { return Ok(None) };
    let (scope, layer) = (pool.scope.clone(), Arc::clone(&pool.layer));
    let its_id = stream.id();
    let capture = &mut state.captures[index];
    capture.number = Some(number);
    let is_new = capture.streams.iter().all(|(_, known, _)| *known != its_id);
    Ok(Some((layer, is_new.then_some(scope))))
}

/// Frees the memory that the scopes of ended graphs still have. Returns whether there were any such scopes.
pub(crate) fn release_ended() -> bool {
    let layers: Vec<AnyResource> = {
        let state = STATE.lock();
        if state.layers.is_empty() {
            return false;
        }
        state.layers.iter().map(|it| Arc::clone(&it.layer)).collect()
    };
    for layer in &layers {
        // A trim first asks ended scopes for their memory. With this limit, the layers below release nothing.
        if let Err(error) = layer.trim(u64::MAX) {
            tracing::debug!(target: "millpond::resources", %error, "kept the memory of captured graphs");
        }
    }
    let is_empty = |layer: &AnyResource| {
        find_trait::<dyn CaptureScopes>(layer).is_none_or(|scopes| scopes.scopes().is_empty())
    };
    let mut state = STATE.lock();
    let State { pools, layers: all, .. } = &mut *state;
    let is_unused = |it: &mut Scoped| {
        !pools.iter().any(|pool| Arc::ptr_eq(&pool.layer, &it.layer)) && is_empty(&it.layer)
    };
    let unused: Vec<Scoped> = all.extract_if(.., is_unused).collect();
    drop(state);
    drop((unused, layers));
    true
}

fn begin(device: i32, id: GraphPoolId) -> Result<()> {
    check_process()?;
    let device = device_id(device)?;
    let default = get_per_device_resource(device)?;
    let (thread, alive) = (thread::current().id(), ALIVE.try_with(Arc::downgrade).unwrap_or_default());
    let (mut fresh, mut ended) = (None, Ended::default());
    let mut state = loop {
        let mut state = STATE.lock();
        // On another device, the thread may be capturing, too.
        let is_followed = |capture: &&mut Capture| capture.thread == thread && capture.device == device;
        state.captures.iter_mut().filter(is_followed).for_each(|capture| capture.is_followed = true);
        state.end_failed(&mut ended);
        if fresh.is_some() || state.pool(device, id).is_some() {
            break state;
        }
        drop(state);
        fresh = Some(new_pool(device, id, &default)?);
    };
    begin_in(&mut state, device, id, &mut fresh);
    state.captures.push(Capture {
        device,
        id,
        thread,
        is_thread_alive: alive,
        number: None,
        streams: Vec::new(),
        is_over: false,
        is_followed: false,
    });
    state.count();
    drop(state);
    // The default is dropped as well: this may be its last use, and its end may wait.
    drop((ended, fresh, default));
    Ok(())
}

/// Makes a pool that does not exist yet, and the pool's layer on top of the default. The caller does not hold
/// the lock, because a layer calls its upstream.
fn new_pool(device: DeviceId, id: GraphPoolId, default: &AnyResource) -> Result<(GraphPool, Scoped)> {
    let known = {
        let state = STATE.lock();
        state.layers.iter().find(|it| Arc::ptr_eq(&it.base, default)).map(|it| Arc::clone(&it.layer))
    };
    let layer = match known {
        Some(known) => known,
        None => {
            let fresh = Arc::clone(default).layer(CaptureScopesLayer::new())?.into_any();
            watch::add(&fresh);
            fresh
        }
    };
    let scope = CaptureScope::of(&layer)?;
    let scoped = Scoped { base: Arc::clone(default), layer: Arc::clone(&layer) };
    Ok((GraphPool { device, id, graphs: 1, scope, layer }, scoped))
}

/// Counts a graph of a pool. The pool's first graph takes the pool from `fresh`.
fn begin_in(state: &mut State, device: DeviceId, id: GraphPoolId, fresh: &mut Option<(GraphPool, Scoped)>) {
    if let Some(pool) = state.pool(device, id) {
        pool.graphs += 1;
    } else if let Some((pool, scoped)) = fresh.take() {
        let is_known = state.layers.iter().any(|it| Arc::ptr_eq(&it.layer, &scoped.layer));
        if !is_known {
            state.layers.push(scoped);
        }
        state.pools.push(pool);
    }
}

/// From now on, serves the streams of the calling thread's next capture on the device from a pool. This
/// function is for PyTorch's `set_begin_allocate_to_pool`. It throws `std::runtime_error` if it fails.
///
/// # Safety
/// The caller is C++, or lets C++ exceptions pass. `filter` is not used.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn millpond_begin_allocate_to_pool(
    device: i32,
    pool: GraphPoolId,
    filter: *const c_void,
) {
    let _ = filter;
    if guarded(|| begin(device, pool)) != Status::Ok {
        throw_runtime_error();
    }
}

/// Ends the effect of `millpond_begin_allocate_to_pool`, after the capture has ended. The pool keeps the
/// allocated memory. This function is for PyTorch's `set_end_allocate_to_pool_fn`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_end_allocate_to_pool(device: i32, pool: GraphPoolId) {
    guarded(|| {
        if is_copy() {
            return Ok(());
        }
        let (device, here) = (device_id(device)?, thread::current().id());
        let mut state = STATE.lock();
        let is_its = |capture: &&Capture| capture.device == device && capture.id == pool;
        let captures = || state.captures.iter().enumerate();
        let begun_here = captures().rfind(|(_, it)| is_its(it) && it.thread == here);
        let found = begun_here.or_else(|| captures().rfind(|(_, it)| is_its(it)));
        let index = found.map(|(index, _)| index);
        let ended = index.map(|index| state.end(index));
        drop(state);
        drop(ended);
        Ok(())
    });
}

/// Releases a graph's use of a pool. After the last release, the library frees the pool's memory when the
/// device has finished all work. This function is for PyTorch's `set_release_pool`.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_release_pool(device: i32, pool: GraphPoolId) {
    guarded(|| {
        if is_copy() {
            return Ok(());
        }
        let device = device_id(device)?;
        let released = STATE.lock().release(device, pool);
        if released.is_some() {
            drop(released);
            release_ended();
        }
        Ok(())
    });
}
