//! The driver calls that the library makes on its own: one case for each slow path.

use std::time::Duration;

use millpond::driver::CallKind;
use millpond::plugin::{MemoryManager, MillpondMemoryManager, with_stream};
use millpond::resources::{CudaAsyncMemoryResource, CudaAsyncOptions, CudaMemoryResource, PoolLayer};
use millpond::{DeviceMemoryResource, DeviceMemoryResourceExt, Driver, Result};

use super::stage::{MIB, Stage, give, pass, take};

/// The call that is made while the graph is captured. Returns the error of the request.
pub(crate) type Act = Box<dyn FnOnce() -> Result<()> + Send>;

pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Whether one of its calls would end another thread's capture without the guard.
    pub(crate) is_unsafe: bool,
    /// The remedy that an error names.
    pub(crate) advice: &'static str,
    /// Prepares the stage before the capture begins. `Some` names a call that the act must make.
    pub(crate) prepare: fn(&Stage) -> (Act, Option<CallKind>),
}

const fn case(name: &'static str, is_unsafe: bool, prepare: fn(&Stage) -> (Act, Option<CallKind>)) -> Case {
    Case { name, is_unsafe, advice: "outside the capture", prepare }
}

impl Case {
    const fn advising(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }
}

pub(crate) const CASES: &[Case] = &[
    case("growth over pages", false, |stage| grow(stage, "cuda+pool:decay=off", CallKind::MemCreate)),
    case("growth over regions", true, |stage| grow(stage, "cuda+pool:pages=off", CallKind::MemAlloc)),
    case("growth of fixed_size", true, |stage| {
        grow(stage, "cuda+fixed_size:block_size=64MiB", CallKind::MemAlloc)
    }),
    case("growth of binning", true, |stage| {
        grow(stage, "cuda+pool:pages=off+binning:bins=64MiB", CallKind::MemAlloc)
    }),
    case("growth of a pool on a pool", true, |stage| {
        grow(stage, "cuda+pool:pages=off+pool", CallKind::MemAlloc)
    }),
    case("plain memory", true, |stage| grow(stage, "cuda", CallKind::MemFree)),
    case("a pool of the driver", true, |stage| grow(stage, "cuda_async", CallKind::MemAllocAsync)),
    case("the driver's default pool", true, |stage| grow(stage, "cuda_async_view", CallKind::MemAllocAsync)),
    case("trim of a pool of the driver", true, |stage| {
        let (act, _) = trim(stage, "cuda_async");
        (act, Some(CallKind::MemPoolTrim))
    }),
    case("the end of a pool of the driver", true, |stage| end(stage, "cuda_async")),
    case("a new pool of the driver", true, new_driver_pool),
    case("managed memory", true, |stage| grow(stage, "managed", CallKind::MemFree)),
    case("a block of a stream that is done", true, |stage| {
        other_streams(stage, 40, false, CallKind::EventQuery)
    }),
    case("a block of a stream at work", true, |stage| other_streams(stage, 40, true, CallKind::EventQuery)),
    case("blocks of two streams, joined", true, |stage| {
        other_streams(stage, 80, true, CallKind::EventSynchronize)
    }),
    case("blocks of streams that are gone", true, streams_that_are_gone),
    case("out of memory", true, out_of_memory),
    case("trim over pages", true, |stage| trim(stage, "cuda+pool:decay=off")),
    case("trim over regions", true, |stage| trim(stage, "cuda+pool:pages=off")),
    case("trim of binning", true, |stage| trim(stage, "cuda+pool:pages=off+binning:bins=40MiB")),
    case("a step of the decay", true, decay),
    // Another resource releases its own memory, both during a capture and outside.
    case("pressure of another pool", true, pressure).advising("that other resources or processes hold"),
    case("blocks back from bins", true, bins),
    case("a new pool that reserves", true, new_pool),
    case("the end of a pool over pages", true, |stage| end(stage, "cuda+pool:decay=off")),
    case("the end of a pool over regions", true, |stage| end(stage, "cuda+pool:pages=off")),
    case("a point for others", false, point_for_others),
    case("free and total memory", false, memory_info),
    case("a manager's block that others used", false, manager_drop),
    case("a manager's reset", true, manager_reset),
];

fn grow(stage: &Stage, stack: &str, call: CallKind) -> (Act, Option<CallKind>) {
    let (resource, stream) = (stage.checked(stack), stage.stream);
    (Box::new(move || pass(&resource, 64 * MIB, stream)), Some(call))
}

/// Makes all memory free, but owned by two other streams.
fn other_streams(stage: &Stage, mib: u64, is_busy: bool, call: CallKind) -> (Act, Option<CallKind>) {
    let (resource, stream) = (stage.checked("cuda+pool:pages=off,initial=80MiB,max=80MiB"), stage.stream);
    stage.others_give_back(&resource, 40 * MIB, is_busy);
    (Box::new(move || pass(&resource, mib * MIB, stream)), Some(call))
}

fn streams_that_are_gone(stage: &Stage) -> (Act, Option<CallKind>) {
    let (act, _) = other_streams(stage, 80, true, CallKind::Synchronize);
    stage.others.into_iter().for_each(|other| stage.destroy(other));
    (act, Some(CallKind::Synchronize))
}

fn out_of_memory(stage: &Stage) -> (Act, Option<CallKind>) {
    let (resource, stream) = (stage.checked("cuda+pool:decay=off"), stage.stream);
    stage.others_give_back(&resource, 40 * MIB, true);
    take(&resource, MIB, stage.others[0]).expect("there is memory");
    let all = stage.counter.mem_get_info().expect("the driver answers").total;
    let act = move || {
        let error = pass(&resource, all, stream).expect_err("a part of the device is in use");
        assert!(error.is_out_of_memory(), "{error}");
        Ok(())
    };
    (Box::new(act), None)
}

fn trim(stage: &Stage, stack: &str) -> (Act, Option<CallKind>) {
    let resource = stage.checked(stack);
    stage.others_give_back(&resource, 40 * MIB, true);
    let act = move || {
        let trimmed = resource.trim(0)?;
        assert!(trimmed >= 80 * MIB, "{trimmed} bytes of {}", *resource);
        Ok(())
    };
    (Box::new(act), Some(CallKind::EventSynchronize))
}

fn decay(stage: &Stage) -> (Act, Option<CallKind>) {
    let pool = CudaMemoryResource::new(stage.driver()).layer(PoolLayer::new()).expect("there is memory");
    stage.others_give_back(&pool, 40 * MIB, false);
    stage.counter.synchronize().expect("nothing is captured yet");
    let is_simulated = stage.counter.virtual_time_ns().is_some();
    let act = move || {
        let steps = (0..200).map(|second| pool.decay_step(Duration::from_secs(second)));
        let released: u64 = steps.sum::<Result<u64>>()?;
        // On a real device, the library's own thread may release a part of it.
        assert!(!is_simulated || released >= 80 * MIB, "{released}");
        assert_eq!(pool.pool_bytes(), 0);
        Ok(())
    };
    (Box::new(act), Some(CallKind::EventQuery))
}

fn pressure(stage: &Stage) -> (Act, Option<CallKind>) {
    let [first, second] = [(); 2].map(|()| stage.checked("cuda+pool:decay=off"));
    let (most, stream, other) = (stage.most_of_the_device(), stage.stream, stage.others[0]);
    pass(&first, most, other).expect("there is memory");
    let act = move || {
        let outcome = pass(&second, most, stream);
        drop(first);
        outcome
    };
    (Box::new(act), None)
}

fn bins(stage: &Stage) -> (Act, Option<CallKind>) {
    let stack = "cuda+pool:pages=off,initial=80MiB,max=80MiB+binning:bins=40MiB";
    let (resource, stream) = (stage.checked(stack), stage.stream);
    stage.others_give_back(&resource, 40 * MIB, true);
    (Box::new(move || pass(&resource, 80 * MIB, stream)), None)
}

fn new_pool(stage: &Stage) -> (Act, Option<CallKind>) {
    let (driver, stream) = (stage.driver(), stage.stream);
    let act = move || {
        let layer = PoolLayer::new().pages(millpond::resources::PagesMode::Off).initial_bytes(64 * MIB);
        let pool = CudaMemoryResource::new(driver).layer(layer)?;
        pass(&pool, 1000, stream)
    };
    (Box::new(act), Some(CallKind::MemAlloc))
}

fn new_driver_pool(stage: &Stage) -> (Act, Option<CallKind>) {
    let (driver, stream) = (stage.driver(), stage.stream);
    let act = move || {
        let options = CudaAsyncOptions::default().initial_bytes(64 * MIB);
        let resource = CudaAsyncMemoryResource::new(driver, options)?;
        pass(&resource, 1000, stream)
    };
    (Box::new(act), Some(CallKind::MemPool))
}

/// Ends a stack while it has blocks with unfinished work, both freed and still in use.
fn end(stage: &Stage, stack: &str) -> (Act, Option<CallKind>) {
    let resource = stage.build(stack);
    let kept = take(&resource, MIB, stage.others[0]).expect("there is memory");
    stage.busy(kept, MIB, stage.others[0]);
    stage.others_give_back(&resource, 40 * MIB, true);
    let act = move || {
        drop(resource);
        Ok(())
    };
    (Box::new(act), Some(CallKind::Synchronize))
}

/// A stream's own call records a point, because another stream wanted its blocks and could not have them. It
/// records none if the record would become part of a graph.
fn point_for_others(stage: &Stage) -> (Act, Option<CallKind>) {
    let resource = stage.checked("cuda+pool:decay=off");
    let (donor, other, counter) = (stage.stream, stage.others[0], stage.counter.clone());
    // Only the donor's own calls may record on it.
    stage.hooks.foreign(donor);
    let kept = take(&resource, MIB, donor).expect("there is memory");
    // Takes so much memory that the donor's block is too small to justify a wait for the device.
    take(&resource, 80 * MIB, other).expect("there is memory");
    pass(&resource, 4 * MIB, donor).expect("there is memory");
    take(&resource, 4 * MIB, other).expect("there is memory");
    let act = move || {
        let records = || counter.counts().get(CallKind::EventRecord).calls;
        let is_captured = counter.stream_is_capturing(donor) != Ok(false);
        let before = records();
        give(&resource, kept, MIB, donor);
        assert_eq!(records() > before, !is_captured, "a record, and whether the stream may be recorded on");
        Ok(())
    };
    (Box::new(act), Some(CallKind::EventRecord))
}

fn memory_info(stage: &Stage) -> (Act, Option<CallKind>) {
    let resource = stage.checked("cuda+pool");
    (Box::new(move || resource.memory_info().map(drop)), Some(CallKind::MemGetInfo))
}

/// Returns a manager, and memory of it that another stream uses.
fn manager(stage: &Stage) -> (MillpondMemoryManager, millpond::plugin::MemoryPointer) {
    let manager = MillpondMemoryManager::new(stage.build("cuda+pool:pages=off"));
    let memory = with_stream(stage.others[0], || manager.memalloc(MIB).expect("there is memory"));
    stage.busy(memory.device_pointer(), MIB, stage.others[0]);
    (manager, memory)
}

fn manager_drop(stage: &Stage) -> (Act, Option<CallKind>) {
    let (manager, memory) = manager(stage);
    stage.keep(Box::new(manager));
    let act = move || {
        drop(memory);
        Ok(())
    };
    (Box::new(act), None)
}

fn manager_reset(stage: &Stage) -> (Act, Option<CallKind>) {
    let (manager, memory) = manager(stage);
    let act = move || {
        manager.reset();
        assert_eq!((manager.parked(), manager.live()), (0, 0));
        drop(memory);
        Ok(())
    };
    (Box::new(act), Some(CallKind::Synchronize))
}
