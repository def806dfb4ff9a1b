//! A memory manager over CuPy's memory pool, which has nothing of millpond below it. It is built on the
//! public items of this crate alone, so it proves that another library can implement the interface.

use std::fmt;
use std::sync::Arc;

use dashmap::DashMap;
use millpond_core::driver::{CaptureModeGuard, HostPtr, call};
use millpond_core::{
    DevicePtr, Driver, DriverError, DriverHandle, Error, Layout, MemoryInfo, Result, StreamId, StreamRef,
};
use millpond_plugin::{
    DeferCleanup, DeferredOptions, DeferredQueue, Finalizer, HostAllocFlags, HostMemory,
    HostOnlyMemoryManager, INTERFACE_VERSION, IpcHandle, MemoryManager, MemoryPointer, Owner, Token,
    current_stream, get_ipc_handle,
};

use crate::common::Bench;

/// More bytes than any device can address. CuPy rounds sizes up without a check for an overflow.
const ADDRESS_SPACE: u64 = 1 << 57;

/// CuPy's pool on one device, as `cupy.cuda.MemoryPool` offers it.
pub(crate) trait Pool: fmt::Debug + Send + Sync + 'static {
    /// Allocates memory for a stream. Returns the block, which `free` needs, and its address. Returns `None`
    /// if there is too little memory, after the pool has returned its free memory to the driver.
    fn malloc(&self, bytes: u64, stream: StreamRef) -> Result<Option<(u64, DevicePtr)>>;

    /// Returns a block to the free memory of the stream that it was allocated for.
    fn free(&self, block: u64);

    /// Returns to the driver all allocations that have no used part.
    fn free_all_blocks(&self);

    /// Returns the bytes that the pool can reuse.
    fn free_bytes(&self) -> u64;

    /// Returns the bytes that the pool holds, free or used.
    fn total_bytes(&self) -> u64;
}

/// Serves a framework's device memory from CuPy's pool, and its host memory from the driver.
#[derive(Clone, Debug)]
pub(crate) struct CupyMemoryManager {
    host: HostOnlyMemoryManager,
    device: Arc<DeviceHalf>,
}

/// The state that pointers keep alive for their finalizers. No lock is held while CuPy runs.
struct DeviceHalf {
    pool: Arc<dyn Pool>,
    /// The blocks in use.
    live: DashMap<Token, u64>,
    parked: DeferredQueue<u64>,
    /// The stream that last used each handle. CuPy knows a stream by its handle alone, but CUDA gives the
    /// handle of a destroyed stream to a new one.
    streams: DashMap<u64, StreamId>,
    /// The driver of the context that the pool's memory belongs to.
    driver: parking_lot::Mutex<Option<DriverHandle>>,
}

/// Makes a bench for a manager over `pool`. All managers share the pool, as all users of CuPy do.
pub(crate) fn bench(driver: DriverHandle, pool: Arc<dyn Pool>) -> Bench {
    let factory = move |driver| {
        Ok(Arc::new(CupyMemoryManager::new(driver, Arc::clone(&pool))) as Arc<dyn MemoryManager>)
    };
    Bench { driver, factory: Arc::new(factory) }
}

impl CupyMemoryManager {
    pub(crate) fn new(driver: Option<DriverHandle>, pool: Arc<dyn Pool>) -> Self {
        let device = DeviceHalf {
            pool,
            live: DashMap::new(),
            parked: DeferredQueue::new(DeferredOptions::IMMEDIATE),
            streams: DashMap::new(),
            driver: parking_lot::Mutex::new(driver.clone()),
        };
        let host = HostOnlyMemoryManager::new(driver, DeferredOptions::default());
        Self { host, device: Arc::new(device) }
    }

    /// Returns the driver of the present context. CuPy's pool cannot forget memory that was lost with an
    /// earlier context, so the framework must call `reset` before it resets the context.
    fn driver(&self) -> Result<DriverHandle> {
        let driver = self.host.driver()?;
        let mut known = self.device.driver.lock();
        if known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &driver)) {
            drop(known);
            if self.device.pool.total_bytes() > 0 {
                return Err(Error::context_reset().in_stack("CuPy's pool"));
            }
            self.device.streams.clear();
            known = self.device.driver.lock();
            *known = Some(Arc::clone(&driver));
        }
        Ok(driver)
    }
}

impl MemoryManager for CupyMemoryManager {
    fn memalloc(&self, bytes: u64) -> Result<MemoryPointer> {
        let driver = self.driver()?;
        if bytes == 0 {
            return Ok(MemoryPointer::null(driver.device()));
        }
        let stream = current_stream();
        let (block, ptr) = self
            .device
            .allocate(&*driver, bytes, stream, || self.host.flush())
            .map_err(|error| error.on_device(driver.device()).in_stack("CuPy's pool"))?;
        let token = Token::next();
        self.device.live.insert(token, block);
        Ok(MemoryPointer::new(driver.device(), ptr, bytes, token, Arc::<DeviceHalf>::clone(&self.device)))
    }

    fn memhostalloc(&self, bytes: u64, flags: HostAllocFlags) -> Result<HostMemory> {
        self.host.memhostalloc(bytes, flags)
    }

    fn memallocmanaged(&self, bytes: u64, attach_global: bool) -> Result<MemoryPointer> {
        self.host.memallocmanaged(bytes, attach_global)
    }

    unsafe fn mempin(&self, owner: Owner, ptr: HostPtr, bytes: u64, mapped: bool) -> Result<HostMemory> {
        // SAFETY: the caller's promise about the same range.
        unsafe { self.host.mempin(owner, ptr, bytes, mapped) }
    }

    fn initialize(&self) -> Result<()> {
        self.host.initialize()
    }

    fn get_memory_info(&self) -> Result<MemoryInfo> {
        let driver = self.driver()?;
        let mut info = call(&*driver, |driver| driver.mem_get_info())?;
        info.free += self.device.pool.free_bytes();
        Ok(info)
    }

    fn get_ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle> {
        get_ipc_handle(&*self.driver()?, memory)
    }

    fn reset(&self) {
        self.device.reset();
        self.host.reset();
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        self.device.parked.defer();
        let device = Arc::clone(&self.device);
        self.host.defer_cleanup().and(DeferCleanup::new(move || {
            device.free(device.parked.resume());
        }))
    }

    fn interface_version(&self) -> u32 {
        INTERFACE_VERSION
    }
}

impl DeviceHalf {
    /// Allocates a block. If there is too little memory, frees what waits for the end of a deferral first.
    fn allocate(
        &self,
        driver: &dyn Driver,
        bytes: u64,
        stream: StreamRef,
        flush_host: impl FnOnce() -> usize,
    ) -> Result<(u64, DevicePtr)> {
        let layout = Layout::new(bytes);
        if bytes > ADDRESS_SPACE {
            return Err(Error::request_too_large(layout, stream));
        }
        let _captures = CaptureModeGuard::relaxed(driver);
        self.settle(driver, stream)?;
        if let Some(found) = self.pool.malloc(bytes, stream)? {
            return Ok(found);
        }
        let is_freed = self.free(self.parked.take_all()) + flush_host() > 0;
        let found = if is_freed { self.pool.malloc(bytes, stream)? } else { None };
        found.ok_or_else(|| Error::out_of_memory(layout, stream))
    }

    /// If the handle belonged to another stream, waits for that stream's work, which may still use the free
    /// memory that CuPy keeps under this handle.
    fn settle(&self, driver: &dyn Driver, stream: StreamRef) -> Result<()> {
        let id = stream.id();
        let known = self.streams.get(&stream.handle()).map(|known| *known);
        if known == Some(id) {
            return Ok(());
        }
        if known.is_some() && !call(driver, |driver| driver.synchronize_beside_captures())? {
            return Err(DriverError::new(DriverError::STREAM_CAPTURE_UNSUPPORTED, "cuCtxSynchronize").into());
        }
        self.streams.insert(stream.handle(), id);
        Ok(())
    }

    fn free(&self, blocks: Vec<u64>) -> usize {
        blocks.iter().for_each(|block| self.pool.free(*block));
        blocks.len()
    }

    /// Ends all memory. Finalizers do not find it any more.
    fn reset(&self) {
        let tokens: Vec<Token> = self.live.iter().map(|entry| *entry.key()).collect();
        let live = tokens.iter().filter_map(|token| self.live.remove(token)).map(|(_, block)| block);
        self.free(live.chain(self.parked.take_all()).collect());
        let driver = self.driver.lock().clone();
        let _captures = driver.as_deref().map(CaptureModeGuard::relaxed);
        self.pool.free_all_blocks();
    }
}

impl Finalizer for DeviceHalf {
    fn finalize(&self, token: Token) {
        if let Some((_, block)) = self.live.remove(&token) {
            self.free(self.parked.push(block, 1));
        }
    }

    fn is_live(&self, token: Token) -> bool {
        self.live.contains_key(&token)
    }
}

impl Drop for DeviceHalf {
    fn drop(&mut self) {
        self.reset();
    }
}

impl fmt::Debug for DeviceHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceHalf")
            .field("pool", &self.pool)
            .field("live", &self.live.len())
            .field("parked", &self.parked.len())
            .finish_non_exhaustive()
    }
}
