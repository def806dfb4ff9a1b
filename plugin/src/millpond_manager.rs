//! A memory manager over a stack of memory resources.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use millpond_core::driver::{CaptureModeGuard, HostPtr};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DevicePtr, DriverHandle, Error, ErrorKind, Layout, MemoryInfo, Result, StreamRef,
};
use millpond_resources::get_per_device_resource;
use parking_lot::{Mutex, ReentrantMutex, RwLock};

use crate::host_only::no_device;
use crate::memory_pointer::{Finalizer, Token};
use crate::release_order::{ReleaseOrder, Uses};
use crate::{
    DeferCleanup, DeferredOptions, DeferredQueue, HostAllocFlags, HostMemory, HostOnlyMemoryManager,
    INTERFACE_VERSION, IpcHandle, ManagerFactory, MemoryManager, MemoryPointer, Owner, current_stream,
    get_ipc_handle,
};
use millpond_core::driver::call;

/// A manager that allocates its device memory from a stack of millpond's resources.
///
/// - `memalloc` allocates on the legacy default stream, or on the stream that
///   [`with_stream`](crate::with_stream) names. If another non-blocking stream uses the memory, announce this
///   with [`record_stream`](Self::record_stream).
/// - When a pointer is dropped, its block returns to the stack at once. The pool of the stack keeps the block
///   for the next request.
/// - While cleanup is deferred, dropped device memory is parked. It returns to the stack when the outermost
///   guard is dropped, or when there is too little memory for a request.
/// - In `get_memory_info`, reusable memory of the stack's pools counts as free.
/// - `reset` returns all memory to the driver. If the manager built the stack, it drops the stack, and builds
///   another stack at the next use. If the stack was passed in, the manager trims the stack and keeps it.
///   While a stream captures a graph, the reset cannot wait for all memory. Memory that may be in use then
///   stays parked, together with the stack. In this case, reset again after the capture.
/// - After a reset of the device's context (Numba's `cuda.close()`), a manager that built its stack builds
///   another stack in the new context. If its stack was passed in, the manager is lost together with the
///   stack.
///
/// `reset` must not be called from inside the stack, for instance from a callback of a resource. A reset may
/// run callbacks. They may allocate memory and drop pointers, as finalizers do. But they must not wait for
/// another thread that allocates, because that thread waits for the reset.
///
/// ```
/// use millpond_core::DriverHandle;
/// use millpond_core::stack::{LayerTable, StackSpec};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_plugin::{MemoryManager, MillpondMemoryManager};
///
/// let device: DriverHandle = SimDevice::new(SimConfig::h200());
/// let layers = LayerTable::new(millpond_resources::LAYERS.iter().copied());
/// let stack = "cuda+pool:pages=off".parse::<StackSpec>()?.build(&layers, &device)?;
/// let manager = MillpondMemoryManager::new(stack);
///
/// let memory = manager.memalloc(1 << 20)?;
/// let address = memory.device_pointer();
/// drop(memory);
/// assert_eq!(manager.memalloc(1 << 20)?.device_pointer(), address); // from the pool
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct MillpondMemoryManager {
    host: HostOnlyMemoryManager,
    /// The state for device memory. It is replaced after each reset of the context.
    device: RwLock<Option<Arc<DeviceHalf>>>,
}

/// A function that builds a stack on a device.
pub type StackBuilder = Arc<dyn Fn(&DriverHandle) -> Result<AnyResource> + Send + Sync>;

/// Where the stack comes from.
#[derive(Clone)]
enum Source {
    Given(AnyResource),
    Built(StackBuilder),
}

/// The state for device memory. Pointers keep it alive for their finalizers.
struct DeviceHalf {
    driver: DriverHandle,
    source: Source,
    /// The stack that serves requests. No lock is held while the stack is used. Each user and each block has
    /// its own handle, so a block returns to the stack that it came from.
    stack: Mutex<Option<AnyResource>>,
    /// This lock is held while the stack is built, because two stacks at a time would reserve memory twice.
    /// The value says whether the thread that holds the lock is building.
    building: ReentrantMutex<Cell<bool>>,
    /// This lock is held during a reset, because a new stack is built only after the old stack has returned
    /// its memory. A callback of the stack may need this lock on the resetting thread or, for a while, on
    /// another thread.
    resetting: ReentrantMutex<()>,
    live: DashMap<Token, Block>,
    parked: DeferredQueue<Block>,
    order: ReleaseOrder,
    /// Whether the context was reset, and this state was replaced.
    is_lost: AtomicBool,
}

/// How long a request waits for a reset. In a callback of the stack, the reset may be waiting for the
/// request.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a request waits for another thread that builds the stack. That thread may be waiting for the
/// request.
const BUILD_PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 20_000 });

/// The advice if CUDA cannot share the memory of a stack.
const SHARED_STACKS: &str = "a stack on `cuda` with `pages=off` pools shares its memory, such as \
                             cuda+pool:pages=off (a pool with `share=fd` shares blocks by file \
                             descriptors)";

/// A live block.
struct Block {
    stack: AnyResource,
    ptr: DevicePtr,
    layout: Layout,
    uses: Uses,
}

impl MillpondMemoryManager {
    /// Makes a manager over an existing stack.
    pub fn new(resource: AnyResource) -> Self {
        let driver = DriverHandle::clone(resource.driver());
        Self::with_source(Some(driver), Source::Given(resource))
    }

    /// Makes a manager that builds its stack at the first use, and again after a reset. If there is no
    /// device, the manager can only report its version. `build` must not use the manager.
    pub fn with_builder(driver: Option<DriverHandle>, build: StackBuilder) -> Self {
        Self::with_source(driver, Source::Built(build))
    }

    /// Makes a manager over the device's [default resource](millpond_resources::registry). The manager looks
    /// up the default at its first use, and at the first use after a reset.
    ///
    /// ```
    /// use millpond_core::DeviceMemoryResource;
    /// use millpond_driver::sim::{SimConfig, SimDevice};
    /// use millpond_plugin::{MemoryManager, MillpondMemoryManager};
    ///
    /// let manager = MillpondMemoryManager::over_default(SimDevice::new(SimConfig::h200()));
    /// let memory = manager.memalloc(1000)?;
    /// assert_eq!(manager.stack()?.to_string(), "cuda"); // no other default was set
    /// # drop(memory);
    /// # Ok::<(), millpond_core::Error>(())
    /// ```
    pub fn over_default(driver: DriverHandle) -> Self {
        let build = |driver: &DriverHandle| get_per_device_resource(driver.device());
        Self::with_builder(Some(driver), Arc::new(build))
    }

    /// Returns the driver of the manager's device. After a reset of the context, opens the device again.
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the manager was made without
    /// a device. Returns an error if the device cannot be opened.
    pub fn driver(&self) -> Result<DriverHandle> {
        self.host.driver()
    }

    /// Returns a factory that makes a manager over the stack `spec` for each device; see
    /// [`set_memory_manager`](crate::set_memory_manager).
    pub fn factory(spec: StackSpec, layers: LayerTable) -> ManagerFactory {
        let build: StackBuilder = Arc::new(move |driver| spec.build(&layers, driver));
        Arc::new(move |driver| Ok(Arc::new(Self::with_builder(driver, Arc::clone(&build)))))
    }

    fn with_source(driver: Option<DriverHandle>, source: Source) -> Self {
        let device = driver.clone().map(|driver| Arc::new(DeviceHalf::new(driver, source)));
        let host = HostOnlyMemoryManager::new(driver, DeferredOptions::default());
        Self { host, device: RwLock::new(device) }
    }

    /// Returns the stack. At the first use, builds it. While a caller keeps the stack, a reset cannot free
    /// its memory.
    ///
    /// # Errors
    /// Returns an error of building the stack.
    pub fn stack(&self) -> Result<AnyResource> {
        self.device()?.with_stack(|resource| Ok(Arc::clone(resource)))
    }

    /// Announces that work on `stream` uses `memory`. After that, the block returns to the stack only after
    /// this work. The stream must be alive at the call.
    ///
    /// Every stream that uses the memory needs this call, except the stream that the memory was allocated on.
    /// For memory of the legacy default stream, only non-blocking streams need it, because this stream waits
    /// for blocking streams anyway.
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the memory was freed, or
    /// belongs to another manager.
    pub fn record_stream(&self, memory: &MemoryPointer, stream: StreamRef) -> Result<()> {
        let device = self.device()?;
        let mut block = device
            .live
            .get_mut(&memory.token())
            .ok_or_else(|| memory.gone("record a use of").context("it must be this manager's live memory"))?;
        block.uses.add(stream);
        Ok(())
    }

    /// Returns the number of device allocations that were dropped, and that wait for the end of a deferral.
    pub fn parked(&self) -> usize {
        self.device.read().as_ref().map_or(0, |device| device.parked.len())
    }

    /// Returns the number of device allocations that were neither dropped nor reset.
    pub fn live(&self) -> usize {
        self.device.read().as_ref().map_or(0, |device| device.live.len())
    }

    /// Returns the state for device memory in the present context. It checks for a reset itself, because a
    /// pool with enough memory makes no driver call.
    fn device(&self) -> Result<Arc<DeviceHalf>> {
        let device = self.device.read().clone().ok_or_else(no_device)?;
        if !device.driver.was_reset() {
            return Ok(device);
        }
        match &device.source {
            Source::Built(_) => self.open_again(&device),
            Source::Given(stack) => Err(device.driver.health().error().in_stack(stack)),
        }
    }

    /// Starts again after a reset of the context: opens the device again, gets another stack, and removes all
    /// earlier memory.
    fn open_again(&self, lost: &Arc<DeviceHalf>) -> Result<Arc<DeviceHalf>> {
        let driver = self.host.driver()?;
        let fresh = Arc::new(DeviceHalf::new(driver, lost.source.clone()));
        // Other threads build the new stack after the lost stack has returned its memory.
        let resetting = fresh.resetting.lock();
        {
            let mut device = self.device.write();
            match &*device {
                Some(known) if !Arc::ptr_eq(known, lost) => return Ok(Arc::clone(known)),
                _ => *device = Some(Arc::clone(&fresh)),
            }
        }
        lost.forget();
        drop(resetting);
        Ok(fresh)
    }
}

impl MemoryManager for MillpondMemoryManager {
    fn memalloc(&self, bytes: u64) -> Result<MemoryPointer> {
        let device = self.device()?;
        let id = device.driver.device();
        if bytes == 0 {
            return Ok(MemoryPointer::null(id));
        }
        device.with_stack(|resource| {
            let (ptr, token) = device.allocate(resource, bytes, || self.host.flush())?;
            Ok(MemoryPointer::new(id, ptr, bytes, token, Arc::<DeviceHalf>::clone(&device)))
        })
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
        self.host.initialize()?;
        self.device()?.with_stack(|_| Ok(()))
    }

    fn get_memory_info(&self) -> Result<MemoryInfo> {
        self.device()?.with_stack(|resource| resource.memory_info())
    }

    fn get_ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle> {
        let device = self.device()?;
        get_ipc_handle(&*device.driver, memory).map_err(|error| match device.known_stack() {
            Some(stack) if error.kind() == ErrorKind::Unsupported => {
                error.context(SHARED_STACKS).in_stack(stack)
            }
            Some(stack) => error.in_stack(stack),
            None => error,
        })
    }

    fn reset(&self) {
        let device = self.device.read().clone();
        if let Some(device) = device {
            device.reset();
        }
        self.host.reset();
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        let host = self.host.defer_cleanup();
        let Some(device) = self.device.read().clone() else { return host };
        device.parked.defer();
        host.and(DeferCleanup::new(move || device.resume()))
    }

    fn interface_version(&self) -> u32 {
        INTERFACE_VERSION
    }
}

impl DeviceHalf {
    fn new(driver: DriverHandle, source: Source) -> Self {
        Self {
            order: ReleaseOrder::new(DriverHandle::clone(&driver)),
            driver,
            source,
            stack: Mutex::new(None),
            building: ReentrantMutex::new(Cell::new(false)),
            resetting: ReentrantMutex::new(()),
            live: DashMap::new(),
            parked: DeferredQueue::new(DeferredOptions::IMMEDIATE),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Handles a reset of the context, with which all blocks were lost. Some memory of the stack outlives the
    /// context. The stack returns it when no call uses the stack any more.
    fn forget(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
        let lost = (self.known_stack_taken(), self.take_blocks());
        drop(lost); // without a lock: code that the stack calls may drop pointers
    }

    fn known_stack(&self) -> Option<AnyResource> {
        self.stack.lock().clone()
    }

    fn known_stack_taken(&self) -> Option<AnyResource> {
        self.stack.lock().take()
    }

    /// Calls `body` with the stack. If there is no stack, builds it first.
    fn with_stack<T>(&self, body: impl FnOnce(&AnyResource) -> Result<T>) -> Result<T> {
        let known = match self.known_stack() {
            Some(known) => known,
            None => self.build()?,
        };
        body(&known)
    }

    /// Builds the stack, unless another thread was faster.
    fn build(&self) -> Result<AnyResource> {
        drop(self.resetting.try_lock_for(PATIENCE)); // waits for a reset
        let busy = || {
            let why = "another thread builds the memory manager's stack and does not finish; the builder \
                       must not wait for a thread that uses the manager";
            Error::new(ErrorKind::Busy, why).on_device(self.driver.device())
        };
        let building = self.building.try_lock_for(BUILD_PATIENCE).ok_or_else(busy)?;
        if self.is_lost.load(Ordering::SeqCst) {
            return Err(self.driver.health().error());
        }
        if let Some(known) = self.known_stack() {
            return Ok(known);
        }
        if building.replace(true) {
            let why = "the memory manager's stack is being built by this call; the builder must not use the \
                       manager's memory";
            return Err(Error::invalid_argument(why).on_device(self.driver.device()));
        }
        let is_building = IsBuilding(&building);
        let built = match &self.source {
            Source::Given(resource) => Arc::clone(resource),
            Source::Built(build) => build(&self.driver)?,
        };
        drop(is_building);
        *self.stack.lock() = Some(Arc::clone(&built));
        Ok(built)
    }

    /// Allocates a block from the stack. If there is too little memory, first frees all parked blocks and the
    /// blocks that `flush_host` finds, because a failed request would be worse than a pause.
    fn allocate(
        &self,
        resource: &AnyResource,
        bytes: u64,
        flush_host: impl FnOnce() -> usize,
    ) -> Result<(DevicePtr, Token)> {
        let (layout, stream) = (Layout::new(bytes), current_stream());
        self.give_back_all(self.parked.take()); // blocks that could not be ordered when they were dropped
        let mut outcome = resource.allocate(layout, stream);
        if outcome.as_ref().is_err_and(Error::is_out_of_memory)
            && self.give_back_all(self.parked.take_all()) + flush_host() > 0
        {
            outcome = resource.allocate(layout, stream);
        }
        let ptr = outcome?;
        let token = Token::next();
        let stack = Arc::clone(resource);
        self.live.insert(token, Block { stack, ptr, layout, uses: Uses::of(stream) });
        Ok((ptr, token))
    }

    /// Frees blocks to their stacks. Parks blocks whose free cannot be ordered now. Returns how many blocks
    /// it freed.
    fn give_back_all(&self, blocks: Vec<Block>) -> usize {
        let count = blocks.len();
        let left: Vec<Block> = self.give_back(blocks).collect();
        let freed = count - left.len();
        self.park(left);
        freed
    }

    fn park(&self, blocks: Vec<Block>) {
        for block in blocks {
            let bytes = block.layout.bytes();
            self.parked.park(block, bytes);
        }
    }

    /// Frees blocks to their stacks, each after its uses. Returns the blocks whose free cannot be ordered
    /// now.
    fn give_back(&self, blocks: Vec<Block>) -> impl Iterator<Item = Block> {
        blocks.into_iter().filter_map(|block| {
            // A stack that is not stream-ordered waits for the device anyway.
            let is_ordered = block.stack.is_stream_ordered();
            let order = if is_ordered { self.order.after(&block.uses) } else { Ok(StreamRef::LEGACY) };
            let stream = match order {
                Ok(stream) => stream,
                Err(error) if error.is_sticky() => StreamRef::LEGACY, // the device no longer runs anything
                Err(error) => {
                    tracing::debug!(target: "millpond::plugin", %error, ?block, "cannot be ordered now");
                    return Some(block);
                }
            };
            // SAFETY: pointer and layout come from `allocate` on this stack. They were taken out of `live`,
            // which holds each of them once. `stream` runs after every announced use.
            unsafe { block.stack.deallocate(block.ptr, block.layout, stream) };
            None
        })
    }

    fn resume(&self) {
        self.give_back_all(self.parked.resume());
    }

    /// Removes all live and parked blocks. Finalizers do not find them any more.
    fn take_blocks(&self) -> Vec<Block> {
        let tokens: Vec<Token> = self.live.iter().map(|entry| *entry.key()).collect();
        let live = tokens.iter().filter_map(|token| self.live.remove(token)).map(|(_, block)| block);
        self.parked.take_all().into_iter().chain(live).collect()
    }

    /// Waits for the device, and then frees blocks to their stacks. If the wait fails, each block returns to
    /// its stack after its own uses. Returns the blocks whose free cannot be ordered.
    fn give_back_at_once(&self, blocks: Vec<Block>) -> Vec<Block> {
        if blocks.is_empty() {
            return blocks;
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        match call(&*self.driver, |driver| driver.synchronize_beside_captures()) {
            Ok(true) => {}
            Err(error) if error.is_sticky() => {}
            waited => {
                tracing::debug!(target: "millpond::plugin", ?waited, "could not wait for the device");
                return self.give_back(blocks).collect();
            }
        }
        for Block { stack, ptr, layout, .. } in blocks {
            // SAFETY: pointer and layout as in `give_back`. All work that may use the block is done: the wait
            // for the device succeeded, or the device is lost and runs no work any more.
            unsafe { stack.deallocate(ptr, layout, StreamRef::LEGACY) };
        }
        Vec::new()
    }

    fn reset(&self) {
        // Resets wait for each other. If one reset waits for the other in a callback of the stack, each of
        // them returns the blocks that it finds.
        let _resetting = self.resetting.try_lock_for(PATIENCE);
        let Some(resource) = self.known_stack_taken() else { return };
        let left = self.give_back_at_once(self.take_blocks());
        self.order.clear();
        if !left.is_empty() {
            tracing::warn!(
                target: "millpond::plugin",
                blocks = left.len(),
                "a reset could not wait for all work on the device, and keeps the memory that may be in use; \
                 reset again when no stream captures a graph"
            );
        }
        // Even a stack that the manager built may have other owners, as the device's default resource does.
        if let Err(error) = resource.trim(0) {
            tracing::debug!(target: "millpond::plugin", %error, "could not trim the stack");
        }
        // Blocks that could not be freed now return later. A callback of the stack may have built another
        // stack.
        let goes_on = !left.is_empty() || matches!(self.source, Source::Given(_));
        self.park(left);
        if goes_on && !self.is_lost.load(Ordering::SeqCst) {
            self.stack.lock().get_or_insert(resource);
        }
    }
}

/// Marks that the thread is building the stack. The mark ends when this value is dropped.
struct IsBuilding<'a>(&'a Cell<bool>);

impl Drop for IsBuilding<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

// Printing first takes the values out of the locks, because a resource's `Debug` is foreign code.

impl fmt::Debug for MillpondMemoryManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.read().clone();
        f.debug_struct("MillpondMemoryManager").field("host", &self.host).field("device", &device).finish()
    }
}

impl fmt::Debug for DeviceHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceHalf")
            .field("device", &self.driver.device())
            .field("source", &self.source)
            .field("stack", &self.known_stack())
            .field("live", &self.live.len())
            .field("parked", &self.parked.len())
            .field("is_lost", &self.is_lost)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ptr, layout, uses, .. } = self;
        f.debug_struct("Block").field("ptr", ptr).field("layout", layout).field("uses", uses).finish()
    }
}

impl Drop for DeviceHalf {
    fn drop(&mut self) {
        // Every pointer keeps this state alive. So only blocks whose free could not be ordered when they were
        // dropped are left.
        let left = self.give_back_at_once(self.take_blocks());
        if !left.is_empty() {
            tracing::warn!(
                target: "millpond::plugin",
                blocks = left.len(),
                "a memory manager was dropped and could not wait for work on the device; memory that may \
                 be in use is lost until the process ends"
            );
            // This includes the stack of the blocks: dropping it would free their memory while they may be in
            // use.
            std::mem::forget(left);
        }
    }
}

impl Finalizer for DeviceHalf {
    fn finalize(&self, token: Token) {
        let Some((_, block)) = self.live.remove(&token) else { return };
        let bytes = block.layout.bytes();
        self.give_back_all(self.parked.push(block, bytes));
    }

    fn is_live(&self, token: Token) -> bool {
        self.live.contains_key(&token)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(resource) => write!(f, "Given({resource})"),
            Self::Built(_) => f.write_str("Built"),
        }
    }
}

#[cfg(test)]
mod tests;
