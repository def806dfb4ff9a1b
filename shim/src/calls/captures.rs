//! Captures, and the graphs that they leave.
//!
//! The simulated device keeps the names of the captured calls. So a graph has nodes, and cannot run.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use millpond_core::driver::{CaptureMode, DriverResult};
use millpond_core::{Driver, DriverError, StreamRef};
use parking_lot::Mutex;

use super::{Api, Driving, Handle, handle, stream, stream_now, write_if_wanted};
use crate::current::simulated;
use crate::error::{place, refusal};

/// The node types of the living graphs by handle. A node's handle is the graph's and its number, from 1.
static GRAPHS: Mutex<Graphs> = Mutex::new(Graphs { made: 0, living: BTreeMap::new() });

struct Graphs {
    made: u64,
    living: BTreeMap<u64, Vec<c_int>>,
}

/// The bits of a node's number in its handle.
const NODE_BITS: u32 = 24;

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE` and `_INVALIDATED`.
const ACTIVE: c_int = 1;
const INVALIDATED: c_int = 2;

/// CUDA's numbers of the capture modes.
const MODES: [CaptureMode; 3] = [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed];

fn mode(number: c_int) -> DriverResult<CaptureMode> {
    let found = usize::try_from(number).ok().and_then(|number| MODES.get(number));
    found.copied().ok_or_else(|| refusal(DriverError::INVALID_VALUE))
}

/// CUDA's type of the node that a captured call makes.
fn node_type(call: &str) -> c_int {
    match call {
        "cuMemAllocAsync" | "cuMemAllocFromPoolAsync" => 10,
        "cuMemFreeAsync" => 11,
        _ if call.starts_with("cuMemcpy") => 1,
        _ if call.starts_with("cuMemset") => 2,
        _ => 0,
    }
}

pub(crate) unsafe extern "C" fn exchange_mode<A: Api>(exchanged: *mut c_int) -> c_int {
    let exchange = || {
        // SAFETY: the caller passes null or a valid mode, which nothing else uses during the call.
        let exchanged = unsafe { exchanged.as_mut() }.ok_or_else(|| refusal(DriverError::INVALID_VALUE))?;
        let before = A::device(0)?.thread_exchange_stream_capture_mode(mode(*exchanged)?)?;
        *exchanged =
            MODES.iter().zip(0..).find(|(known, _)| **known == before).map_or(0, |(_, number)| number);
        Ok(())
    };
    A::code(exchange())
}

/// The status of a stream's capture, and its number.
fn status(driver: &dyn Driver, stream: StreamRef) -> DriverResult<(c_int, u64)> {
    match driver.stream_capture_id(stream) {
        Ok(id) => Ok((if id.is_some() { ACTIVE } else { 0 }, id.unwrap_or(0))),
        Err(error) if error.code() == DriverError::STREAM_CAPTURE_INVALIDATED => Ok((INVALIDATED, 0)),
        Err(error) => Err(error),
    }
}

pub(crate) unsafe extern "C" fn is_capturing<A: Api>(of: Handle, capturing: *mut c_int) -> c_int {
    let find = |driver: &dyn Driver| {
        let stream = stream_now::<A>(driver, of)?;
        Ok(if driver.stream_is_capturing(stream)? { status(driver, stream)?.0 } else { 0 })
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer(capturing, find) }
}

/// Only the status must have a place. The graph of a running capture and its dependencies are not known.
pub(crate) unsafe extern "C" fn get_info<A: Api>(
    of: Handle,
    capturing: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    dependencies: *mut *const Handle,
    count: *mut usize,
) -> c_int {
    A::run(|driver| {
        // SAFETY: CUDA's contract for the arguments.
        let capturing = unsafe { place(capturing) }?;
        let (found, number) = status(driver, stream_now::<A>(driver, of)?)?;
        capturing.write(found);
        if found == ACTIVE {
            // SAFETY: CUDA's contract for the arguments.
            unsafe {
                write_if_wanted(id, number);
                write_if_wanted(graph, std::ptr::null_mut());
                write_if_wanted(dependencies, std::ptr::null());
                write_if_wanted(count, 0);
            }
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn get_info_v1<A: Api>(
    of: Handle,
    capturing: *mut c_int,
    id: *mut u64,
) -> c_int {
    let none = std::ptr::null_mut();
    // SAFETY: the caller's promises are the same, and the other results may be null.
    unsafe { get_info::<A>(of, capturing, id, none, none.cast(), none.cast()) }
}

/// As `get_info`; the dependencies have no data.
pub(crate) unsafe extern "C" fn get_info_v3<A: Api>(
    of: Handle,
    capturing: *mut c_int,
    id: *mut u64,
    graph: *mut Handle,
    dependencies: *mut *const Handle,
    _edges: *mut *const c_void,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { get_info::<A>(of, capturing, id, graph, dependencies, count) }
}

pub(crate) unsafe extern "C" fn begin<A: Api>(on: Handle, number: c_int) -> c_int {
    A::run(|driver| {
        let (mode, stream) = (mode(number)?, stream::<A>(driver, on)?);
        simulated(driver)?.begin_capture(stream, mode)
    })
}

/// If the capture fails, the graph is a null pointer.
pub(crate) unsafe extern "C" fn end<A: Api>(on: Handle, graph: *mut Handle) -> c_int {
    let end = |driver: &dyn Driver| {
        // SAFETY: CUDA's contract for the arguments.
        unsafe { write_if_wanted(graph, std::ptr::null_mut()) };
        let (device, stream) = (simulated(driver)?, stream::<A>(driver, on)?);
        let nodes = device.captured_work(stream).iter().map(|call| node_type(call)).collect();
        device.end_capture(stream)?;
        let mut graphs = GRAPHS.lock();
        graphs.made += 1;
        let number = graphs.made << NODE_BITS;
        graphs.living.insert(number, nodes);
        Ok(handle(number))
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { A::answer(graph, end) }
}

fn unknown() -> DriverError {
    refusal(DriverError::INVALID_VALUE)
}

pub(crate) unsafe extern "C" fn graph_destroy<A: Api>(graph: Handle) -> c_int {
    let destroyed = GRAPHS.lock().living.remove(&(graph.addr() as u64));
    A::code(destroyed.map(drop).ok_or_else(unknown))
}

/// Writes as many nodes as there is room for; without a place for nodes, only their number.
pub(crate) unsafe extern "C" fn graph_get_nodes<A: Api>(
    graph: Handle,
    nodes: *mut Handle,
    count: *mut usize,
) -> c_int {
    let find = || {
        let number = graph.addr() as u64;
        let total = GRAPHS.lock().living.get(&number).map(Vec::len).ok_or_else(unknown)?;
        // SAFETY: the caller passes null or a valid number, which nothing else uses during the call.
        let count = unsafe { count.as_mut() }.ok_or_else(unknown)?;
        if nodes.is_null() {
            *count = total;
            return Ok(());
        }
        for at in 0..*count {
            let node = if at < total { handle(number + at as u64 + 1) } else { std::ptr::null_mut() };
            // SAFETY: CUDA's contract: there is room for `count` nodes.
            unsafe { nodes.add(at).write(node) };
        }
        *count = total.min(*count);
        Ok(())
    };
    A::code(find())
}

pub(crate) unsafe extern "C" fn node_get_type(node: Handle, kind: *mut c_int) -> c_int {
    let find = |_: &dyn Driver| {
        let number = node.addr() as u64;
        let (graph, at) = (number >> NODE_BITS << NODE_BITS, number % (1 << NODE_BITS));
        let graphs = GRAPHS.lock();
        let nodes = graphs.living.get(&graph).ok_or_else(unknown)?;
        at.checked_sub(1).and_then(|at| nodes.get(at as usize)).copied().ok_or_else(unknown)
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Driving::answer(kind, find) }
}

/// The first version of `cuStreamBeginCapture`, whose captures are global.
pub(crate) unsafe extern "C" fn begin_v1<A: Api>(on: Handle) -> c_int {
    // SAFETY: the caller's promises are the same.
    unsafe { begin::<A>(on, 0) }
}

/// A simulated capture cannot become a graph that runs.
pub(crate) unsafe extern "C" fn instantiate(exec: *mut Handle, graph: Handle, _flags: u64) -> c_int {
    let find = |_: &dyn Driver| {
        let is_known = GRAPHS.lock().living.contains_key(&(graph.addr() as u64));
        Err(if is_known { refusal(DriverError::NOT_SUPPORTED) } else { unknown() })
    };
    // SAFETY: CUDA's contract for the arguments.
    unsafe { Driving::answer(exec, find) }
}
