//! `malloc` and `free` as PyTorch and CuPy call them, on the default resource of each device.
//!
//! A free names no resource, so a table stores the resource of each block. If other streams used a block, the
//! library frees the block after the device has finished their work. No stream waits for another stream.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use millpond_core::{
    AnyResource, DeviceId, DeviceMemoryResource, DevicePtr, Error, ErrorKind, Layout, Result,
};
use millpond_resources::registry::{changes, get_per_device_resource, is_per_device_resource};
use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashSet};

use crate::block::{Block, Served, Use};
use crate::device::{device_id, device_ptr};
use crate::graph_pools;
use crate::history;
use crate::parked;
use crate::process::{check_process, is_copy, notice_forks};
use crate::resource::Resource;
use crate::status::{Status, default_stream, guarded, put, stream_on};

/// Work that remains after a block was entered in the table. The work may wait for other threads.
enum Unsettled {
    /// An earlier block at the same address, which was lost in a reset of its device.
    Lost(Block),
    /// The block itself, which the table did not accept.
    Refused(Block),
}

static LIVE: LazyLock<DashMap<DevicePtr, Block, FxBuildHasher>> = LazyLock::new(DashMap::default);
/// The resource that served each device last, until its default is replaced.
static SERVED: LazyLock<DashMap<DeviceId, Arc<Served>, FxBuildHasher>> = LazyLock::new(DashMap::default);
/// The number of ignored frees, whose blocks had been lost in a reset.
static STALE_FREES: AtomicU64 = AtomicU64::new(0);
/// The devices from which memory was requested.
static DEVICES: Mutex<Vec<DeviceId>> = Mutex::new(Vec::new());
/// One bit for each of these devices, by kind (simulated or not) and number. It can be read without the lock.
/// Devices with numbers of 64 or more have no bit.
static KNOWN_DEVICES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Returns the resource that serves a device, if it is still the default. The driver is asked without the
/// lock of the table.
fn still_served(id: DeviceId) -> Option<Arc<Served>> {
    let known = SERVED.get(&id).map(|known| Arc::clone(&known));
    known.filter(|known| is_per_device_resource(id, &known.0.0))
}

/// The last request of the calling thread: its device, how often defaults had changed by then, and the
/// resource that served it. The thread does not keep the resource alive.
type Last = (DeviceId, u64, Weak<Served>);

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Returns the resource of the calling thread's last request, if it serves this device now.
fn served_again(id: DeviceId, changes: u64) -> Option<Arc<Served>> {
    let find = |last: &RefCell<Option<Last>>| match &*last.borrow() {
        Some((device, at, served)) if (*device, *at) == (id, changes) => served.upgrade(),
        _ => None,
    };
    // At the end of a thread, the value may already be gone.
    let known = LAST.try_with(find).ok().flatten()?;
    (!known.0.0.driver().was_reset()).then_some(known)
}

/// Returns the resource that serves a device now.
fn served(id: DeviceId) -> Result<Arc<Served>> {
    let seen = changes();
    if let Some(known) = served_again(id, seen) {
        return Ok(known);
    }
    let served = match still_served(id) {
        Some(known) => known,
        None => {
            let fresh = Arc::new(Served(Resource::new(get_per_device_resource(id)?)));
            let before = SERVED.insert(id, Arc::clone(&fresh));
            drop(before);
            if changes() != seen {
                // Another thread may have replaced the default since then. An entry here would keep the old
                // default alive.
                let replaced = SERVED.remove_if(&id, |_, known| Arc::ptr_eq(known, &fresh));
                drop(replaced);
            }
            fresh
        }
    };
    let last = (id, seen, Arc::downgrade(&served));
    let _ = LAST.try_with(|slot| slot.replace(Some(last)));
    Ok(served)
}

/// Removes the resource that served a device from the table, because the default of the device changes. The
/// resource may end in this call.
pub(crate) fn forget_served(id: DeviceId) {
    let before = SERVED.remove(&id);
    drop(before);
}

pub(crate) fn allocate(bytes: u64, device: i32, stream: *mut c_void) -> Result<*mut c_void> {
    if bytes == 0 {
        return Ok(null_mut());
    }
    check_process()?;
    let id = device_id(device)?;
    let served = served(id)?;
    let resource = &served.0.0;
    let (layout, stream) = (Layout::new(bytes), stream_on(&**resource, stream)?);
    parked::give_back_passed(false);
    let served = match graph_pools::resource_for(id, stream, resource.driver())? {
        Some(of_graph) => Arc::new(Served(Resource::new(of_graph))),
        None => served,
    };
    let resource = &served.0.0;
    let mut outcome = resource.allocate(layout, stream);
    if outcome.as_ref().is_err_and(Error::is_out_of_memory)
        && (parked::give_back_passed(true) | graph_pools::release_ended())
    {
        outcome = resource.allocate(layout, stream);
    }
    history::asked(&**resource, &outcome, bytes, stream);
    let ptr = outcome?;
    note_device(id);
    settle(note(Block::new(ptr, served, bytes, stream)))?;
    Ok(without_provenance_mut(ptr.address() as usize))
}

/// Allocates only from the calling thread's cache, on a default stream, without waiting. Returns `None` if
/// the cache cannot serve the request. `unlocked` runs work that may wait.
pub(crate) fn allocate_cached(
    bytes: u64,
    device: i32,
    stream: *mut c_void,
    unlocked: impl FnOnce(&mut dyn FnMut()),
) -> Option<Result<*mut c_void>> {
    let stream = default_stream(stream)?;
    let is_first = KNOWN_DEVICES.iter().all(|known| known.load(Ordering::Relaxed) == 0);
    if is_first || is_copy() || parked::are_any() || graph_pools::are_open() {
        return None;
    }
    let id = device_id(device).ok()?;
    let served = still_served(id)?;
    let cached = served.0.pool().and_then(|pool| pool.allocate_cached(Layout::new(bytes), stream));
    let Some(ptr) = cached else {
        end_unlocked(served, unlocked);
        return None;
    };
    history::asked(&*served.0.0, &Ok(ptr), bytes, stream);
    let noted = note(Block::new(ptr, served, bytes, stream));
    let mut outcome = Ok(());
    if noted.is_some() {
        let mut noted = Some(noted);
        unlocked(&mut || outcome = settle(noted.take().flatten()));
    }
    Some(outcome.map(|()| without_provenance_mut(ptr.address() as usize)))
}

/// Drops a use of a device's resource. If the resource was replaced, it ends with the last use, which may
/// wait.
fn end_unlocked(served: Arc<Served>, unlocked: impl FnOnce(&mut dyn FnMut())) {
    if let Some(last) = Arc::into_inner(served) {
        let mut last = Some(last);
        unlocked(&mut || drop(last.take()));
    }
}

/// Notes that memory was requested from a device.
fn note_device(id: DeviceId) {
    let bit = 1_u64.checked_shl(id.ordinal()).unwrap_or_default();
    let known = &KNOWN_DEVICES[usize::from(id.is_sim())];
    if known.load(Ordering::Relaxed) & bit != 0 {
        return;
    }
    notice_forks();
    let mut devices = DEVICES.lock();
    if !devices.contains(&id) {
        devices.push(id);
    }
    known.fetch_or(bit, Ordering::Relaxed);
}

/// Enters a block in the table. If the table has a block at this address, there are two causes: the earlier
/// block was lost in a reset of its device, or it belongs to another simulated device. A free could not tell
/// the blocks of two simulated devices apart.
fn note(mut block: Block) -> Option<Unsettled> {
    loop {
        let known = match LIVE.entry(block.ptr) {
            Entry::Vacant(place) => {
                drop(place.insert(block));
                return None;
            }
            Entry::Occupied(known) => Arc::clone(&known.get().served),
        };
        // The drivers are asked without the lock of the table.
        let driver = known.0.0.driver();
        let is_lost = driver.was_reset() || driver.health().is_lost(); // the loss may not be noticed yet
        if !is_lost && driver.device() != block.served.0.0.driver().device() {
            return Some(Unsettled::Refused(block));
        }
        match LIVE.entry(block.ptr) {
            Entry::Occupied(mut now) if Arc::ptr_eq(&now.get().served, &known) => {
                if is_lost {
                    block.stale = now.get().stale.saturating_add(1);
                }
                return Some(Unsettled::Lost(now.insert(block)));
            }
            // The block was freed in the meantime, so look again.
            Entry::Occupied(_) | Entry::Vacant(_) => {}
        }
    }
}

/// Does the work that `note` returned.
fn settle(unsettled: Option<Unsettled>) -> Result<()> {
    match unsettled {
        None => Ok(()),
        Some(Unsettled::Lost(lost)) => {
            drop(lost);
            Ok(())
        }
        Some(Unsettled::Refused(block)) => {
            block.note_free();
            block.give_back();
            let why =
                "simulated devices have the same addresses; use millpond_malloc on one device at a time";
            Err(Error::new(ErrorKind::Unsupported, why))
        }
    }
}

/// Returns each resource that has blocks in the table or serves a device now. The layers of captured graphs
/// come first: each takes a large block from its base, and only the layer knows the blocks inside.
pub(crate) fn resources() -> Result<Vec<AnyResource>> {
    let mut all = graph_pools::layers();
    LIVE.iter().for_each(|block| all.push(block.served.0.0.clone()));
    let devices = DEVICES.lock().clone();
    for id in devices {
        all.push(get_per_device_resource(id)?);
    }
    let mut seen = FxHashSet::default();
    all.retain(|resource| seen.insert(Arc::as_ptr(resource).addr()));
    Ok(all)
}

/// Removes a block from the table, so that the caller can free it. Returns `None` if there is nothing to do.
/// If blocks at this address were lost in resets, the same number of frees is ignored. So no owner frees
/// another owner's memory, in whatever order the owners free.
fn take(ptr: *mut c_void) -> Result<Option<Block>> {
    if ptr.is_null() || is_copy() {
        return Ok(None);
    }
    let unknown = || Error::invalid_argument(format!("{ptr:p} is not a live block of millpond_malloc"));
    let Entry::Occupied(mut known) = LIVE.entry(device_ptr(ptr)) else { return Err(unknown()) };
    if known.get().stale == 0 {
        return Ok(Some(known.remove()));
    }
    known.get_mut().stale -= 1;
    known.get_mut().may_be_free = true;
    drop(known);
    STALE_FREES.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(target: "millpond::misuse", ?ptr, "ignored the free of a block that a reset ended");
    Ok(None)
}

pub(crate) fn free(ptr: *mut c_void) -> Result<()> {
    let Some(block) = take(ptr)? else { return Ok(()) };
    block.note_free();
    give_back(block)
}

/// Returns a block to its resource after the device has finished the recorded streams' work.
fn give_back(block: Block) -> Result<()> {
    if block.is_passed() {
        block.give_back();
        return Ok(());
    }
    parked::park(block)
}

/// Frees a block into the calling thread's cache, if the cache accepts the block. Otherwise `unlocked` runs
/// work that may wait.
pub(crate) fn free_unlocked(ptr: *mut c_void, unlocked: impl FnOnce(&mut dyn FnMut())) -> Result<()> {
    let Some(block) = take(ptr)? else { return Ok(()) };
    block.note_free();
    let is_plain = block.used_on.is_empty() && !block.names_ended();
    let pool = if is_plain { block.served.0.pool() } else { None };
    // SAFETY: as in `Block::give_back`; if the cache does not take the block, it is given back below.
    let is_back = pool.is_some_and(|pool| unsafe {
        pool.deallocate_cached(block.ptr, Layout::new(block.bytes), block.stream.here())
    });
    let mut outcome = Ok(());
    if !is_back {
        let mut block = Some(block);
        unlocked(&mut || outcome = block.take().map_or(Ok(()), give_back));
    } else {
        end_unlocked(block.served, unlocked);
    }
    outcome
}

/// Allocates `bytes` for use on `stream` from the default resource of the device with this number. If that
/// fails, returns null, and `millpond_error_message` returns the reason.
///
/// # Safety
/// The stream belongs to the device, and stays alive as long as the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_malloc(bytes: usize, device: i32, stream: *mut c_void) -> *mut c_void {
    let mut ptr = null_mut();
    guarded(|| {
        ptr = allocate(bytes as u64, device, stream)?;
        Ok(())
    });
    ptr
}

/// Frees a block in the order of the stream that it was allocated on. The free also waits for all work on the
/// streams that `millpond_record_stream` named for the block. Ignores a null pointer. In a forked child,
/// ignores every block. Ignores `bytes`, `device` and `stream`, because the library knows them.
///
/// # Safety
/// The block is from `millpond_malloc`. If unrecorded streams use the block, their work is ordered before the
/// next work of the stream that the block was allocated on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_free(ptr: *mut c_void, bytes: usize, device: i32, stream: *mut c_void) {
    let _ = (bytes, device, stream);
    guarded(|| free(ptr).inspect_err(refused));
}

/// Reports a refused free in the log, because its caller gets no status.
pub(crate) fn refused(error: &Error) {
    tracing::error!(target: "millpond::misuse", %error, "a free was refused");
}

/// Returns the number of ignored frees. A free is ignored if a reset of the device's context destroyed its
/// block, and a newer block has the same address.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_stale_frees() -> u64 {
    STALE_FREES.load(Ordering::Relaxed)
}

/// Announces that work on `stream` uses a block. After the program frees the block, the library reuses its
/// memory only when that work is done.
///
/// # Safety
/// The stream belongs to the block's device, and stays alive until the block is freed. If the stream captures
/// a graph at the time of the free, it must stay alive after the free, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_record_stream(ptr: *mut c_void, stream: *mut c_void) -> Status {
    guarded(|| {
        check_process()?;
        let unknown = || Error::invalid_argument(format!("{ptr:p} is not a live block of millpond_malloc"));
        // The driver is called without the lock of the table.
        let served = LIVE.get(&device_ptr(ptr)).map(|block| Arc::clone(&block.served));
        let used = Use::of(stream_on(&*served.ok_or_else(unknown)?.0.0, stream)?);
        let mut block = LIVE.get_mut(&device_ptr(ptr)).ok_or_else(unknown)?;
        if block.stream.id != used.id && block.used_on.iter().all(|known| known.id != used.id) {
            block.used_on.push(used);
        }
        Ok(())
    })
}

/// Writes the size of the live `millpond_malloc` block that starts at `ptr` to `bytes`.
///
/// # Safety
/// `bytes` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_block_size(ptr: *mut c_void, bytes: *mut u64) -> Status {
    guarded(|| {
        check_process()?;
        let block = LIVE.get(&device_ptr(ptr)).map(|block| block.bytes);
        let unknown = || Error::invalid_argument(format!("{ptr:p} is not a live block of millpond_malloc"));
        let size = block.ok_or_else(unknown)?;
        // SAFETY: the caller's promise.
        unsafe { put(bytes, size) }
    })
}

/// Returns free memory to the driver: trims the default resource of every device from which memory was
/// requested.
#[unsafe(no_mangle)]
pub extern "C" fn millpond_empty_cache() -> Status {
    guarded(|| {
        check_process()?;
        parked::give_back_passed(true);
        graph_pools::release_ended();
        let devices = DEVICES.lock().clone();
        // Trims every device, even if one trim fails.
        let trim = |id| get_per_device_resource(id)?.trim(0).map(drop);
        devices.into_iter().map(trim).fold(Ok(()), Result::and)
    })
}
