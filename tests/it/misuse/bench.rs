//! Helpers of the programs: two devices, and names for them in texts.

use std::cell::RefCell;
use std::sync::Arc;

use millpond::driver::sim::{SimConfig, SimDevice, SimMachine};
use millpond::stack::StackSpec;
use millpond::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverHandle, Result,
    StreamRef,
};
use millpond_core::driver::StreamFlags;
use millpond_testkit::misuse_recorder::record;

pub(crate) const MIB: u64 = 1 << 20;

/// A program with a mistake.
pub(crate) struct Program {
    pub(crate) mistake: &'static str,
    /// Makes the mistake, and returns the resulting text.
    pub(crate) run: fn(&Bench) -> String,
    pub(crate) says: &'static str,
}

pub(crate) const fn program(mistake: &'static str, run: fn(&Bench) -> String, says: &'static str) -> Program {
    Program { mistake, run, says }
}

/// Two fresh simulated devices, with streams of the first.
pub(crate) struct Bench {
    pub(crate) device: Arc<SimDevice>,
    pub(crate) peer: Arc<SimDevice>,
    pub(crate) a: StreamRef,
    pub(crate) b: StreamRef,
    /// The names that replace values in the text.
    names: RefCell<Vec<(String, &'static str)>>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let machine = SimMachine::new();
        let [device, peer] = [(); 2].map(|()| machine.add_device(SimConfig::with_capacity(256 * MIB)));
        let [a, b] = [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
        let bench = Self { device, peer, a, b, names: RefCell::default() };
        let [device, peer] = [&bench.device, &bench.peer].map(|device| device.device().to_string());
        bench.call(device, "DEVICE");
        bench.call(peer, "PEER");
        bench.call(format!("stream {a}"), "stream A");
        bench.call(format!("stream {b}"), "stream B");
        bench
    }

    pub(crate) fn driver(&self) -> DriverHandle {
        Arc::<SimDevice>::clone(&self.device)
    }

    /// Replaces a value in the text by a name.
    pub(crate) fn call(&self, what: impl ToString, name: &'static str) {
        self.names.borrow_mut().push((what.to_string(), name));
    }

    pub(crate) fn build(&self, text: &str) -> Result<AnyResource> {
        text.parse::<StackSpec>()?.build(&millpond::layers(), &self.driver())
    }

    pub(crate) fn stack(&self, text: &str) -> AnyResource {
        self.build(text).unwrap()
    }

    /// Allocates a block of the resource on stream A, which the text calls `P`.
    pub(crate) fn block(&self, resource: &dyn DeviceMemoryResource, bytes: u64) -> DevicePtr {
        let ptr = resource.allocate_bytes(bytes, self.a).unwrap();
        self.call(ptr, "P");
        ptr
    }

    /// Frees on stream A; returns the reported text.
    pub(crate) fn free(&self, resource: &dyn DeviceMemoryResource, ptr: DevicePtr, bytes: u64) -> String {
        // SAFETY: the programs break the caller's promises on purpose, and none of them uses the memory.
        let ((), reports) = record(|| unsafe { resource.deallocate_bytes(ptr, bytes, self.a) });
        reports.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn normalised(&self, mut text: String) -> String {
        let mut names = self.names.borrow().clone();
        names.sort_by_key(|(what, _)| std::cmp::Reverse(what.len()));
        for (what, name) in names {
            text = text.replace(&what, name);
        }
        text
    }
}

/// Returns the text of an error.
pub(crate) fn error<T>(answer: Result<T>) -> String {
    answer.err().map_or_else(|| "no error".to_owned(), |error| error.to_string())
}
