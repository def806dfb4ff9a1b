//! Tests that managers hold no lock while they call the driver or a function of the program. The called code
//! may use the manager, on the same thread or on another thread that it waits for.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use millpond_core::stack::LayerTable;
use millpond_core::{Driver, DriverHandle, ErrorKind};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_plugin::{
    CudaMemoryManager, HostAllocFlags, ManagerFactory, ManagerRegistry, MemoryManager, MillpondMemoryManager,
};
use millpond_resources::CudaMemoryResource;

use crate::cupy_pool;

/// A call that takes longer than this hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Runs `body` on a new thread. If it hangs, the thread is left behind.
fn watch(name: &str, body: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        body();
        done.send(())
    });
    ended.recv_timeout(WATCHDOG).unwrap_or_else(|_| panic!("{name}: hangs, or panicked"));
}

thread_local! {
    /// Whether the thread is already inside.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Makes each call of a manager and accepts any answer, because another call may be in progress.
fn use_all(manager: &dyn MemoryManager) {
    for bytes in [100, 3 << 20] {
        drop(manager.memalloc(bytes));
    }
    drop(manager.memhostalloc(4096, HostAllocFlags::default()));
    drop(manager.memallocmanaged(4096, true));
    drop(manager.get_memory_info());
    let deferred = manager.defer_cleanup();
    drop(manager.memalloc(5000));
    drop(deferred);
}

/// Uses the manager from inside, on this thread and on another one.
fn use_from_inside(manager: &Weak<dyn MemoryManager>, calls: &AtomicU64) {
    let Some(manager) = manager.upgrade().filter(|_| !IS_INSIDE.replace(true)) else { return };
    use_all(&*manager);
    let other = Arc::clone(&manager);
    let joined = thread::spawn(move || {
        IS_INSIDE.set(true);
        use_all(&*other);
    });
    joined.join().unwrap();
    if calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(16) {
        manager.reset();
    }
    IS_INSIDE.set(false);
}

fn over_plain(driver: Option<DriverHandle>) -> Arc<dyn MemoryManager> {
    let build = |driver: &DriverHandle| Ok(Arc::new(CudaMemoryResource::new(Arc::clone(driver))) as _);
    Arc::new(MillpondMemoryManager::with_builder(driver, Arc::new(build)))
}

#[test]
fn code_that_the_driver_calls_may_use_the_manager() {
    let over_cuda: fn(Option<DriverHandle>) -> Arc<dyn MemoryManager> =
        |driver| Arc::new(CudaMemoryManager::new(driver));
    let over_cupy: fn(Option<DriverHandle>) -> Arc<dyn MemoryManager> = |driver| {
        let bench = cupy_pool::bench(driver.unwrap());
        (bench.factory)(Some(bench.driver)).unwrap()
    };
    let makes =
        [("over a stack", over_plain as fn(_) -> _), ("over CUDA", over_cuda), ("over CuPy", over_cupy)];
    for (name, make) in makes {
        let device = SimDevice::new(SimConfig::with_capacity(256 << 20));
        let manager = make(Some(Arc::<SimDevice>::clone(&device) as DriverHandle));
        let (weak, calls) = (Arc::downgrade(&manager), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&calls);
        device.observe_calls(Some(Arc::new(move |_name| use_from_inside(&weak, &counted))));
        watch(name, move || {
            for _ in 0..4 {
                manager.initialize().unwrap();
                use_all(&*manager);
                let kept = manager.memalloc(1000);
                manager.reset();
                drop(kept);
            }
        });
        device.observe_calls(None);
        assert!(calls.load(Ordering::Relaxed) > 20, "{name}: {calls:?}");
    }
}

/// The builder of a stack asks the manager for memory, which needs the finished stack.
#[test]
fn a_stack_that_is_built_from_its_own_memory_is_refused() {
    static MANAGER: OnceLock<Weak<MillpondMemoryManager>> = OnceLock::new();
    watch("a builder", || {
        let build = |driver: &DriverHandle| {
            let manager = MANAGER.get().and_then(Weak::upgrade).unwrap();
            manager.memalloc(1000)?;
            Ok(Arc::new(CudaMemoryResource::new(Arc::clone(driver))) as _)
        };
        let device = SimDevice::new(SimConfig::h200());
        let manager = Arc::new(MillpondMemoryManager::with_builder(Some(device), Arc::new(build)));
        MANAGER.set(Arc::downgrade(&manager)).unwrap();
        for _ in 0..2 {
            let error = manager.memalloc(100).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("stack is being built"), "{error}");
        }
    });
}

/// The registry drops and prints these without a lock: a factory, and a manager that came too late.
#[test]
fn a_factory_may_use_the_registry() {
    static REGISTRY: OnceLock<ManagerRegistry> = OnceLock::new();
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    let registry = REGISTRY
        .get_or_init(|| ManagerRegistry::new(Box::new(|_| None), Box::new(millpond_driver::open), table));
    let device = SimDevice::new(SimConfig::h200());
    let id = device.device();
    watch("a factory", move || {
        let factory: ManagerFactory = Arc::new(move |driver| {
            if driver.is_some() && !IS_INSIDE.replace(true) {
                // The manager that this call makes is the one that stays.
                drop((registry.get(id), format!("{registry:?}")));
                IS_INSIDE.set(false);
            }
            Ok(over_plain(driver))
        });
        registry.set(factory).unwrap();
        let manager = registry.get(id).unwrap();
        manager.memalloc(100).unwrap();
        assert!(Arc::ptr_eq(&manager, &registry.get(id).unwrap()));
    });
}
