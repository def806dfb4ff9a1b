//! Shows how to write your own driver: plain host memory behind the trait `Driver`. Resources on top of this
//! driver pass the conformance suite. A driver for HIP or Level Zero, or a test double, would look the same.
//!
//! All work is done in the call that submits it, so a stream never has pending work.

use std::alloc;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millpond::DeviceMemoryResourceExt;
use millpond::driver::{DeviceSpec, register};
use millpond::driver::{
    DriverError, DriverHandle, DriverResult, Event, EventFlags, Health, MemoryInfo, StreamFlags,
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
    last: u64,
    handles: HashSet<u64>,
}

impl State {
    /// Makes a stream or an event. CUDA's first few numbers are the default streams.
    fn new_handle(&mut self) -> u64 {
        self.last = self.last.max(15) + 1;
        self.handles.insert(self.last);
        self.last
    }
}

fn check(is_right: bool, call: &'static str) -> Done {
    if is_right { Ok(()) } else { Err(DriverError::new(DriverError::INVALID_VALUE, call)) }
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
        check(bytes > 0, "malloc")?;
        let mut state = self.state();
        let is_there = bytes <= CAPACITY - state.used;
        let layout = alloc::Layout::from_size_align(bytes as usize, 256).ok().filter(|_| is_there);
        // SAFETY: the size is not zero.
        let memory = layout.map(|layout| (layout, unsafe { alloc::alloc(layout) }));
        let memory = memory.filter(|(_, memory)| !memory.is_null());
        let (layout, memory) = memory.ok_or(DriverError::new(DriverError::OUT_OF_MEMORY, "malloc"))?;
        let ptr = DevicePtr::new(memory.expose_provenance() as u64);
        state.used += bytes;
        state.blocks.insert(ptr.address(), layout);
        Ok(ptr)
    }

    unsafe fn mem_free(&self, ptr: DevicePtr) -> Done {
        let mut state = self.state();
        let layout = state.blocks.remove(&ptr.address());
        let layout = layout.ok_or(DriverError::new(DriverError::INVALID_VALUE, "free"))?;
        state.used -= layout.size() as u64;
        // SAFETY: the block was allocated with this layout, and the caller promises that nothing uses it.
        unsafe { alloc::dealloc(host(ptr), layout) };
        Ok(())
    }

    fn stream_create(&self, _flags: StreamFlags) -> DriverResult<StreamRef> {
        let number = self.state().new_handle();
        Ok(StreamRef::from_raw_parts(number, number))
    }

    unsafe fn stream_destroy(&self, stream: StreamRef) -> Done {
        check(self.state().handles.remove(&stream.handle()), "stream_destroy")
    }

    fn stream_is_gone(&self, stream: StreamRef) -> bool {
        let is_default = stream.is_legacy() || stream.is_per_thread();
        !is_default && !self.state().handles.contains(&stream.handle())
    }

    fn stream_synchronize(&self, stream: StreamRef) -> Done {
        check(!self.stream_is_gone(stream), "stream_synchronize")
    }

    fn stream_query(&self, stream: StreamRef) -> DriverResult<bool> {
        Ok(!self.stream_is_gone(stream))
    }

    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> Done {
        self.stream_synchronize(stream).and(self.event_synchronize(event))
    }

    fn event_create(&self, _flags: EventFlags) -> DriverResult<Event> {
        Ok(Event(self.state().new_handle()))
    }

    unsafe fn event_destroy(&self, event: Event) -> Done {
        check(self.state().handles.remove(&event.0), "event_destroy")
    }

    fn event_record(&self, event: Event, stream: StreamRef) -> Done {
        self.stream_wait_event(stream, event)
    }

    fn event_query(&self, event: Event) -> DriverResult<bool> {
        self.event_synchronize(event).map(|()| true)
    }

    fn event_synchronize(&self, event: Event) -> Done {
        check(self.state().handles.contains(&event.0), "event_synchronize")
    }

    unsafe fn memcpy_htod_async(
        &self,
        dst: DevicePtr,
        src: *const u8,
        bytes: u64,
        stream: StreamRef,
    ) -> Done {
        // SAFETY: here and below, the caller promises that both ranges are alive and ordered on the stream.
        unsafe { src.copy_to(host(dst), bytes as usize) };
        self.stream_synchronize(stream)
    }

    unsafe fn memcpy_dtoh_async(&self, dst: *mut u8, src: DevicePtr, bytes: u64, stream: StreamRef) -> Done {
        // SAFETY: as above.
        unsafe { host(src).copy_to(dst, bytes as usize) };
        self.stream_synchronize(stream)
    }

    unsafe fn memcpy_dtod_async(
        &self,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: u64,
        stream: StreamRef,
    ) -> Done {
        // SAFETY: as above.
        unsafe { host(src).copy_to(host(dst), bytes as usize) };
        self.stream_synchronize(stream)
    }

    unsafe fn memset_d8_async(&self, dst: DevicePtr, value: u8, bytes: u64, stream: StreamRef) -> Done {
        // SAFETY: as above.
        unsafe { host(dst).write_bytes(value, bytes as usize) };
        self.stream_synchronize(stream)
    }
}

fn host(ptr: DevicePtr) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(ptr.address() as usize)
}

fn main() -> Result<()> {
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
