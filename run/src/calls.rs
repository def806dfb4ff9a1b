//! The work of this library's functions around a call of the driver.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};

use millpond_core::ResourceStatistics;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::blocks::{Block, Blocks, NO_ADDRESS};
use crate::budget::Budget;
use crate::code::{CAPTURE_INVALIDATED, Code, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::device;
use crate::process::{Inside, say};
use crate::record::{Call, NOTICED, Record};
use crate::serving;
use crate::settings::Settings;
use crate::stacks::{self, Stack};
use crate::watched;

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;

/// The call stack of a call whose stack is not captured.
static NO_STACK: Stack = Stack { frames: Vec::new(), asker: String::new() };

/// The knowledge about the process.
struct State {
    blocks: Blocks,
    budget: Budget,
    record: Option<Record>,
    /// The primary context of each device that the process has retained.
    primary: FxHashMap<c_int, u64>,
    /// The program's memory on each device, if the process is watched.
    watched: Option<FxHashMap<c_int, ResourceStatistics>>,
}

/// The state of this process; `None` if there is nothing to do.
static STATE: OnceLock<Option<Mutex<State>>> = OnceLock::new();

fn state() -> Option<&'static Mutex<State>> {
    let state = STATE.get_or_init(|| {
        let settings = Settings::from_environment();
        let state = || State {
            blocks: Blocks::default(),
            budget: Budget::new(settings.budget),
            primary: FxHashMap::default(),
            watched: (settings.is_watched && settings.stack.is_none()).then(FxHashMap::default),
            record: settings.record.as_deref().and_then(|path| Record::create(path, settings.budget)),
        };
        if let Some(stack) = &settings.stack {
            serving::start(stack);
        }
        (!settings.is_idle()).then(|| Mutex::new(state()))
    });
    state.as_ref()
}

/// Enters the library for one call. Returns `None` if the call must be passed on.
fn enter() -> Option<(&'static Mutex<State>, Inside)> {
    let inside = Inside::enter()?;
    Some((state()?, inside))
}

/// The stream of a call whose null stream is the calling thread's default stream.
pub(crate) fn per_thread(stream: *mut c_void) -> *mut c_void {
    if stream.is_null() { std::ptr::without_provenance_mut(PER_THREAD) } else { stream }
}

impl State {
    /// Counts a block of the program, and writes its row if the process is recorded. Then looks for bytes
    /// that the driver itself has taken.
    fn note(
        &mut self,
        call: Call,
        block: &Block,
        stream: u64,
        stack: &Stack,
        info: Option<(u64, device::Info)>,
    ) {
        if !block.is_of_program {
            return;
        }
        if let Some(watched) = &mut self.watched {
            let statistics = watched.entry(block.device).or_default();
            match call {
                Call::Allocate => watched::add(statistics, block.bytes),
                Call::Free => watched::remove(statistics, block.bytes),
                Call::Failure => {}
            }
        }
        let Some(record) = &mut self.record else { return };
        record.row(call, block, stream, stack);
        if let Some((_, info)) = info.filter(|(begun, _)| is_quiet(*begun)) {
            record.look(&mut self.blocks, block.device, info, NOTICED);
        }
    }

    /// Writes a failed request of the program.
    fn fail(&mut self, failed: &Block, stream: u64, stack: &Stack, info: Option<device::Info>) {
        let free = self.free(failed.device, info);
        if let Some(record) = self.record.as_mut().filter(|_| failed.is_of_program) {
            record.failure(failed, stream, stack, free);
        }
    }

    /// Returns the bytes that the process may take on a device.
    fn free(&self, device: c_int, info: Option<device::Info>) -> Option<u64> {
        let free = info.map(|info| info.free);
        self.budget.free(device).map(|left| free.map_or(left, |free| free.min(left))).or(free)
    }

    /// Ends blocks that the driver has freed.
    fn end(&mut self, gone: &[Block]) {
        for block in gone {
            if block.lent.is_none() {
                self.budget.give_back(block.device, block.bytes);
            }
            self.note(Call::Free, block, 0, &NO_STACK, None);
        }
    }
}

/// Returns the program's memory on a device, and its blocks, if the process is watched.
fn watched(device: c_int) -> Option<watched::Memory> {
    let state = STATE.get()?.as_ref()?.lock();
    let statistics = state.watched.as_ref()?.get(&device).copied().unwrap_or_default();
    let held = |block: &Block| (block.stack.clone(), block.bytes);
    Some((statistics, state.blocks.of_program(device).map(held).collect()))
}

/// The calls that change the free memory of a device: how many are under way, and how many began so far.
static UNDER_WAY: AtomicU64 = AtomicU64::new(0);
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// Marks such a call until the value is dropped.
struct Busy(());

impl Busy {
    fn enter() -> Self {
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        BEGUN.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the free memory of the current device, after the number of calls that had begun before.
fn quiet_info() -> Option<(u64, device::Info)> {
    let begun = BEGUN.load(Ordering::SeqCst);
    let info = device::info()?;
    Some((begun, info))
}

/// Returns whether no other call began since, or is under way.
fn is_quiet(begun: u64) -> bool {
    UNDER_WAY.load(Ordering::SeqCst) <= 1 && BEGUN.load(Ordering::SeqCst) == begun
}

/// Who may serve a request, and in which order.
enum Order {
    /// Only the driver.
    Driver,
    /// A stack, with the order of a stream; without a stream, the memory can be used at once on all streams.
    Stack(Option<*mut c_void>),
}

/// Allocates a block that its context takes with it.
pub(crate) fn allocate(ptr: *mut u64, bytes: usize, is_managed: bool, real: impl FnOnce() -> Code) -> Code {
    let block = |(context, device)| Block { context, ..Block::new(0, bytes as u64, device) };
    let order = if is_managed || ptr.is_null() { Order::Driver } else { Order::Stack(None) };
    request(block, 0, order, ptr, real, |_, block| block)
}

/// Allocates a block of a pool, which outlives contexts.
pub(crate) fn allocate_async(
    ptr: *mut u64,
    bytes: usize,
    stream: *mut c_void,
    real: impl FnOnce() -> Code,
) -> Code {
    if device::is_capturing(stream) {
        return real();
    }
    let block = |(_, device)| Block::new(0, bytes as u64, device);
    let order = if ptr.is_null() { Order::Driver } else { Order::Stack(Some(stream)) };
    request(block, stream.addr() as u64, order, ptr, real, |_, block| block)
}

/// Allocates rows whose distance the driver chooses.
pub(crate) fn allocate_pitch(
    ptr: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    real: impl FnOnce() -> Code,
) -> Code {
    // The driver chooses multiples of this number.
    let row = width.checked_next_multiple_of(512).unwrap_or(usize::MAX);
    let bytes = row.saturating_mul(height) as u64;
    let block = |(context, device)| Block { context, ..Block::new(0, bytes, device) };
    request(block, 0, Order::Driver, ptr, real, |state, block| {
        // SAFETY: after success, the driver has written the distance.
        let bytes = unsafe { *pitch }.saturating_mul(height) as u64;
        state.budget.give_back(block.device, block.bytes);
        state.budget.add(block.device, bytes);
        Block { bytes, ..block }
    })
}

/// Creates physical memory.
pub(crate) fn create(
    handle: *mut u64,
    bytes: usize,
    props: *const c_void,
    real: impl FnOnce() -> Code,
) -> Code {
    /// The first fields of `CUmemAllocationProp`.
    #[repr(C)]
    struct Props {
        kind: c_int,
        handles: c_int,
        location: c_int,
        device: c_int,
    }
    // SAFETY: the program passes null or a structure that begins with these fields.
    let Some(props) = (unsafe { props.cast::<Props>().as_ref() }) else { return real() };
    if props.location != ON_DEVICE {
        return real();
    }
    let block = |_| Block::new(0, bytes as u64, props.device);
    // The handle takes the place of the address.
    request(block, 0, Order::Driver, handle, real, |state, block| state.blocks.create(block.address, block))
}

/// Asks a stack, or the budget and the driver. Writes the block to the recording, or the failure.
///
/// `wanted` describes the request by the current context and device. `ptr` takes the address. `found` changes
/// the block that the driver has allocated.
fn request(
    wanted: impl FnOnce((u64, c_int)) -> Block,
    stream: u64,
    order: Order,
    ptr: *mut u64,
    real: impl FnOnce() -> Code,
    found: impl FnOnce(&mut State, Block) -> Block,
) -> Code {
    let Some((state, inside)) = enter() else { return real() };
    // Without a context, the driver refuses the call.
    let Some(current) = device::current() else { return real() };
    let wanted = Block { is_of_program: inside.is_of_program(), ..wanted(current) };
    let (is_primary, is_recorded, is_watched) = {
        let state = state.lock();
        let is_primary = state.primary.get(&wanted.device) == Some(&current.0);
        let is_watched = wanted.is_of_program && state.watched.is_some();
        (is_primary, wanted.is_of_program && state.record.is_some(), is_watched)
    };
    if is_watched {
        watched::show(wanted.device, watched);
    }
    let served = match order {
        // The stacks' memory belongs to the primary contexts.
        Order::Stack(stream) if wanted.is_of_program && is_primary => {
            serving::allocate(wanted.device, wanted.bytes, stream)
        }
        _ => None,
    };
    let _busy = Busy::enter();
    let mut lent = None;
    let is_served = served.is_some();
    let is_allowed = is_served || state.lock().budget.take(wanted.device, wanted.bytes);
    let code = match served {
        Some(Ok((address, block))) => {
            // SAFETY: the program passes a place for the address; a stack serves no request without one.
            unsafe { ptr.write(address.address()) };
            lent = Some(block);
            0
        }
        Some(Err(code)) => code,
        None if is_allowed => real(),
        None => OUT_OF_MEMORY,
    };
    let captured = (is_recorded || is_watched).then(|| Arc::new(stacks::capture()));
    let stack = captured.as_deref().unwrap_or(&NO_STACK);
    let info = if is_recorded { quiet_info() } else { None };
    let mut state = state.lock();
    if code == 0 {
        // SAFETY: after success, the address is written.
        let address = unsafe { ptr.read() };
        let block = Block { address, lent, stack: captured.clone().filter(|_| is_watched), ..wanted };
        let block = found(&mut state, block);
        state.note(Call::Allocate, &block, stream, stack, info);
        // The address of physical memory is a number of ours, which is in the blocks already.
        if (1..NO_ADDRESS).contains(&block.address) {
            state.blocks.insert(block);
        }
        return code;
    }
    if is_allowed && !is_served {
        state.budget.give_back(wanted.device, wanted.bytes);
    }
    if code == OUT_OF_MEMORY {
        state.fail(&wanted, stream, stack, info.map(|(_, info)| info));
    }
    code
}

/// Frees a block, with the order of a stream or for good. Its row is written before the call, because another
/// thread may get the address after it.
///
/// Before a plain free, this function looks for bytes that the driver itself has taken: a program may take
/// all its memory at its start, and its code may be loaded later.
pub(crate) fn free(ptr: u64, stream: Option<*mut c_void>, real: impl FnOnce() -> Code) -> Code {
    let Some((state, inside)) = enter() else { return real() };
    let number = stream.map_or(0, |stream| stream.addr() as u64);
    let _busy = Busy::enter();
    let is_looked = inside.is_of_program() && stream.is_none() && state.lock().record.is_some();
    let seen = if is_looked { quiet_info().zip(device::current()) } else { None };
    let removed = {
        let mut state = state.lock();
        if let Some(((_, info), (_, device))) = seen.filter(|((begun, _), _)| is_quiet(*begun)) {
            let State { blocks, record, .. } = &mut *state;
            record.iter_mut().for_each(|record| record.look(blocks, device, info, NOTICED));
        }
        let block = state.blocks.remove(inside.is_of_program(), ptr);
        // A call stack is slow, and no command shows who freed a block.
        block.inspect(|block| state.note(Call::Free, block, number, &NO_STACK, None))
    };
    let Some(block) = removed else { return real() };
    let code = match &block.lent {
        Some(lent) => serving::free(ptr, lent, stream),
        None => real(),
    };
    if code != 0 {
        let mut state = state.lock();
        state.note(Call::Allocate, &block, number, &NO_STACK, None);
        state.blocks.insert(block);
    } else if block.lent.is_none() {
        state.lock().budget.give_back(block.device, block.bytes);
    }
    code
}

/// Begins a capture.
pub(crate) fn begin_capture(real: impl FnOnce() -> Code) -> Code {
    let code = real();
    if code == 0 {
        serving::CAPTURES.fetch_add(1, Ordering::SeqCst);
    }
    code
}

/// Ends a capture, also one that a mistake has made invalid.
pub(crate) fn end_capture(real: impl FnOnce() -> Code) -> Code {
    let code = real();
    if code == 0 || code == CAPTURE_INVALIDATED {
        // A capture that began before the library was asked was not counted.
        let less = |count: u64| count.checked_sub(1);
        let _ = serving::CAPTURES.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
    code
}

/// Gives a use of a handle to physical memory back.
pub(crate) fn release(handle: u64, real: impl FnOnce() -> Code) -> Code {
    ended(real, |blocks| blocks.release(handle).into_iter().collect())
}

/// Unmaps a range.
pub(crate) fn unmap(ptr: u64, bytes: usize, real: impl FnOnce() -> Code) -> Code {
    ended(real, |blocks| blocks.unmap(ptr, bytes as u64))
}

/// Destroys a context.
pub(crate) fn destroy(context: *mut c_void, real: impl FnOnce() -> Code) -> Code {
    ended(real, |blocks| blocks.of_context(context.addr() as u64))
}

/// Resets a device.
pub(crate) fn reset(device: c_int, real: impl FnOnce() -> Code) -> Code {
    reset_with(device, real)
}

fn reset_with(device: c_int, real: impl FnOnce() -> Code) -> Code {
    ended(real, |blocks| {
        serving::forget(device);
        blocks.of_device(device)
    })
}

/// Releases a device's primary context, which ends with its last use.
pub(crate) fn release_primary(device: c_int, real: impl FnOnce() -> Code) -> Code {
    let code = real();
    if code == 0 && !device::has_primary_context(device) {
        reset_with(device, || code);
    }
    code
}

/// Makes a call that ends blocks, and then removes them.
fn ended(real: impl FnOnce() -> Code, gone: impl FnOnce(&mut Blocks) -> Vec<Block>) -> Code {
    let Some((state, _inside)) = enter() else { return real() };
    let _busy = Busy::enter();
    let code = real();
    if code == 0 {
        let mut state = state.lock();
        let gone = gone(&mut state.blocks);
        state.end(&gone);
    }
    code
}

/// Counts another use of a handle to physical memory.
pub(crate) fn retain(handle: *mut u64, real: impl FnOnce() -> Code) -> Code {
    let Some((state, _inside)) = enter() else { return real() };
    let code = real();
    if code == 0 {
        // SAFETY: after success, the driver has written the handle.
        state.lock().blocks.retain(unsafe { *handle });
    }
    code
}

/// Maps physical memory.
pub(crate) fn map(ptr: u64, bytes: usize, handle: u64, real: impl FnOnce() -> Code) -> Code {
    let Some((state, _inside)) = enter() else { return real() };
    let code = real();
    if code == 0 {
        state.lock().blocks.map(ptr, bytes as u64, handle);
    }
    code
}

/// Answers how much memory is free. With a budget, the device seems to have only that much.
pub(crate) fn info(free: *mut usize, total: *mut usize, real: impl FnOnce() -> Code) -> Code {
    let Some((state, inside)) = enter() else { return real() };
    let code = real();
    if let (0, Some((_, device))) = (code, device::current()) {
        // A stack that serves the program has free memory of its own.
        let own = if inside.is_of_program() { serving::reserved_free(device) } else { 0 };
        let state = state.lock();
        lower(free, state.budget.free(device));
        // SAFETY: after success, the driver has written to the place if it is not null.
        if let Some(free) = unsafe { free.as_mut() } {
            *free = free.saturating_add(own as usize);
        }
        lower(free, state.budget.limit());
        lower(total, state.budget.limit());
    }
    code
}

/// Answers which block an address lies in.
pub(crate) fn range(base: *mut u64, bytes: *mut usize, ptr: u64, real: impl FnOnce() -> Code) -> Code {
    let Some((state, inside)) = enter() else { return real() };
    let code = real();
    let state = state.lock();
    if let Some(block) = state.blocks.lent_at(ptr).filter(|_| code == 0 && inside.is_of_program()) {
        // SAFETY: after success, the driver has written to the places that are not null.
        unsafe {
            if let Some(base) = base.as_mut() {
                *base = block.address;
            }
            if let Some(bytes) = bytes.as_mut() {
                *bytes = block.bytes as usize;
            }
        }
    }
    code
}

/// Shares a block with another process. The driver would share the memory around a block of a stack, and the
/// other process would find other bytes at its start.
pub(crate) fn share(ptr: u64, real: impl FnOnce() -> Code) -> Code {
    static IS_TOLD: Once = Once::new();
    let Some((state, inside)) = enter() else { return real() };
    let is_lent = inside.is_of_program() && state.lock().blocks.lent_at(ptr).is_some();
    if !is_lent {
        return real();
    }
    IS_TOLD.call_once(|| say("memory of --stack cannot be shared with cuIpcGetMemHandle; run without it"));
    NOT_SUPPORTED
}

/// Answers how much memory a device has.
pub(crate) fn total(total: *mut usize, real: impl FnOnce() -> Code) -> Code {
    let Some((state, _inside)) = enter() else { return real() };
    let code = real();
    if code == 0 {
        lower(total, state.lock().budget.limit());
    }
    code
}

/// Lowers a number of bytes that the driver has written. The driver takes null pointers here.
fn lower(place: *mut usize, most: Option<u64>) {
    // SAFETY: after success, the driver has written to the place if it is not null.
    if let (Some(place), Some(most)) = (unsafe { place.as_mut() }, most) {
        *place = (*place).min(most as usize);
    }
}

/// Creates a context, which takes memory that no other call shows.
pub(crate) fn create_context(context: *mut *mut c_void, device: c_int, real: impl FnOnce() -> Code) -> Code {
    let Some((state, _inside)) = enter() else { return real() };
    let before = device::taken_without_context(device);
    let code = real();
    let after = device::taken_without_context(device);
    if let (0, Some(before), Some(after)) = (code, before, after) {
        let bytes = after.saturating_sub(before);
        // The first look tells the bytes of other processes, so it must come before code is loaded.
        // SAFETY: after success, the driver has written the context, if the place is not null.
        let info = unsafe { context.as_ref() }.and_then(|context| device::info_in(context.addr() as u64));
        let State { blocks, budget, record, .. } = &mut *state.lock();
        budget.add(device, bytes);
        if let Some(record) = record {
            record.context(blocks, device, bytes);
            info.into_iter().for_each(|info| record.look(blocks, device, info, NOTICED));
        }
    }
    if code == 0 {
        static AT_EXIT: Once = Once::new();
        // The driver's own handler is older, so it runs later.
        // SAFETY: the function may be called at the end of the process.
        AT_EXIT.call_once(|| unsafe { _ = libc::atexit(look_at_exit) });
    }
    code
}

/// Writes the last size of the driver's own memory: it grows when kernels first run. The thread that ends the
/// process may have no context, so this function also looks in each device's primary context.
extern "C" fn look_at_exit() {
    let Some((state, _inside)) = enter() else { return };
    let mut contexts: Vec<(c_int, u64)> = {
        let state = state.lock();
        if state.record.is_none() {
            return;
        }
        state.primary.iter().map(|(device, context)| (*device, *context)).collect()
    };
    contexts.retain(|(device, _)| device::has_primary_context(*device));
    contexts.extend(device::current().map(|(context, device)| (device, context)));
    for (device, context) in contexts {
        let Some(info) = device::info_in(context) else { continue };
        let State { blocks, record, .. } = &mut *state.lock();
        if let Some(record) = record {
            record.look(blocks, device, info, 1);
        }
    }
}

/// Retains a device's primary context. The first use creates it.
pub(crate) fn retain_primary(context: *mut *mut c_void, device: c_int, real: impl FnOnce() -> Code) -> Code {
    let code =
        if device::has_primary_context(device) { real() } else { create_context(context, device, real) };
    if let (0, Some((state, _inside))) = (code, enter()) {
        // SAFETY: after success, the driver has written the context.
        state.lock().primary.insert(device, unsafe { *context }.addr() as u64);
    }
    code
}

/// Loads code, which takes memory that no other call shows.
pub(crate) fn load(real: impl FnOnce() -> Code) -> Code {
    let Some((state, _inside)) = enter() else { return real() };
    let before = device::info();
    let code = real();
    if let (0, Some(before), Some(after), Some((_, device))) =
        (code, before, device::info(), device::current())
    {
        let State { blocks, budget, record, .. } = &mut *state.lock();
        budget.add(device, before.free.saturating_sub(after.free));
        if let Some(record) = record {
            record.look(blocks, device, after, NOTICED);
        }
    }
    code
}
