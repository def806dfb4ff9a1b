//! A layer that makes one mistake about a duty of the contract.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::driver::{CurrentDeviceGuard, call};
use millpond::{
    AnyResource, DeviceMemoryResource, DevicePtr, Driver, Error, ErrorKind, LayerMemory, Layout, MemoryInfo,
    ReportsMemory, ResourceStatistics, Result, StreamRef, Traits, downcast, forward_to_upstream,
};
use millpond_testkit::misuse_recorder::record;

/// The mistake that the layer makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// No mistake.
    None,
    /// Its errors have no report.
    NoReport,
    /// If no state of memory can serve a request, it reports an invalid argument.
    InvalidArgument,
    /// It counts a free that the layer below refused.
    CountsRefusedFrees,
    /// A request for 0 bytes takes a block.
    ServesZeroBytes,
    /// Its blocks start 128 bytes later than the upstream's.
    Misaligns,
    /// It keeps the report of a refused free to itself.
    HidesMisuse,
    /// `allocate` leaves another device as the thread's current one.
    ChangesDevice,
    /// `Display` prints only the layer itself.
    PrintsAlone,
    /// It claims to be equal to every resource.
    EqualsAll,
    /// If memory is out, it trims the upstream, even for an impossible request.
    TrimsAlways,
    /// Each request waits for the device.
    Waits,
    /// It returns more free memory than the device has.
    InventsFree,
    /// It has no statistics, although the upstream has some.
    HidesStatistics,
}

impl Mistake {
    /// Bytes that the layer adds to a request and puts in front of the block.
    fn shift(self) -> u64 {
        if self == Self::Misaligns { 128 } else { 0 }
    }
}

/// Counts bytes and makes a mistake.
#[derive(Debug)]
pub(crate) struct Wrong {
    upstream: AnyResource,
    mistake: Mistake,
    used: AtomicU64,
    /// The device that one mistake makes current.
    other: Arc<SimDevice>,
}

impl Wrong {
    pub(crate) fn new(upstream: AnyResource, mistake: Mistake) -> Self {
        let other = SimDevice::new(SimConfig::with_capacity(1 << 20));
        Self { upstream, mistake, used: AtomicU64::new(0), other }
    }

    /// The layout of the upstream's block.
    fn layout(&self, layout: Layout) -> Layout {
        match (self.mistake, layout.bytes()) {
            (Mistake::ServesZeroBytes, 0) => Layout::new(1),
            (_, bytes) if bytes == 0 || self.mistake.shift() == 0 => layout,
            (_, bytes) => Layout::new(bytes.saturating_add(self.mistake.shift())),
        }
    }

    fn of(&self, error: Error, layout: Layout, stream: StreamRef) -> Error {
        if self.mistake == Mistake::TrimsAlways {
            let _ = self.upstream.trim(0);
        }
        let kind = match self.mistake {
            Mistake::NoReport if error.is_out_of_memory() => ErrorKind::OutOfMemory,
            Mistake::InvalidArgument if error.is_impossible() => ErrorKind::InvalidArgument,
            _ => return error,
        };
        let mut error = Error::new(kind, "").for_request(layout, stream).in_stack(self);
        drop(error.take_out_of_memory_report());
        error
    }
}

// SAFETY: every call goes to the upstream with the same arguments, so its contract holds; only the errors
// differ.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for Wrong {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr = self.upstream.allocate(self.layout(layout), stream);
        let ptr = ptr.map_err(|error| self.of(error, layout, stream))?;
        if self.mistake == Mistake::Waits {
            call(&**self.driver(), |driver| driver.stream_synchronize(stream))?;
        }
        self.used.fetch_add(layout.bytes(), Ordering::Relaxed);
        if self.mistake == Mistake::ChangesDevice {
            std::mem::forget(CurrentDeviceGuard::new(self.other.device()));
        }
        Ok(if ptr.is_null() { ptr } else { ptr.offset(self.mistake.shift()) })
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let own = self.layout(layout);
        let ptr = if ptr.is_null() { ptr } else { DevicePtr::new(ptr.address() - self.mistake.shift()) };
        // SAFETY: the caller's promises hold for the upstream, where the block came from.
        let pass_on = || unsafe { self.upstream.deallocate(ptr, own, stream) };
        let is_taken = millpond::misuse::is_taken(ptr, || match self.mistake {
            Mistake::HidesMisuse => drop(record(pass_on)),
            _ => pass_on(),
        });
        if is_taken || self.mistake == Mistake::CountsRefusedFrees {
            self.used.fetch_sub(layout.bytes(), Ordering::Relaxed);
        }
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn ReportsMemory>(|it| it);
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        self.mistake == Mistake::EqualsAll || downcast::<Self>(other).is_some_and(|it| std::ptr::eq(self, it))
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let info = self.upstream.memory_info()?;
        let free = if self.mistake == Mistake::InventsFree { info.total + 1 } else { info.free };
        Ok(MemoryInfo { free, ..info })
    }

    fn statistics(&self) -> Option<ResourceStatistics> {
        self.upstream.statistics().filter(|_| self.mistake != Mistake::HidesStatistics)
    }

    forward_to_upstream!(except allocate, deallocate, is_equal, memory_info, statistics, provide);
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mistake {
            Mistake::PrintsAlone => f.write_str("wrong"),
            _ => write!(f, "{}+wrong", self.upstream),
        }
    }
}

impl ReportsMemory for Wrong {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.limit_used_bytes = Some(self.used.load(Ordering::Relaxed));
        memory
    }
}
