//! Calls of a stack on a simulated device, whose checks must find nothing.

use std::sync::Arc;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use millpond::driver::sim::{Access, SimConfig, SimDevice};
use millpond::driver::{MemoryKind, StreamFlags};
use millpond::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, StreamRef};

const STREAMS: usize = 4;

/// A live block.
struct Block {
    ptr: DevicePtr,
    bytes: u64,
    stream: StreamRef,
    /// Whether the device checks the block. It does not know memory of the host that is not pinned.
    is_checked: bool,
}

/// A simulated device and its streams.
pub(crate) struct World {
    /// The device.
    pub device: Arc<SimDevice>,
    streams: Vec<StreamRef>,
    live: Vec<Block>,
}

impl World {
    /// Creates a device with this many bytes.
    ///
    /// # Panics
    /// Panics if the device makes no streams.
    #[must_use]
    pub(crate) fn new(bytes: u64) -> Self {
        let device = SimDevice::new(SimConfig::with_capacity(bytes));
        let flags = [StreamFlags::default(), StreamFlags::NON_BLOCKING, StreamFlags::NON_BLOCKING];
        let made = flags.map(|flags| device.stream_create(flags).expect("a stream"));
        Self { device, streams: [StreamRef::LEGACY].into_iter().chain(made).collect(), live: Vec::new() }
    }

    /// Returns one of the streams.
    #[must_use]
    pub(crate) fn stream(&self, number: usize) -> StreamRef {
        self.streams[number % STREAMS]
    }

    /// Allocates a block, and writes to it. Returns its address, or `None` if there is no memory.
    pub(crate) fn allocate(
        &mut self,
        stack: &AnyResource,
        bytes: u64,
        stream: StreamRef,
    ) -> Option<DevicePtr> {
        let ptr = stack.allocate_bytes(bytes, stream).ok()?;
        let is_checked =
            bytes > 0 && self.device.pointer_kind(ptr).is_ok_and(|kind| !matches!(kind, MemoryKind::Unknown));
        if is_checked {
            self.device.lend(ptr, bytes, stream);
            self.device.launch(stream, &[Access::write(ptr, bytes, ptr.address())]);
        }
        self.live.push(Block { ptr, bytes, stream, is_checked });
        Some(ptr)
    }

    /// Checks the contents of a live block, and frees it on its stream.
    pub(crate) fn free(&mut self, stack: &AnyResource, index: usize) {
        let block = self.live.swap_remove(index);
        if block.is_checked {
            self.device.launch(block.stream, &[Access::check(block.ptr, block.bytes, block.ptr.address())]);
            self.device.give_back(block.ptr, block.bytes, block.stream);
        }
        // SAFETY: the block came from this stack with this size, once; its work is on this stream.
        unsafe { stack.deallocate_bytes(block.ptr, block.bytes, block.stream) };
    }

    /// Frees the block at this address, if there is one.
    pub(crate) fn free_at(&mut self, stack: &AnyResource, ptr: DevicePtr) {
        if let Some(index) = self.live.iter().position(|block| block.ptr == ptr) {
            self.free(stack, index);
        }
    }

    /// Makes calls until the bytes or 256 calls are used up.
    ///
    /// # Errors
    /// Returns an error if `calls` has too few bytes.
    pub(crate) fn call(&mut self, stack: &AnyResource, calls: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..256 {
            if calls.is_empty() {
                break;
            }
            let (kind, number) = (calls.arbitrary::<u8>()? % 16, usize::from(calls.arbitrary::<u8>()?));
            match kind {
                0..6 => {
                    let bytes = u64::from(calls.arbitrary::<u16>()?) << (number / STREAMS % 16);
                    self.allocate(stack, bytes, self.stream(number));
                }
                6..11 if !self.live.is_empty() => self.free(stack, number % self.live.len()),
                // The device waits, or lets time pass.
                11 => drop(self.device.stream_synchronize(self.stream(number))),
                12 => self.device.advance(1 << (number % 40)),
                13 => drop(stack.trim((number as u64) << 16)),
                14 => {
                    let (map, report) = (stack.memory_map(), stack.memory_report());
                    drop((map, report.to_string(), stack.statistics(), stack.memory_info()));
                }
                15 => stack.clear_counters(),
                _ => {}
            }
        }
        Ok(())
    }

    /// Frees all blocks and the stack.
    ///
    /// # Panics
    /// Panics if the device found a mistake, or if an object of the stack is left.
    pub(crate) fn end(mut self, stack: AnyResource) {
        while !self.live.is_empty() {
            self.free(&stack, 0);
        }
        let text = stack.to_string();
        drop(stack);
        let found = self.device.violations();
        assert!(found.is_empty(), "{text}: {found:?}");
        let left = (self.device.live_allocations(), self.device.live_events());
        assert_eq!(left, (0, 0), "{text}: allocations and events are left");
    }
}
