//! Shows how to write your own driver: plain host memory behind the trait `Driver`. The driver passes
//! `millpond_testkit::conformance::driver`, and resources on top of it pass the conformance suite. A driver
//! for HIP or Level Zero, or a test double, would look the same.
//!
//! All work is done in the call that submits it, so a stream never has pending work.

use std::alloc;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millpond::DeviceMemoryResourceExt;
use millpond::driver::{
    DeviceAttribute, DeviceSpec, DriverError, DriverHandle, DriverResult, Event, EventFlags, Health,
    MemoryInfo, StreamFlags, register,
};
use millpond::resources::{CudaMemoryResource, PoolLayer};
use millpond::{DeviceId, DevicePtr, Driver, Result, StreamRef};

type Done = DriverResult<()>;

const CAPACITY: u64 = 4 << 30;

/// Host memory as a device.
#[derive(Debug, Default)]
pub(crate) struct HostDriver {
    health: Arc<Health>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<u64, alloc::Layout>,
    used: u64,
    streams: HashSet<StreamRef>,
    events: HashSet<Event>,
    handles: u64,
}

impl State {
    /// Returns a new handle for a stream or an event. The handles 0 to 2 are the default streams.
    fn new_handle(&mut self) -> u64 {
        self.handles += 1;
        self.handles + 2
    }
}

/// Frees the blocks that the program did not free.
impl Drop for State {
    fn drop(&mut self) {
        for (address, layout) in &self.blocks {
            // SAFETY: the block was allocated with this layout, and no handle to the driver is left.
            unsafe { alloc::dealloc(host(DevicePtr::new(*address)), *layout) }
        }
    }
}

fn check(is_right: bool, code: i32, call: &'static str) -> Done {
    if is_right { Ok(()) } else { Err(DriverError::new(code, call)) }
}

fn host(ptr: DevicePtr) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(ptr.address() as usize)
}

impl HostDriver {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for HostDriver {
    fn device(&self) -> DeviceId {
        DeviceId::own(0)
    }

    fn attribute(&self, attribute: DeviceAttribute) -> DriverResult<i64> {
        let is_known = attribute == DeviceAttribute::Integrated;
        // 0, because `mem_get_info` is exact.
        check(is_known, DriverError::NOT_SUPPORTED, "attribute").map(|()| 0)
    }

    fn mem_get_info(&self) -> DriverResult<MemoryInfo> {
        Ok(MemoryInfo { free: CAPACITY - self.state().used, total: CAPACITY })
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn synchronize(&self) -> Done {
        Ok(())
    }

    fn mem_alloc(&self, bytes: u64) -> DriverResult<DevicePtr> {
        check(bytes > 0, DriverError::INVALID_VALUE, "mem_alloc")?;
        let mut state = self.state();
        let is_there = bytes <= CAPACITY - state.used;
        let layout = alloc::Layout::from_size_align(bytes as usize, 256).ok().filter(|_| is_there);
        // SAFETY: the size is not zero.
        let memory = layout.map(|layout| (layout, unsafe { alloc::alloc(layout) }));
        let memory = memory.filter(|(_, memory)| !memory.is_null());
        let (layout, memory) = memory.ok_or(DriverError::new(DriverError::OUT_OF_MEMORY, "mem_alloc"))?;
        let ptr = DevicePtr::new(memory.expose_provenance() as u64);
        state.used += bytes;
        state.blocks.insert(ptr.address(), layout);
        Ok(ptr)
    }

    unsafe fn mem_free(&self, ptr: DevicePtr) -> Done {
        let mut state = self.state();
        let layout = state.blocks.remove(&ptr.address());
        let layout = layout.ok_or(DriverError::new(DriverError::INVALID_VALUE, "mem_free"))?;
        state.used -= layout.size() as u64;
        // SAFETY: the block was allocated with this layout, and the caller promises that nothing uses it.
        unsafe { alloc::dealloc(host(ptr), layout) };
        Ok(())
    }

    fn stream_create(&self, _flags: StreamFlags) -> DriverResult<StreamRef> {
        let mut state = self.state();
        let stream = StreamRef::with_new_id(state.new_handle());
        state.streams.insert(stream);
        Ok(stream)
    }

    unsafe fn stream_destroy(&self, stream: StreamRef) -> Done {
        check(self.state().streams.remove(&stream), DriverError::INVALID_HANDLE, "stream_destroy")
    }

    fn stream_is_gone(&self, stream: StreamRef) -> bool {
        let is_elsewhere = stream.is_legacy() || stream.is_per_thread() || stream.is_foreign();
        !is_elsewhere && !self.state().streams.contains(&stream)
    }

    fn stream_synchronize(&self, stream: StreamRef) -> Done {
        check(!self.stream_is_gone(stream), DriverError::INVALID_HANDLE, "stream_synchronize")
    }

    fn stream_query(&self, stream: StreamRef) -> DriverResult<bool> {
        self.stream_synchronize(stream).map(|()| true)
    }

    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> Done {
        self.stream_synchronize(stream).and(self.event_synchronize(event))
    }

    fn event_create(&self, _flags: EventFlags) -> DriverResult<Event> {
        let mut state = self.state();
        let event = Event(state.new_handle());
        state.events.insert(event);
        Ok(event)
    }

    unsafe fn event_destroy(&self, event: Event) -> Done {
        check(self.state().events.remove(&event), DriverError::INVALID_HANDLE, "event_destroy")
    }

    fn event_record(&self, event: Event, stream: StreamRef) -> Done {
        self.stream_wait_event(stream, event)
    }

    fn event_query(&self, event: Event) -> DriverResult<bool> {
        self.event_synchronize(event).map(|()| true)
    }

    fn event_synchronize(&self, event: Event) -> Done {
        check(self.state().events.contains(&event), DriverError::INVALID_HANDLE, "event_synchronize")
    }

    unsafe fn memcpy_htod_async(&self, dst: DevicePtr, src: *const u8, bytes: u64, on: StreamRef) -> Done {
        self.stream_synchronize(on)?;
        // SAFETY: here and below, the caller promises that both ranges are alive and ordered on the stream.
        unsafe { src.copy_to(host(dst), bytes as usize) };
        Ok(())
    }

    unsafe fn memcpy_dtoh_async(&self, dst: *mut u8, src: DevicePtr, bytes: u64, on: StreamRef) -> Done {
        self.stream_synchronize(on)?;
        // SAFETY: as above.
        unsafe { host(src).copy_to(dst, bytes as usize) };
        Ok(())
    }

    unsafe fn memcpy_dtod_async(&self, dst: DevicePtr, src: DevicePtr, bytes: u64, on: StreamRef) -> Done {
        // SAFETY: as above.
        unsafe { self.memcpy_dtoh_async(host(dst), src, bytes, on) }
    }

    unsafe fn memset_d8_async(&self, dst: DevicePtr, value: u8, bytes: u64, on: StreamRef) -> Done {
        self.stream_synchronize(on)?;
        // SAFETY: as above.
        unsafe { host(dst).write_bytes(value, bytes as usize) };
        Ok(())
    }
}

pub(crate) fn main() -> Result<()> {
    let driver: DriverHandle = Arc::new(HostDriver::default());
    register(&driver)?;
    let device: DeviceSpec = "own:0".parse()?; // MILLPOND_DEVICE takes this text too
    let pool = CudaMemoryResource::new(device.open()?).layer(PoolLayer::new())?;
    let block = pool.allocate_bytes(1000, StreamRef::LEGACY)?;
    // SAFETY: the block came from this pool with this size, once, and nothing uses it.
    unsafe { pool.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
    println!("{pool} on {}: {} bytes held", driver.device(), pool.pool_bytes());
    Ok(())
}
