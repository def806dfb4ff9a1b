//! Tests managers when the device's context is reset, as Numba's `cuda.close()` does. The program tells the
//! managers first, or does not.

use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;

use millpond_core::driver::HostPtr;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    DeviceMemoryResource, DeviceMemoryResourceExt, Driver, DriverHandle, ErrorKind, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_plugin::{
    CudaMemoryManager, HostAllocFlags, ManagerRegistry, MemoryManager, MemoryPointer, MillpondMemoryManager,
};
use millpond_resources::{CallbackMemoryResource, CudaMemoryResource, PoolLayer};
use millpond_testkit::hooked::HookedDriver;
use parking_lot::Mutex;

use crate::cupy_pool;

const MIB: u64 = 1 << 20;

fn layers() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().copied())
}

fn build(text: &str, driver: &DriverHandle) -> millpond_core::Result<millpond_core::AnyResource> {
    text.parse::<StackSpec>()?.build(&layers(), driver)
}

fn managers(device: &Arc<SimDevice>) -> Vec<Box<dyn MemoryManager>> {
    let driver = || Some(Arc::<SimDevice>::clone(device) as DriverHandle);
    let stack = |text: &'static str| {
        let builder = Arc::new(move |driver: &DriverHandle| build(text, driver));
        Box::new(MillpondMemoryManager::with_builder(driver(), builder)) as Box<dyn MemoryManager>
    };
    vec![
        Box::new(CudaMemoryManager::new(driver())),
        stack("cuda"),
        stack("cuda+pool"),
        stack("cuda+pool:pages=off"),
        stack("cuda+pool+binning"),
    ]
}

#[test]
fn issue_9_managers_go_on_in_the_new_context() {
    for announced in [true, false] {
        for index in 0..5 {
            let device = SimDevice::new(SimConfig::h200());
            let manager = managers(&device).swap_remove(index);
            for round in 0..3 {
                let label = format!("manager {index}, announced {announced}, round {round}");
                manager.initialize().unwrap();
                let old = manager.memalloc(3 * MIB).unwrap();
                let dropped_later = manager.memalloc(100).unwrap();
                let managed = manager.memallocmanaged(MIB, true).unwrap();
                let pinned = manager.memhostalloc(MIB, HostAllocFlags::default()).unwrap();
                let mut own = vec![0_u8; 8192];
                let at = HostPtr(own.as_mut_ptr().expose_provenance());
                // SAFETY: the vector outlives the pin, which the reset or the drop below lifts.
                let pin = unsafe { manager.mempin(Box::new(()), at, 8192, false) }.unwrap();
                if announced {
                    manager.reset();
                }
                device.open_again().reset_context();

                let now = device.open_again();
                let new = manager.memalloc(3 * MIB).unwrap();
                assert!(new.is_live() && !old.is_live(), "{label}");
                drop((old, dropped_later, managed, pinned, pin));
                assert!(new.is_live(), "{label}");
                // SAFETY: the memory belongs to the new context.
                unsafe { now.memset_d8_async(new.device_pointer(), 7, 3 * MIB, StreamRef::LEGACY) }.unwrap();
                assert!(manager.get_memory_info().unwrap().free > 0, "{label}");
                drop(new);
                drop(own);
            }
            drop(manager);
            assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0), "manager {index}");
            assert_eq!(device.violations(), [], "manager {index}, announced {announced}");
        }
    }
}

#[test]
fn issue_9_a_registrys_manager_goes_on_in_the_new_context() {
    let device = SimDevice::new(SimConfig::h200());
    let environment = Box::new(|_: &str| Some("cuda+pool".to_owned()));
    let registry = ManagerRegistry::new(environment, Box::new(millpond_driver::open), layers());
    for _ in 0..3 {
        let manager = registry.get(device.device()).unwrap();
        let memory = manager.memalloc(100 * MIB).unwrap();
        registry.reset();
        device.open_again().reset_context();
        drop(memory);
    }
    drop(registry);
    assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0));
    assert_eq!(device.violations(), []);
}

/// CuPy's pool cannot forget lost memory. So the manager goes on only if it was told before the reset.
#[test]
fn a_manager_over_cupys_pool_goes_on_if_it_was_reset_first() {
    let device = SimDevice::new(SimConfig::h200());
    let bench = cupy_pool::bench(Arc::<SimDevice>::clone(&device));
    let manager = bench.manager();
    for _ in 0..3 {
        let old = manager.memalloc(3 * MIB).unwrap();
        manager.reset();
        device.open_again().reset_context();
        let new = manager.memalloc(3 * MIB).unwrap();
        drop(old);
        assert!(new.is_live());
        // SAFETY: the memory belongs to the new context.
        unsafe { device.open_again().memset_d8_async(new.device_pointer(), 7, 3 * MIB, StreamRef::LEGACY) }
            .unwrap();
        drop(new);
    }
    device.open_again().reset_context();
    let error = manager.memalloc(3 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned);
    assert!(error.to_string().contains("context was reset"), "{error}");
    assert_eq!(device.violations(), []);
}

/// After the reset the manager serves nothing: neither by a driver call nor from the pool's free memory.
#[test]
fn issue_9_a_manager_over_a_stack_that_was_passed_in_says_what_to_do() {
    for text in ["cuda", "cuda+pool", "cuda+pool:pages=off", "cuda+pool+statistics"] {
        let device = SimDevice::new(SimConfig::h200());
        let driver: DriverHandle = device.clone();
        let layers =
            LayerTable::new(millpond_resources::LAYERS.iter().chain(millpond_adaptors::LAYERS).copied());
        let stack = text.parse::<StackSpec>().unwrap().build(&layers, &driver).unwrap();
        let manager = MillpondMemoryManager::new(stack);
        let memory = manager.memalloc(100 * MIB).unwrap();
        drop(manager.memalloc(200 * MIB).unwrap());
        device.reset_context();
        for bytes in [200 * MIB, 300 * MIB] {
            let error = manager.memalloc(bytes).unwrap_err();
            assert!(error.to_string().contains("make new resources"), "{text}, {bytes}: {error}");
        }
        drop((memory, manager));
        assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0), "{text}");
        assert_eq!(device.violations(), [], "{text}");
    }
}

/// The manager may notice a reset inside a call of the stack, for instance when a resource's callback
/// allocates from the same manager. The allocation does not wait for its own call.
#[test]
fn issue_9_a_reset_is_found_out_inside_a_call_of_the_stack() {
    let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
    let hooks = HookedDriver::new(device.clone());
    let manager: Arc<OnceLock<MillpondMemoryManager>> = Arc::default();
    let (inner, resets) = (Arc::clone(&manager), Arc::clone(&device));
    let builder = Arc::new(|driver: &DriverHandle| build("cuda+pool", driver));
    let manager = manager.get_or_init(|| MillpondMemoryManager::with_builder(Some(hooks.clone()), builder));
    let old = manager.memalloc(800 * MIB).unwrap();
    hooks.before_get_info(move || {
        resets.reset_context();
        let manager = inner.get().expect("the manager was made");
        assert!(manager.memalloc(MIB).unwrap().is_live());
    });
    manager.memalloc(1 << 29).unwrap_err();
    assert_eq!(hooks.hooks_left(), 0);
    assert!(!old.is_live());
    assert!(manager.memalloc(700 * MIB).unwrap().is_live(), "the old pool's pages went back");
    drop(old);
    assert_eq!(device.open_again().violations(), []);
}

/// Pointers that a resource's call or its end drops, as Python does when it collects garbage there.
struct Garbage {
    found: Arc<Mutex<Vec<MemoryPointer>>>,
    manager: Arc<OnceLock<Weak<MillpondMemoryManager>>>,
}

impl Garbage {
    fn collect(&self) {
        let found = std::mem::take(&mut *self.found.lock());
        let manager = self.manager.get().and_then(Weak::upgrade);
        if !found.is_empty()
            && let Some(manager) = manager
        {
            drop(found);
            assert!(manager.memalloc(MIB).unwrap().is_live(), "the callback may allocate as well");
        }
    }
}

impl Drop for Garbage {
    fn drop(&mut self) {
        self.collect();
    }
}

#[test]
fn a_reset_and_the_end_of_a_lost_stack_let_callbacks_drop_pointers() {
    for is_lost in [false, true] {
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let driver: DriverHandle = device.clone();
        let garbage: Arc<Mutex<Vec<MemoryPointer>>> = Arc::default();
        let (of_stack, known) = (Arc::clone(&garbage), Arc::<OnceLock<_>>::default());
        let of_builder = Arc::clone(&known);
        let builder = Arc::new(move |driver: &DriverHandle| {
            let plain = [(); 2].map(|()| CudaMemoryResource::new(driver.clone()));
            let [for_allocate, for_deallocate] = plain;
            let garbage = Garbage { found: Arc::clone(&of_stack), manager: Arc::clone(&of_builder) };
            let allocate = move |layout, stream| for_allocate.allocate(layout, stream);
            let deallocate = move |ptr, layout, stream| {
                garbage.collect();
                // SAFETY: the block belongs to such a resource and is freed once.
                unsafe { for_deallocate.deallocate(ptr, layout, stream) }
            };
            // SAFETY: both keep the contract of plain CUDA memory.
            let made = unsafe { CallbackMemoryResource::new(driver.clone(), allocate, deallocate) };
            made.layer(PoolLayer::new()).map(DeviceMemoryResourceExt::into_any)
        });
        let manager = Arc::new(MillpondMemoryManager::with_builder(Some(driver), builder));
        known.set(Arc::downgrade(&manager)).expect("the manager is set once");
        garbage.lock().extend([(); 2].map(|()| manager.memalloc(MIB).unwrap()));
        let (done, ended) = mpsc::channel();
        let resets = Arc::clone(&device);
        std::thread::spawn(move || {
            if is_lost {
                resets.reset_context();
                assert!(manager.memalloc(MIB).unwrap().is_live());
            } else {
                manager.reset();
            }
            assert_eq!(manager.live(), 0);
            assert!(garbage.lock().is_empty(), "lost {is_lost}: the stack's memory went back, or it ended");
            drop(manager);
            let _ = done.send(());
        });
        // A thread that waits for itself would never end.
        let outcome = ended.recv_timeout(Duration::from_secs(60));
        assert!(outcome.is_ok(), "lost {is_lost}: {outcome:?}");
        assert_eq!(device.open_again().violations(), []);
    }
}
