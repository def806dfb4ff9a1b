//! A memory checker that a process can load through NVTX, without a GPU. It checks each call, and answers
//! which bytes are accessible. The test compiles it as a library.
//!
//! The variable `FAKE_CHECKER` makes it another kind of tool: `refuses` and `profiler` have no functions for
//! memory, `partial` has some of them. `forgetful` forgets each end of a region, and `wide` allows access to
//! the padding; the tests must notice both.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `nvtxExtModuleInfo_t` and its segment.
#[repr(C)]
pub struct Module {
    version: u16,
    size: u16,
    module: u16,
    compatibility: u16,
    segment_count: usize,
    segments: *const Segment,
    _exports: [usize; 2],
}

#[repr(C)]
pub struct Segment {
    id: usize,
    slot_count: usize,
    slots: *mut *const c_void,
}

#[repr(C)]
pub struct Range {
    bytes: usize,
    address: usize,
}

/// `nvtxMemHeapDesc_t`, up to the part that is checked.
#[repr(C)]
pub struct HeapDescription {
    compatibility: u16,
    size: u16,
    reserved: u32,
    usage: u32,
    kind: u32,
    range_size: usize,
    range: *const Range,
}

/// `nvtxMemRegionsRegisterBatch_t`.
#[repr(C)]
pub struct Registered {
    compatibility: u16,
    size: u16,
    kind: u32,
    heap: usize,
    count: usize,
    range_size: usize,
    ranges: *const Range,
    handles: usize,
}

/// `nvtxMemRegionsUnregisterBatch_t`.
#[repr(C)]
pub struct Unregistered {
    compatibility: u16,
    size: u16,
    ref_type: u32,
    count: usize,
    ref_size: usize,
    refs: *const usize,
}

struct State {
    /// By handle: address and bytes.
    heaps: BTreeMap<usize, (usize, usize)>,
    /// By address: bytes and heap.
    regions: BTreeMap<usize, (usize, usize)>,
    last_handle: usize,
    faults: usize,
}

static STATE: Mutex<State> =
    Mutex::new(State { heaps: BTreeMap::new(), regions: BTreeMap::new(), last_handle: 0, faults: 0 });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_kind(kind: &str) -> bool {
    std::env::var("FAKE_CHECKER").is_ok_and(|value| value == kind)
}

impl State {
    fn expect(&mut self, holds: bool, what: &str) {
        if !holds {
            self.faults += 1;
            eprintln!("fake checker: {what}");
        }
    }
}

/// Says that this checker gets the calls of simulated devices.
#[unsafe(no_mangle)]
pub static MillpondChecksSimulatedDevices: u8 = 1;

/// # Safety
/// As NVTX's headers call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtxExtension(module: *const Module) -> c_int {
    // SAFETY: the caller's promise.
    let (module, segment) = unsafe { (&*module, &*(*module).segments) };
    let mut state = state();
    let head = (module.version, module.module, module.compatibility, module.segment_count);
    let is_whole = usize::from(module.size) == size_of::<Module>();
    state.expect(head == (3, 1, 0x0102, 1) && is_whole, "a wrong module");
    state.expect((segment.id, segment.slot_count) == (1, 63), "a wrong segment");
    let functions: [(usize, *const c_void); 3] = [
        (0, register_heap as *const c_void),
        (3, register_regions as *const c_void),
        (5, unregister_regions as *const c_void),
    ];
    let known = if is_kind("partial") { 2 } else if is_kind("profiler") { 0 } else { functions.len() };
    for (slot, function) in &functions[..known] {
        // SAFETY: there are 63 slots.
        unsafe { *segment.slots.add(*slot) = *function };
    }
    c_int::from(!is_kind("refuses"))
}

unsafe extern "C" fn register_heap(domain: usize, heap: *const HeapDescription) -> usize {
    // SAFETY: the caller passes a description, which points to a range.
    let (heap, range) = unsafe { (&*heap, &*(*heap).range) };
    let mut state = state();
    let head = (domain, heap.compatibility, heap.size, heap.reserved, heap.usage, heap.kind, heap.range_size);
    state.expect(head == (0, 0x0102, 48, 0, 1, 1, size_of::<Range>()), "a wrong heap");
    // A heap ends without a call, when its memory is freed.
    let end = range.address + range.bytes;
    let overlaps = |(start, bytes): &(usize, usize)| *start < end && range.address < start + bytes;
    let freed: Vec<usize> =
        state.heaps.iter().filter(|(_, heap)| overlaps(heap)).map(|(handle, _)| *handle).collect();
    for handle in freed {
        state.heaps.remove(&handle);
        let is_used = state.regions.values().any(|(_, heap)| *heap == handle);
        state.expect(!is_used, "a heap was freed before its regions ended");
    }
    state.last_handle += 1;
    let handle = state.last_handle;
    state.heaps.insert(handle, (range.address, range.bytes));
    handle
}

unsafe extern "C" fn register_regions(domain: usize, batch: *const Registered) {
    // SAFETY: the caller passes a description of one range.
    let (batch, range) = unsafe { (&*batch, &*(*batch).ranges) };
    let mut state = state();
    let head = (domain, batch.compatibility, batch.kind, batch.count, batch.range_size, batch.handles);
    let is_right = head == (0, 0x0102, 1, 1, size_of::<Range>(), 0);
    state.expect(is_right && usize::from(batch.size) == size_of::<Registered>(), "a wrong region");
    let (start, end) = (range.address, range.address + range.bytes);
    let heap = state.heaps.get(&batch.heap).copied();
    let is_inside = heap.is_some_and(|(first, bytes)| first <= start && end <= first + bytes && start < end);
    state.expect(is_inside, "a region is not in its heap");
    let overlaps = state.regions.iter().any(|(first, (bytes, _))| *first < end && start < first + bytes);
    state.expect(!overlaps, "regions overlap");
    let bytes = if is_kind("wide") { range.bytes.next_multiple_of(256) } else { range.bytes };
    state.regions.insert(start, (bytes, batch.heap));
}

unsafe extern "C" fn unregister_regions(domain: usize, batch: *const Unregistered) {
    // SAFETY: the caller passes a description of one address.
    let (batch, region) = unsafe { (&*batch, *(*batch).refs) };
    let mut state = state();
    let head = (domain, batch.compatibility, batch.ref_type, batch.count, batch.ref_size);
    let is_right = head == (0, 0x0102, 1, 1, size_of::<usize>());
    state.expect(is_right && usize::from(batch.size) == size_of::<Unregistered>(), "a wrong end of a region");
    if !is_kind("forgetful") {
        let known = state.regions.remove(&region);
        state.expect(known.is_some(), "no such region to unregister");
    }
}

/// Returns 0 for a byte in no heap, 1 for a byte in a region, and 2 for a byte whose use the checker reports.
#[unsafe(no_mangle)]
pub extern "C" fn fake_checker_state(address: usize) -> u32 {
    let state = state();
    let holds = |start: usize, bytes: usize| start <= address && address < start + bytes;
    let region = state.regions.range(..=address).next_back();
    match state.heaps.values().any(|(start, bytes)| holds(*start, *bytes)) {
        false => 0,
        true if region.is_some_and(|(start, (bytes, _))| holds(*start, *bytes)) => 1,
        true => 2,
    }
}

/// Forgets all heaps and regions, as at a reset of the context.
#[unsafe(no_mangle)]
pub extern "C" fn fake_checker_reset() {
    let mut state = state();
    state.heaps.clear();
    state.regions.clear();
}

/// Returns the number of regions, and 1 000 000 for each fault.
#[unsafe(no_mangle)]
pub extern "C" fn fake_checker_count() -> u64 {
    let state = state();
    (state.regions.len() + 1_000_000 * state.faults) as u64
}
