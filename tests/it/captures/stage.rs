//! A device, simulated or real, on which one thread captures a graph while the library works.

use std::any::Any;
use std::sync::{Arc, Mutex};

use millpond::driver::cuda::CudaDriver;
use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::driver::{CallKind, CountingDriver};
use millpond::driver::{CaptureMode, DriverResult, StreamFlags};
use millpond::stack::StackSpec;
use millpond::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverHandle, Result,
    StreamRef,
};
use millpond_testkit::Checked;
use millpond_testkit::hooked::HookedDriver;

pub(crate) const MIB: u64 = 1 << 20;

/// A device that captures graphs.
#[derive(Clone)]
pub(crate) enum Rig {
    Sim(Arc<SimDevice>),
    Cuda(Arc<CudaDriver>),
}

impl Rig {
    pub(crate) fn sim() -> Self {
        Self::Sim(SimDevice::new(SimConfig::with_capacity(256 * MIB)))
    }

    fn driver(&self) -> DriverHandle {
        match self {
            Self::Sim(device) => device.clone(),
            Self::Cuda(driver) => driver.clone(),
        }
    }

    pub(crate) fn begin(&self, stream: StreamRef, mode: CaptureMode) -> DriverResult<()> {
        match self {
            Self::Sim(device) => device.begin_capture(stream, mode),
            Self::Cuda(driver) => driver.begin_capture(stream, mode),
        }
    }

    pub(crate) fn end(&self, stream: StreamRef) -> DriverResult<()> {
        match self {
            Self::Sim(device) => device.end_capture(stream),
            Self::Cuda(driver) => driver.end_capture(stream).map(drop),
        }
    }
}

/// The resource under test, under the oracles if the device is simulated.
pub(crate) type Tested = Arc<Checked<AnyResource>>;

pub(crate) struct Stage {
    pub(crate) rig: Rig,
    pub(crate) hooks: Arc<HookedDriver>,
    pub(crate) counter: Arc<CountingDriver>,
    /// Streams that freed blocks.
    pub(crate) others: [StreamRef; 2],
    /// The stream of requests.
    pub(crate) stream: StreamRef,
    /// Values that are dropped after the capture.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Stage {
    /// Makes a stage. Requests name `stream`; `None` makes a new stream.
    pub(crate) fn new(rig: Rig, stream: Option<StreamRef>) -> Self {
        let hooks = HookedDriver::new(rig.driver());
        let counter = CountingDriver::new(hooks.clone());
        let new = || counter.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        let (others, stream) = ([new(), new()], stream.unwrap_or_else(new));
        Self { rig, hooks, counter, others, stream, kept: Mutex::default() }
    }

    pub(crate) fn driver(&self) -> DriverHandle {
        self.counter.clone()
    }

    /// Keeps a value as long as the stage.
    pub(crate) fn keep(&self, thing: Box<dyn Any + Send>) {
        self.kept.lock().expect("no test panics meanwhile").push(thing);
    }

    /// Builds a stack on the device.
    pub(crate) fn build(&self, stack: &str) -> AnyResource {
        let spec: StackSpec = stack.parse().expect("the stack's text is right");
        spec.build(&millpond::layers(), &self.driver()).expect("there is memory")
    }

    /// Builds a stack under the oracles; it ends after the capture.
    pub(crate) fn checked(&self, stack: &str) -> Tested {
        let device = match &self.rig {
            Rig::Sim(device) => Some(device.clone()),
            Rig::Cuda(_) => None,
        };
        let resource = Arc::new(Checked::new(self.build(stack), device));
        self.keep(Box::new(Arc::clone(&resource)));
        resource
    }

    /// Submits work on a block that runs for some time.
    pub(crate) fn busy(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        for value in 0..100 {
            // SAFETY: every caller passes a live block of that size, for use on this stream.
            unsafe { self.counter.memset_d8_async(ptr, value, bytes, stream) }.expect("the block is living");
        }
    }

    /// Makes each of the other streams allocate a block, work on it, and free it.
    pub(crate) fn others_give_back(&self, resource: &dyn DeviceMemoryResource, bytes: u64, is_busy: bool) {
        let blocks = self.others.map(|other| take(resource, bytes, other).expect("there is memory"));
        for (ptr, other) in blocks.into_iter().zip(self.others) {
            if is_busy {
                self.busy(ptr, bytes, other);
            }
            give(resource, ptr, bytes, other);
        }
    }

    /// Destroys another stream; its work still runs.
    pub(crate) fn destroy(&self, stream: StreamRef) {
        // SAFETY: every caller passes a stream of the stage and does not use it again.
        unsafe { self.counter.stream_destroy(stream) }.expect("the stream is living");
    }

    pub(crate) fn calls(&self, kind: CallKind) -> u64 {
        self.counter.counts().get(kind).calls
    }

    /// Returns most of the device's free bytes.
    pub(crate) fn most_of_the_device(&self) -> u64 {
        self.counter.mem_get_info().expect("the driver answers").free / 8 * 7 / (2 * MIB) * (2 * MIB)
    }

    /// Asserts that no rule of the simulated device was broken.
    pub(crate) fn assert_order_was_kept(&self) {
        if let Rig::Sim(device) = &self.rig {
            assert_eq!(device.take_violations(), []);
        }
    }
}

pub(crate) fn take(resource: &dyn DeviceMemoryResource, bytes: u64, stream: StreamRef) -> Result<DevicePtr> {
    resource.allocate_bytes(bytes, stream)
}

pub(crate) fn give(resource: &dyn DeviceMemoryResource, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
    // SAFETY: every caller frees a block once, with its size, after its uses on the stream.
    unsafe { resource.deallocate_bytes(ptr, bytes, stream) };
}

/// Allocates a block and frees it.
pub(crate) fn pass(resource: &dyn DeviceMemoryResource, bytes: u64, stream: StreamRef) -> Result<()> {
    take(resource, bytes, stream).map(|ptr| give(resource, ptr, bytes, stream))
}
