//! Tests which manager a process uses, on the tests' own registries.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond_core::driver::{HostPtr, MemoryInfo};
use millpond_core::{DeviceId, Driver, DriverHandle, ErrorKind, Result};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_plugin::{
    CudaMemoryManager, DeferCleanup, HostAllocFlags, HostMemory, IpcHandle, MEMORY_MANAGER_VARIABLE,
    ManagerFactory, ManagerRegistry, MemoryManager, MemoryPointer, MillpondMemoryManager, Owner,
};

use crate::common::{MIB, layers};

/// Makes a registry of simulated devices with this value of the environment variable.
fn registry(value: Option<&str>) -> (ManagerRegistry, Vec<Arc<SimDevice>>) {
    let devices: Vec<_> = (0..2).map(|_| SimDevice::new(SimConfig::with_capacity(64 * MIB))).collect();
    let value = value.map(str::to_owned);
    let known = devices.clone();
    let environment = Box::new(move |name: &str| {
        assert_eq!(name, MEMORY_MANAGER_VARIABLE);
        value.clone()
    });
    let open = Box::new(move |id: DeviceId| -> Result<DriverHandle> {
        let found = known.iter().find(|device| device.device() == id);
        found.cloned().map(|device| device as DriverHandle).ok_or_else(|| {
            millpond_core::Error::new(ErrorKind::NoDevice, "there is no such device").on_device(id)
        })
    });
    (ManagerRegistry::new(environment, open, layers()), devices)
}

/// A manager of plain CUDA memory that claims another version.
#[derive(Debug)]
struct Version(CudaMemoryManager, u32);

impl MemoryManager for Version {
    fn memalloc(&self, bytes: u64) -> Result<MemoryPointer> {
        self.0.memalloc(bytes)
    }

    fn memhostalloc(&self, bytes: u64, flags: HostAllocFlags) -> Result<HostMemory> {
        self.0.memhostalloc(bytes, flags)
    }

    fn memallocmanaged(&self, bytes: u64, attach_global: bool) -> Result<MemoryPointer> {
        self.0.memallocmanaged(bytes, attach_global)
    }

    unsafe fn mempin(&self, owner: Owner, ptr: HostPtr, bytes: u64, mapped: bool) -> Result<HostMemory> {
        // SAFETY: the caller's promise.
        unsafe { self.0.mempin(owner, ptr, bytes, mapped) }
    }

    fn initialize(&self) -> Result<()> {
        self.0.initialize()
    }

    fn get_memory_info(&self) -> Result<MemoryInfo> {
        self.0.get_memory_info()
    }

    fn get_ipc_handle(&self, memory: &MemoryPointer) -> Result<IpcHandle> {
        self.0.get_ipc_handle(memory)
    }

    fn reset(&self) {
        self.0.reset();
    }

    fn defer_cleanup(&self) -> DeferCleanup {
        self.0.defer_cleanup()
    }

    fn interface_version(&self) -> u32 {
        self.1
    }
}

/// A factory that counts its calls without and with a device separately.
fn counting(version: u32) -> (ManagerFactory, Arc<[AtomicUsize; 2]>) {
    let calls = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = Arc::clone(&calls);
    let factory: ManagerFactory = Arc::new(move |driver| {
        counted[usize::from(driver.is_some())].fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(Version(CudaMemoryManager::new(driver), version)))
    });
    (factory, calls)
}

fn calls(counts: &[AtomicUsize; 2]) -> (usize, usize) {
    (counts[0].load(Ordering::SeqCst), counts[1].load(Ordering::SeqCst))
}

fn stack_of(manager: &dyn MemoryManager) -> String {
    format!("{manager:?}")
}

#[test]
fn the_default_is_plain_cuda_one_per_device() {
    let (registry, devices) = registry(None);
    let first = registry.get(devices[0].device()).unwrap();
    assert!(stack_of(&*first).starts_with("CudaMemoryManager"));
    assert!(Arc::ptr_eq(&first, &registry.get(devices[0].device()).unwrap()));
    let other = registry.get(devices[1].device()).unwrap();
    assert!(!Arc::ptr_eq(&first, &other));
    assert_eq!(other.memalloc(16).unwrap().device(), devices[1].device());
}

#[test]
fn a_manager_that_is_set_is_asked_for_its_version_and_made_once_per_device() {
    let (registry, devices) = registry(None);
    let (factory, counts) = counting(1);
    registry.set(factory).unwrap();
    assert_eq!(calls(&counts), (1, 0));
    for _ in 0..2 {
        for device in &devices {
            registry.get(device.device()).unwrap();
        }
    }
    assert_eq!(calls(&counts), (1, 2));
}

#[test]
fn another_version_is_refused_and_leaves_the_choice_open() {
    let (registry, _devices) = registry(None);
    let error = registry.set(counting(2).0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 2") && error.to_string().contains("version 1 is required"));
    registry.set(counting(1).0).unwrap();
}

#[test]
fn the_second_choice_and_a_late_one_are_refused() {
    let (set_twice, _devices) = registry(None);
    set_twice.set(counting(1).0).unwrap();
    let (second, counts) = counting(1);
    let error = set_twice.set(second).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("once per process"), "{error}");
    assert_eq!(calls(&counts), (0, 0));

    let (late, devices) = registry(None);
    late.get(devices[0].device()).unwrap();
    let error = late.set(counting(1).0).unwrap_err();
    assert!(error.to_string().contains("before anything uses a device"), "{error}");
}

#[test]
fn the_environment_wins_and_warns() {
    let (registry, devices) = registry(Some("cuda+pool:initial=1MiB,pages=off"));
    let (factory, counts) = counting(1);
    let warnings = warnings::of(|| registry.set(factory).unwrap());
    assert_eq!(warnings, 1);
    let manager = registry.get(devices[0].device()).unwrap();
    assert_eq!(calls(&counts), (0, 0));
    assert!(stack_of(&*manager).contains("MillpondMemoryManager"));
    assert_eq!(devices[0].live_bytes(), MIB, "the pool of the environment's stack is there");
    assert_eq!(devices[1].live_allocations(), 0);
    assert!(manager.memalloc(4096).unwrap().is_live());
}

#[test]
fn without_the_variable_there_is_no_warning() {
    for value in [None, Some(""), Some("  ")] {
        let (registry, _devices) = registry(value);
        assert_eq!(warnings::of(|| registry.set(counting(1).0).unwrap()), 0);
    }
}

#[test]
fn a_bad_stack_in_the_environment_names_the_variable() {
    let bad_parameter = ("cuda+pool:initial=much", "much");
    let missing = ("cuda+", "missing");
    for (value, why) in [("pond", "there is no layer `pond`"), missing, ("pool", "below"), bad_parameter] {
        let (registry, devices) = registry(Some(value));
        let error = registry.get(devices[0].device()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidStack, "{value}");
        assert!(error.to_string().contains(why), "{error}");
        let form =
            format!("MILLPOND_MEMORY_MANAGER={value} is not a stack; set it to a stack such as `cuda+pool");
        assert!(error.to_string().contains(&form), "{error}");
        assert_eq!(devices[0].live_allocations(), 0);
    }
}

#[test]
fn a_bad_stack_in_the_environment_is_reported_at_any_first_use() {
    let (registry, _devices) = registry(Some("cuda+pond"));
    let uses = [registry.set(counting(1).0).unwrap_err(), registry.get(DeviceId::cuda(1000)).unwrap_err()];
    for error in uses {
        assert_eq!(error.kind(), ErrorKind::InvalidStack);
        assert!(error.to_string().contains("MILLPOND_MEMORY_MANAGER=cuda+pond is not a stack"), "{error}");
    }
}

#[test]
fn a_device_that_is_not_there_settles_nothing() {
    let (registry, devices) = registry(None);
    assert!(registry.get(DeviceId::cuda(1000)).unwrap_err().is_no_device());
    registry.set(counting(1).0).unwrap();
    registry.get(devices[0].device()).unwrap();
}

#[test]
fn a_stack_that_cannot_be_built_is_an_error_each_time_and_no_harm() {
    let (registry, devices) = registry(Some("cuda+pool:initial=1GiB,pages=off"));
    for _ in 0..2 {
        let error = registry.get(devices[0].device()).unwrap_err();
        assert!(error.to_string().contains("MILLPOND_MEMORY_MANAGER=cuda+pool:initial=1GiB"), "{error}");
        assert_eq!(devices[0].live_allocations(), 0);
    }
}

#[test]
fn reset_reaches_every_device() {
    let (registry, devices) = registry(None);
    registry.set(MillpondMemoryManager::factory("cuda+pool:pages=off".parse().unwrap(), layers())).unwrap();
    let left: Vec<_> =
        devices.iter().map(|device| registry.get(device.device()).unwrap().memalloc(64).unwrap()).collect();
    registry.reset();
    assert!(left.iter().all(|memory| !memory.is_live()));
    assert!(devices.iter().all(|device| device.live_allocations() == 0));
}

#[test]
fn the_process_has_one_registry_that_knows_simulated_devices() {
    let device = SimDevice::new(SimConfig::with_capacity(64 * MIB));
    let manager = millpond_plugin::get_memory_manager(device.device()).unwrap();
    assert!(manager.memalloc(4096).unwrap().is_live());
    assert!(millpond_plugin::set_memory_manager(counting(1).0).is_err());
}

/// Counts `tracing`'s warnings.
mod warnings {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    struct Counter(Arc<AtomicUsize>);

    impl Subscriber for Counter {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN && metadata.target() == "millpond::plugin"
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    pub(crate) fn of(body: impl FnOnce()) -> usize {
        let count = Arc::new(AtomicUsize::new(0));
        millpond_testkit::events::heard_by(Counter(Arc::clone(&count)), body);
        count.load(Ordering::SeqCst)
    }
}
