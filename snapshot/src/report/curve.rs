//! The bytes that a stack of memory resources reserves while it replays a recording.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    Accessibility, AnyResource, DeviceMemoryResource, DevicePtr, DriverHandle, Layout, MemoryInfo, Result,
    StreamRef, Traits, is_same,
};
use millpond_driver::{CountingDriver, DeviceSpec};
use millpond_engine::program::Limits;
use millpond_engine::{self as engine, Options};
use parking_lot::Mutex;
use serde::Serialize;

use crate::recording::{EventKind, Recording};

/// The number of parts of a curve.
const PARTS: usize = 4096;

/// The bytes that a stack of memory resources reserved while it replayed a recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Curve {
    /// The stack as text.
    pub name: String,
    /// The events are divided into equal parts. For each part, this is the most bytes that the stack had
    /// reserved from the driver.
    pub bytes: Vec<u64>,
}

impl Curve {
    /// Replays a recording once, on one thread, through a stack on a device.
    ///
    /// # Errors
    /// The stack cannot be built, the device cannot be opened, or the recording has no calls to replay. A
    /// failed request is not an error.
    pub fn of(
        recording: &Recording,
        stack: &StackSpec,
        table: &LayerTable,
        device: &DeviceSpec,
    ) -> millpond_engine::Result<Self> {
        let program = recording.program(Limits::default())?;
        let device = device.open_new()?;
        let counting = CountingDriver::new(device.clone());
        let upstream = stack.build(table, &(counting.clone() as DriverHandle))?;
        let is_call = |kind| matches!(kind, EventKind::Allocate | EventKind::Free);
        let calls = recording.events().enumerate().filter(|(_, event)| is_call(event.kind));
        let parts = PARTS.min(recording.len());
        let part = |event: usize| (event * parts / recording.len()) as u16;
        let sampled = Arc::new(Sampled {
            upstream,
            counting,
            parts: calls.map(|(event, _)| part(event)).collect(),
            calls: AtomicUsize::new(0),
            most: Mutex::new(vec![None; parts]),
        });
        let resource: AnyResource = sampled.clone();
        engine::replay(&program, &resource, &device, Options::default(), &mut ())?;
        let mut last = 0;
        let most = sampled.most.lock();
        let bytes = most.iter().map(|most| {
            last = most.unwrap_or(last);
            last
        });
        Ok(Self { name: stack.to_string(), bytes: bytes.collect() })
    }
}

/// A layer that notes after each call how many bytes the stack below has reserved from the driver.
#[derive(Debug)]
struct Sampled {
    upstream: AnyResource,
    counting: Arc<CountingDriver>,
    /// The part of the curve that each call belongs to.
    parts: Vec<u16>,
    calls: AtomicUsize,
    most: Mutex<Vec<Option<u64>>>,
}

impl fmt::Display for Sampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.upstream.fmt(f)
    }
}

impl Sampled {
    fn note(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        // Blocks that the recording never frees are freed after its end. These frees belong to no part.
        let Some(&part) = self.parts.get(call) else { return };
        let taken = self.counting.bytes_held();
        if let Some(most) = self.most.lock().get_mut(usize::from(part)) {
            *most = Some(most.unwrap_or(0).max(taken));
        }
    }
}

// SAFETY: blocks are the upstream's, which keeps the contract.
unsafe impl DeviceMemoryResource for Sampled {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let block = self.upstream.allocate(layout, stream);
        self.note();
        block
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // SAFETY: the caller's promises hold for the upstream, which allocated the block.
        unsafe { self.upstream.deallocate(ptr, layout, stream) };
        self.note();
    }

    fn driver(&self) -> &DriverHandle {
        self.upstream.driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(&*self.upstream)
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        self.upstream.memory_info()
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        self.upstream.is_stream_ordered()
    }

    fn accessibility(&self) -> Accessibility {
        self.upstream.accessibility()
    }

    fn provide(&self, traits: &mut Traits) {
        self.upstream.provide(traits);
    }
}
