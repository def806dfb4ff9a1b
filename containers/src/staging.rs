//! Pinned host memory for asynchronous copies.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::sync::Arc;

use bytemuck::Pod;
use millpond_core::driver::{CaptureModeGuard, EventFlags, HostFlags, HostPtr, call};
use millpond_core::{DeviceId, DriverHandle, Error, Result, StreamRef};
use parking_lot::Mutex;

use crate::Event;

/// Pinned host memory for asynchronous copies to and from one device.
///
/// A copy to the device first goes into a block of staging memory. So the caller may change or drop its data
/// as soon as the call returns. A copy from the device ends in such a block, and [`HostCopy`] returns the
/// values from the block. When the device has completed a copy, later copies reuse its block. So the number
/// of blocks is at most the largest number of copies that ran at the same time. [`trim`](Self::trim) frees
/// unused blocks. Threads may share this value.
///
/// ```
/// use millpond_containers::{DeviceVec, HostStaging, Stream};
/// use millpond_core::driver::StreamFlags;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
/// let staging = HostStaging::new(device.clone());
///
/// let resource = CudaMemoryResource::new(device);
/// let mut numbers = DeviceVec::<u32, _>::zeroed(3, &stream, resource)?;
/// numbers.copy_from_host_async(&vec![1, 2, 3], &staging)?; // the vector is dropped before the copy runs
/// let copy = numbers.copy_to_host_async(&staging)?;
/// assert_eq!(copy.wait()?, [1, 2, 3]);
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone)]
pub struct HostStaging {
    shared: Arc<Shared>,
}

struct Shared {
    driver: DriverHandle,
    /// The blocks that no copy holds; the device may still have to pass them.
    idle: Mutex<VecDeque<Block>>,
    /// Idle blocks whose last copy has no recorded end. A wait for the device covers them.
    unmarked: Mutex<Vec<Block>>,
}

/// A block of pinned memory.
struct Block {
    ptr: HostPtr,
    bytes: u64,
    /// Recorded after the last copy through the block.
    passed: Event,
}

/// The smallest block in bytes, so that small copies share few block sizes.
const LEAST_BYTES: u64 = 4096;

impl HostStaging {
    /// Creates staging memory for copies to and from the driver's device. The first copy allocates the first
    /// block.
    pub fn new(driver: DriverHandle) -> Self {
        Self { shared: Arc::new(Shared { driver, idle: Mutex::default(), unmarked: Mutex::default() }) }
    }

    /// Returns the device to and from which this memory copies.
    pub fn device(&self) -> DeviceId {
        self.shared.driver.device()
    }

    /// Returns the total size in bytes of the blocks that no [`HostCopy`] uses.
    pub fn idle_bytes(&self) -> u64 {
        let idle: u64 = self.shared.idle.lock().iter().map(|block| block.bytes).sum();
        idle + self.shared.unmarked.lock().iter().map(|block| block.bytes).sum::<u64>()
    }

    /// Frees the blocks whose copies the device has completed. Returns the total size of these blocks in
    /// bytes.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn trim(&self) -> Result<u64> {
        let mut trimmed = 0;
        let _captures = CaptureModeGuard::relaxed(&*self.shared.driver);
        // If some blocks must stay, the others are still freed.
        let waited = self.shared.await_unmarked();
        while let Some(block) = self.shared.take_passed(|_| true)? {
            let bytes = block.bytes;
            if let Err(error) = self.shared.free(&block) {
                self.shared.idle.lock().push_back(block);
                return Err(error);
            }
            trimmed += bytes;
        }
        waited.map(|()| trimmed)
    }

    /// Checks that the stream captures no graph: each launch of the graph would use the block again.
    fn check(&self, device: DeviceId, stream: StreamRef) -> Result<()> {
        if device != self.device() {
            return Err(Error::invalid_argument(format!(
                "the staging memory belongs to {}, but the buffer is on {device}; make staging memory for \
                 that device",
                self.device()
            )));
        }
        if call(&*self.shared.driver, |driver| driver.stream_is_capturing(stream))? {
            return Err(Error::invalid_argument(
                "a copy through staging memory cannot be a part of a graph; make the copy before the capture \
                 begins, or after the capture ends",
            ));
        }
        Ok(())
    }

    /// Copies `data` into a block. Then `submit` gets the block's address, and submits work on `stream` that
    /// reads the block.
    pub(crate) fn send<T: Pod>(
        &self,
        data: &[T],
        device: DeviceId,
        stream: StreamRef,
        submit: impl FnOnce(*const u8) -> Result<()>,
    ) -> Result<()> {
        self.check(device, stream)?;
        let block = self.shared.take(size_of_val(data) as u64)?;
        let ptr = block.ptr.as_mut_ptr();
        // SAFETY: the block holds that many bytes, and the device has passed its last copy.
        unsafe { ptr.copy_from_nonoverlapping(data.as_ptr().cast(), size_of_val(data)) };
        let submitted = submit(ptr);
        submitted.and(self.shared.put_after(block, stream))
    }

    /// Takes a block, into which `submit` copies `len` values on `stream`.
    pub(crate) fn receive<T: Pod>(
        &self,
        len: usize,
        device: DeviceId,
        stream: StreamRef,
        submit: impl FnOnce(*mut u8) -> Result<()>,
    ) -> Result<HostCopy<T>> {
        self.check(device, stream)?;
        let shared = Arc::clone(&self.shared);
        if len == 0 {
            return Ok(HostCopy { shared, block: None, len, values: PhantomData });
        }
        let block = shared.take((len * size_of::<T>()) as u64)?;
        let submitted = submit(block.ptr.as_mut_ptr());
        let recorded = block.passed.record(stream);
        if let Err(error) = submitted.and(recorded) {
            let _ = shared.put_after(block, stream);
            return Err(error);
        }
        Ok(HostCopy { shared, block: Some(block), len, values: PhantomData })
    }
}

impl Shared {
    /// Takes the first idle block that `fits` and that the device has passed.
    fn take_passed(&self, fits: impl Fn(&Block) -> bool) -> Result<Option<Block>> {
        let candidates = self.idle.lock().iter().filter(|block| fits(block)).count();
        for _ in 0..candidates {
            let Some(block) = self.take_first(&fits) else { break };
            // The query holds no lock. The event of a copy that a capture took in never completes.
            if block.passed.query().unwrap_or(false) {
                return Ok(Some(block));
            }
            self.idle.lock().push_back(block);
        }
        Ok(None)
    }

    fn take_first(&self, fits: impl Fn(&Block) -> bool) -> Option<Block> {
        let mut idle = self.idle.lock();
        let index = idle.iter().position(fits)?;
        idle.remove(index)
    }

    /// Returns a block of at least `bytes` that the device has passed.
    fn take(&self, bytes: u64) -> Result<Block> {
        let rounded = bytes.max(LEAST_BYTES).checked_next_power_of_two().unwrap_or(bytes);
        // The driver refuses a query while another thread captures in the global mode.
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        // A block has exactly the size of its class, so small copies do not occupy large blocks.
        if let Some(block) = self.take_passed(|block| block.bytes == rounded)? {
            return Ok(block);
        }
        let passed = Event::new(self.driver.clone(), EventFlags::default())?;
        let flags = HostFlags::default().portable(true);
        let ptr = call(&*self.driver, |driver| driver.mem_host_alloc(rounded, flags))?;
        Ok(Block { ptr, bytes: rounded, passed })
    }

    /// Puts back a block that the present work of `stream` uses. If the end of that work cannot be recorded,
    /// waits for it, now or at the next trim.
    fn put_after(&self, block: Block, stream: StreamRef) -> Result<()> {
        let recorded = block.passed.record(stream);
        let waited = recorded.or_else(|_| call(&*self.driver, |driver| driver.stream_synchronize(stream)));
        match waited {
            Ok(()) => self.idle.lock().push_back(block),
            Err(_) => self.unmarked.lock().push(block),
        }
        waited
    }

    /// Waits for the device if there are unmarked blocks, so that they become ordinary idle blocks. They stay
    /// unmarked while a capture forbids the wait.
    fn await_unmarked(&self) -> Result<()> {
        let unmarked = mem::take(&mut *self.unmarked.lock());
        if unmarked.is_empty() {
            return Ok(());
        }
        let waited = call(&*self.driver, |driver| driver.synchronize_beside_captures());
        match waited {
            Ok(true) => self.idle.lock().extend(unmarked),
            Ok(false) | Err(_) => self.unmarked.lock().extend(unmarked),
        }
        waited.map(drop)
    }

    /// Frees a block that the device has passed.
    fn free(&self, block: &Block) -> Result<()> {
        // SAFETY: the block came from this driver, and nothing uses it any more.
        call(&*self.driver, |driver| unsafe { driver.mem_free_host(block.ptr) })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        // A block that the device may still use is leaked. A lost device has freed its memory.
        let warn = |error| {
            tracing::debug!(target: "millpond::containers", %error, "staging memory was not freed");
        };
        self.await_unmarked().unwrap_or_else(warn);
        for block in mem::take(self.idle.get_mut()) {
            block.passed.synchronize().and_then(|()| self.free(&block)).unwrap_or_else(warn);
        }
    }
}

/// A copy from the device to the host that is running or done.
///
/// Dropping a `HostCopy` does not stop the copy. Other copies reuse its block of staging memory only after
/// the device has completed the copy.
#[must_use = "wait() gives the values"]
pub struct HostCopy<T> {
    shared: Arc<Shared>,
    /// `None` if there are no values, and after the block was put back.
    block: Option<Block>,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Pod> HostCopy<T> {
    /// Returns the number of values in the copy.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the copy has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the copy is done. If it is, [`wait`](Self::wait) returns at once.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn is_done(&self) -> Result<bool> {
        let _captures = CaptureModeGuard::relaxed(&*self.shared.driver);
        self.block.as_ref().map_or(Ok(true), |block| block.passed.query())
    }

    /// Waits on the host until the copy is done, and returns the values.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn wait(self) -> Result<Vec<T>> {
        let mut values = Vec::with_capacity(self.len);
        self.finish(&mut values.spare_capacity_mut()[..self.len])?;
        // SAFETY: `finish` wrote that many values.
        unsafe { values.set_len(self.len) };
        Ok(values)
    }

    /// Waits on the host until the copy is done, and writes the values to `values`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `values` does not have as many
    /// values as the copy, and the driver's errors.
    pub fn wait_into(self, values: &mut [T]) -> Result<()> {
        if values.len() != self.len {
            return Err(Error::invalid_argument(format!(
                "the copy has length {}, but the slice has length {}; pass a slice of the same length as the \
                 copy",
                self.len,
                values.len()
            )));
        }
        let ptr = values.as_mut_ptr().cast::<MaybeUninit<T>>();
        // SAFETY: the slice is borrowed meanwhile, and `finish` writes only values.
        self.finish(unsafe { std::slice::from_raw_parts_mut(ptr, values.len()) })
    }

    /// Waits, and writes the values.
    fn finish(&self, values: &mut [MaybeUninit<T>]) -> Result<()> {
        let Some(block) = &self.block else { return Ok(()) };
        {
            let _captures = CaptureModeGuard::relaxed(&*self.shared.driver);
            block.passed.synchronize()?;
        }
        let from = block.ptr.as_mut_ptr().cast::<u8>();
        // SAFETY: the block holds that many values, which the device has written; all bytes are values of
        // `T`.
        unsafe { values.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(from, size_of_val(values)) };
        Ok(())
    }
}

impl<T> Drop for HostCopy<T> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.shared.idle.lock().push_back(block);
        }
    }
}

impl fmt::Debug for HostStaging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostStaging").field("device", &self.device()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for HostCopy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCopy").field("len", &self.len).finish_non_exhaustive()
    }
}
