//! The contract of NBEP 7, one function per clause, so that every manager runs the same checks on the
//! simulated device and on a GPU.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use millpond_core::driver::{HostPtr, StreamFlags};
use millpond_core::stack::LayerTable;
use millpond_core::{DevicePtr, DriverHandle, ErrorKind, StreamRef, misuse};
use millpond_plugin::{
    CudaMemoryManager, HostAllocFlags, HostMemory, INTERFACE_VERSION, ManagerFactory, MemoryManager,
    MillpondMemoryManager, with_stream,
};

pub(crate) const MIB: u64 = 1 << 20;

/// A device, and a function that makes the manager under test.
pub(crate) struct Bench {
    pub(crate) driver: DriverHandle,
    pub(crate) factory: ManagerFactory,
}

impl Bench {
    pub(crate) fn cuda(driver: DriverHandle) -> Self {
        Self { driver, factory: CudaMemoryManager::factory() }
    }

    pub(crate) fn stack(driver: DriverHandle, stack: &str) -> Self {
        let factory = MillpondMemoryManager::factory(stack.parse().unwrap(), layers());
        Self { driver, factory }
    }

    /// Checks free bytes: exactly on the simulated device; a GPU's driver rounds and keeps a little.
    #[track_caller]
    fn assert_free(&self, free: u64, expected: u64) {
        let slack = if self.driver.device().is_sim() { 0 } else { 8 * MIB };
        assert!(free.abs_diff(expected) <= slack, "{free} bytes are free instead of {expected}");
    }

    /// Makes a new, initialized manager.
    pub(crate) fn manager(&self) -> Arc<dyn MemoryManager> {
        let manager = (self.factory)(Some(Arc::clone(&self.driver))).unwrap();
        manager.initialize().unwrap();
        manager
    }
}

pub(crate) fn layers() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().copied())
        .with(millpond_adaptors::LAYERS.iter().copied())
}

/// Returns how often a resource of this test binary has refused a `deallocate`. Finalizers must not panic, so
/// a test that provokes refusals calls this once beforehand.
pub(crate) fn misuses() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        misuse::set_hook(Some(Arc::new(|misuse| {
            eprintln!("{misuse}");
            COUNT.fetch_add(1, Ordering::SeqCst);
        })));
    });
    COUNT.load(Ordering::SeqCst)
}

/// Copies to the device and waits.
pub(crate) fn write(driver: &DriverHandle, ptr: DevicePtr, bytes: &[u8]) {
    // SAFETY: the tests pass memory of at least this length, and wait before `bytes` is dropped.
    unsafe {
        driver.memcpy_htod_async(ptr, bytes.as_ptr(), bytes.len() as u64, StreamRef::LEGACY).unwrap();
    }
    driver.stream_synchronize(StreamRef::LEGACY).unwrap();
}

/// Copies from the device and waits.
pub(crate) fn read(driver: &DriverHandle, ptr: DevicePtr, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    // SAFETY: as in `write`.
    unsafe {
        driver.memcpy_dtoh_async(out.as_mut_ptr(), ptr, bytes as u64, StreamRef::LEGACY).unwrap();
    }
    driver.stream_synchronize(StreamRef::LEGACY).unwrap();
    out
}

/// Returns bytes that differ from place to place.
pub(crate) fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Names each clause and its function.
macro_rules! clauses {
    ($($clause:ident),* $(,)?) => { &[$((stringify!($clause), $clause)),*] };
}

/// A clause's name and function.
pub(crate) type Clause = (&'static str, fn(&Bench));

/// Every clause of the contract.
pub(crate) const CLAUSES: &[Clause] = clauses![
    version_without_a_device,
    memory_is_usable,
    zero_bytes_own_nothing,
    initialize_keeps_what_is_there,
    reset_before_initialize,
    reset_ends_all_memory,
    stale_pointers_free_nothing,
    pointers_outlive_their_manager,
    finalizers_run_on_any_thread,
    memory_info_is_the_devices,
    too_much_is_an_error_and_no_harm,
    deferral_nests,
    host_memory_is_usable,
    pins_are_lifted_at_once,
    owners_live_as_long_as_their_pin,
    managed_memory_has_one_address,
    ipc_handles_carry_the_offset,
    streams_keep_their_order,
    a_handle_that_returns_is_another_stream,
];

/// Runs every clause.
pub(crate) fn all(bench: &Bench) {
    assert_eq!(misuses(), 0);
    CLAUSES.iter().for_each(|(_, clause)| clause(bench));
    assert_eq!(misuses(), 0);
}

/// A manager without a device reports its version and refuses everything else.
pub(crate) fn version_without_a_device(bench: &Bench) {
    let manager = (bench.factory)(None).unwrap();
    assert_eq!(manager.interface_version(), INTERFACE_VERSION);
    assert_eq!(manager.memalloc(1).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(manager.initialize().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(manager.get_memory_info().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let flags = HostAllocFlags::default();
    assert_eq!(manager.memhostalloc(1, flags).unwrap_err().kind(), ErrorKind::InvalidArgument);
    manager.reset();
    drop(manager.defer_cleanup());
}

pub(crate) fn memory_is_usable(bench: &Bench) {
    let manager = bench.manager();
    let memory = manager.memalloc(MIB + 1).unwrap();
    assert_eq!(memory.bytes(), MIB + 1);
    assert_eq!(memory.device(), bench.driver.device());
    assert!(memory.device_pointer().is_aligned_to(256));
    let sent = pattern(MIB as usize + 1, 1);
    write(&bench.driver, memory.device_pointer(), &sent);
    let view = memory.view(1000..2000).unwrap();
    drop(memory);
    assert!(view.is_live());
    assert_eq!(read(&bench.driver, view.device_pointer(), 1000), sent[1000..2000]);
}

pub(crate) fn zero_bytes_own_nothing(bench: &Bench) {
    let manager = bench.manager();
    let memory = manager.memalloc(0).unwrap();
    assert!(memory.device_pointer().is_null());
    assert_eq!(memory.bytes(), 0);
    let flags = HostAllocFlags::default();
    assert_eq!(manager.memhostalloc(0, flags).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

pub(crate) fn initialize_keeps_what_is_there(bench: &Bench) {
    let manager = bench.manager();
    let memory = manager.memalloc(4096).unwrap();
    let sent = pattern(4096, 2);
    write(&bench.driver, memory.device_pointer(), &sent);
    for _ in 0..3 {
        manager.initialize().unwrap();
    }
    assert!(memory.is_live());
    assert_eq!(read(&bench.driver, memory.device_pointer(), 4096), sent);
}

pub(crate) fn reset_before_initialize(bench: &Bench) {
    let manager = (bench.factory)(Some(Arc::clone(&bench.driver))).unwrap();
    manager.reset();
    manager.reset();
    manager.initialize().unwrap();
    assert!(manager.memalloc(4096).unwrap().is_live());
}

pub(crate) fn reset_ends_all_memory(bench: &Bench) {
    let before = bench.driver.mem_get_info().unwrap().free;
    let manager = (bench.factory)(Some(Arc::clone(&bench.driver))).unwrap();
    manager.initialize().unwrap();
    let device = manager.memalloc(8 * MIB).unwrap();
    let view = device.view(0..10).unwrap();
    let flags = HostAllocFlags::default().mapped(true);
    let mapped = manager.memhostalloc(4096, flags).unwrap();
    let pinned = manager.memhostalloc(4096, HostAllocFlags::default()).unwrap();
    let pending = manager.memalloc(MIB).unwrap();
    let guard = manager.defer_cleanup();
    drop(pending);
    manager.reset();
    assert!(!device.is_live() && !view.is_live() && !mapped.is_live() && !pinned.is_live());
    bench.assert_free(bench.driver.mem_get_info().unwrap().free, before);
    drop((guard, device, mapped, pinned));
    assert_eq!(view.free().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let again = manager.memalloc(8 * MIB).unwrap();
    drop(view);
    assert!(again.is_live());
}

/// RMM's bug: after a reset, B gets the address of A; then the late finalizer of A frees B.
pub(crate) fn stale_pointers_free_nothing(bench: &Bench) {
    const BYTES: u64 = 2 * MIB;
    let manager = bench.manager();
    let stale = manager.memalloc(BYTES).unwrap();
    manager.reset();
    let mut fresh = vec![manager.memalloc(BYTES).unwrap()];
    while fresh.last().unwrap().device_pointer() != stale.device_pointer() && fresh.len() < 16 {
        fresh.push(manager.memalloc(BYTES).unwrap());
    }
    let heir = fresh.pop().unwrap();
    // A GPU's driver may always choose other addresses; the simulated device reuses them.
    if bench.driver.device().is_sim() {
        assert_eq!(
            heir.device_pointer(),
            stale.device_pointer(),
            "no new block got the stale pointer's address"
        );
    }
    assert_ne!(heir.token(), stale.token());
    let sent = pattern(4096, 3);
    write(&bench.driver, heir.device_pointer(), &sent);
    drop(stale);
    assert!(heir.is_live());
    // If the heir's block had been freed, a new allocation would get it.
    for _ in 0..4 {
        fresh.push(manager.memalloc(BYTES).unwrap());
        let next = fresh.last().unwrap().device_pointer().address();
        assert!(next.abs_diff(heir.device_pointer().address()) >= BYTES);
    }
    assert_eq!(read(&bench.driver, heir.device_pointer(), 4096), sent);
}

pub(crate) fn pointers_outlive_their_manager(bench: &Bench) {
    let manager = bench.manager();
    let memory = manager.memalloc(4096).unwrap();
    let host = manager.memhostalloc(4096, HostAllocFlags::default()).unwrap();
    drop(manager);
    assert!(memory.is_live() && host.is_live());
    let sent = pattern(4096, 4);
    write(&bench.driver, memory.device_pointer(), &sent);
    assert_eq!(read(&bench.driver, memory.device_pointer(), 4096), sent);
}

pub(crate) fn finalizers_run_on_any_thread(bench: &Bench) {
    let manager = bench.manager();
    let pointers: Vec<_> = (0..64).map(|index| manager.memalloc(256 * (index % 7 + 1)).unwrap()).collect();
    let views: Vec<_> = pointers.iter().map(|memory| memory.view(0..1).unwrap()).collect();
    std::thread::scope(|scope| {
        for (part, view) in [pointers, views].into_iter().zip([false, true]) {
            let mut rest = part;
            for _ in 0..4 {
                let mine = rest.split_off(rest.len() - 16);
                let manager = &manager;
                scope.spawn(move || {
                    for pointer in mine {
                        drop(pointer);
                        if view {
                            drop(manager.memalloc(512).unwrap());
                        }
                    }
                });
            }
            assert!(rest.is_empty());
        }
    });
    manager.reset();
    assert!(manager.memalloc(256).unwrap().is_live());
}

pub(crate) fn memory_info_is_the_devices(bench: &Bench) {
    let manager = bench.manager();
    let before = manager.get_memory_info().unwrap();
    assert_eq!(before.total, bench.driver.mem_get_info().unwrap().total);
    let memory = manager.memalloc(16 * MIB).unwrap();
    let during = manager.get_memory_info().unwrap();
    assert!(during.free <= before.free - 16 * MIB, "{during:?} after {before:?}");
    drop(memory);
    manager.reset();
    bench.assert_free(manager.get_memory_info().unwrap().free, before.free);
}

pub(crate) fn too_much_is_an_error_and_no_harm(bench: &Bench) {
    let manager = bench.manager();
    let total = manager.get_memory_info().unwrap().total;
    for bytes in [total + 1, 1 << 62, u64::MAX] {
        let error = manager.memalloc(bytes).unwrap_err();
        assert!(error.is_out_of_memory() && error.out_of_memory_report().is_some(), "{bytes} bytes: {error}");
    }
    assert!(manager.memalloc(4096).unwrap().is_live());
}

/// Memory that is dropped while cleanup is deferred stays in use until the outermost guard ends.
pub(crate) fn deferral_nests(bench: &Bench) {
    let manager = bench.manager();
    let first = manager.memalloc(32 * MIB).unwrap();
    let during = manager.get_memory_info().unwrap().free;
    let outer = manager.defer_cleanup();
    let inner = manager.defer_cleanup();
    drop(first);
    bench.assert_free(manager.get_memory_info().unwrap().free, during);
    drop(inner);
    bench.assert_free(manager.get_memory_info().unwrap().free, during);
    // More memory than any queue holds, so that the end of the outermost guard frees it all.
    let more: Vec<_> = (0..16).map(|_| manager.memalloc(2 * MIB).unwrap()).collect();
    drop(more);
    bench.assert_free(manager.get_memory_info().unwrap().free, during - 32 * MIB);
    drop(outer);
    bench.assert_free(manager.get_memory_info().unwrap().free, during + 32 * MIB);
}

/// Writes through the host's address and reads back through it.
fn touch(memory: &HostMemory, seed: u8) {
    let sent = pattern(memory.bytes() as usize, seed);
    let ptr = memory.host_pointer().as_mut_ptr();
    // SAFETY: this is live host memory of that length, and only this test accesses it.
    let seen = unsafe {
        ptr.copy_from_nonoverlapping(sent.as_ptr(), sent.len());
        std::slice::from_raw_parts(ptr, sent.len())
    };
    assert_eq!(seen, sent);
}

pub(crate) fn host_memory_is_usable(bench: &Bench) {
    let manager = bench.manager();
    for (mapped, portable, write_combined) in
        [(false, false, false), (true, false, false), (true, true, false), (false, true, true)]
    {
        let flags =
            HostAllocFlags::default().mapped(mapped).portable(portable).write_combined(write_combined);
        let memory = manager.memhostalloc(10_000, flags).unwrap();
        assert_eq!(memory.bytes(), 10_000);
        assert_eq!(memory.device_pointer().is_some(), mapped);
        touch(&memory, 5);
        if let Some(device) = memory.mapped() {
            let view = device.memory().view(100..200).unwrap();
            assert_eq!(read(&bench.driver, view.device_pointer(), 100), pattern(10_000, 5)[100..200]);
            drop(memory);
            assert!(view.is_live(), "the device's view keeps the memory alive");
        }
    }
}

/// Returns new host memory on its own pages.
fn host_pages() -> (Box<[u8]>, HostPtr, u64) {
    const PAGE: usize = 4096;
    let pages = vec![0; 4 * PAGE].into_boxed_slice();
    let skip = pages.as_ptr().align_offset(PAGE);
    let ptr = HostPtr(pages.as_ptr().expose_provenance() + skip);
    (pages, ptr, 2 * PAGE as u64)
}

pub(crate) fn pins_are_lifted_at_once(bench: &Bench) {
    let manager = bench.manager();
    let (pages, ptr, bytes) = host_pages();
    let pin = |mapped| {
        // SAFETY: `pages` outlives every pin here.
        unsafe { manager.mempin(Box::new(()), ptr, bytes, mapped) }
    };
    for mapped in [false, true, false] {
        let pinned = pin(mapped).unwrap();
        assert_eq!(pinned.device_pointer().is_some(), mapped);
        touch(&pinned, 6);
        let error = pin(mapped).unwrap_err();
        assert!(error.to_string().contains("pinned already"), "{error}");
        // A pin involves no stream, so the advice names none.
        assert_eq!((error.stream(), error.requested_bytes()), (None, Some(bytes)));
        assert!(!error.to_string().contains("stream"), "{error}");
    }
    let error = manager.memhostalloc(1 << 50, HostAllocFlags::default()).unwrap_err();
    assert!(error.stream().is_none() && !error.to_string().contains("stream"), "{error}");
    let guard = manager.defer_cleanup();
    for _ in 0..2 {
        drop(pin(true).unwrap());
        drop(pin(false).unwrap());
    }
    drop(guard);
    let outlives = pin(true).unwrap();
    manager.reset();
    assert!(!outlives.is_live());
    let again = pin(true).unwrap();
    drop(outlives);
    assert!(pin(true).is_err(), "the stale pointer must not lift the new pin");
    drop(again);
    drop(pages);
}

pub(crate) fn owners_live_as_long_as_their_pin(bench: &Bench) {
    struct Watched(Box<[u8]>, Arc<AtomicUsize>);
    impl Drop for Watched {
        fn drop(&mut self) {
            assert!(!self.0.is_empty());
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let manager = bench.manager();
    let dropped = Arc::new(AtomicUsize::new(0));
    let (pages, ptr, bytes) = host_pages();
    let owner = Box::new(Watched(pages, Arc::clone(&dropped)));
    // SAFETY: the owner keeps the pages.
    let pinned = unsafe { manager.mempin(owner, ptr, bytes, true) }.unwrap();
    let device = pinned.mapped().unwrap().memory().view(0..1).unwrap();
    drop(pinned);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    drop(device);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

pub(crate) fn managed_memory_has_one_address(bench: &Bench) {
    let manager = bench.manager();
    let memory = manager.memallocmanaged(4096, true).unwrap();
    let sent = pattern(4096, 7);
    write(&bench.driver, memory.device_pointer(), &sent);
    bench.driver.synchronize().unwrap();
    let ptr: *const u8 = std::ptr::with_exposed_provenance(memory.device_pointer().address() as usize);
    // SAFETY: this is managed memory of that length, and the device has no work left.
    assert_eq!(unsafe { std::slice::from_raw_parts(ptr, 4096) }, sent);
    assert!(manager.memallocmanaged(0, true).unwrap().device_pointer().is_null());
}

/// A non-blocking stream still writes to memory when it is dropped and allocated again for the legacy stream.
pub(crate) fn streams_keep_their_order(bench: &Bench) {
    const BYTES: u64 = 8 * MIB;
    let (manager, driver) = (bench.manager(), &bench.driver);
    let fill = |ptr, value, stream| {
        // SAFETY: this is memory of that length, and no other code uses it until the copy that waits for it.
        unsafe { driver.memset_d8_async(ptr, value, BYTES, stream).unwrap() };
    };
    for round in 0..16 {
        let stream = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
        let memory = with_stream(stream, || manager.memalloc(BYTES).unwrap());
        for _ in 0..8 {
            fill(memory.device_pointer(), 1, stream);
        }
        // SAFETY: the test does not name the stream again; its work still runs.
        let destroy = || unsafe { driver.stream_destroy(stream).unwrap() };
        if round % 2 == 0 {
            destroy();
        }
        drop(memory);
        let next = manager.memalloc(BYTES).unwrap();
        fill(next.device_pointer(), 2, StreamRef::LEGACY);
        driver.synchronize().unwrap();
        assert!(read(driver, next.device_pointer(), BYTES as usize).iter().all(|byte| *byte == 2));
        if round % 2 == 1 {
            destroy();
        }
    }
}

/// CUDA gives the handle of a destroyed stream to a new stream. The old stream's work still runs.
pub(crate) fn a_handle_that_returns_is_another_stream(bench: &Bench) {
    const BYTES: u64 = 8 * MIB;
    let (manager, driver) = (bench.manager(), &bench.driver);
    let fill = |ptr, value, stream| {
        // SAFETY: this is memory of that length, and no other code uses it until the wait for the device.
        unsafe { driver.memset_d8_async(ptr, value, BYTES, stream).unwrap() };
    };
    let old = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    with_stream(old, || {
        let memory = manager.memalloc(BYTES).unwrap();
        for _ in 0..8 {
            fill(memory.device_pointer(), 1, old);
        }
    });
    // SAFETY: the test does not name the stream again; its work still runs.
    unsafe { driver.stream_destroy(old).unwrap() };
    let new = driver.stream_create(StreamFlags::NON_BLOCKING).unwrap();
    if driver.device().is_sim() {
        assert_eq!(new.handle(), old.handle());
    }
    let next = with_stream(new, || manager.memalloc(BYTES).unwrap());
    fill(next.device_pointer(), 2, new);
    driver.synchronize().unwrap();
    assert!(read(driver, next.device_pointer(), BYTES as usize).iter().all(|byte| *byte == 2));
    drop(next);
    // SAFETY: the test does not name the stream again.
    unsafe { driver.stream_destroy(new).unwrap() };
}

pub(crate) fn ipc_handles_carry_the_offset(bench: &Bench) {
    let manager = bench.manager();
    drop(manager.memalloc(8 * MIB).unwrap()); // a pool cuts the blocks below from this memory
    let first = manager.memalloc(3 * MIB).unwrap();
    let memory = manager.memalloc(MIB).unwrap();
    for (pointer, inside) in [(&first, 0), (&memory, 0), (&memory.view(512..1024).unwrap(), 512)] {
        let mut handle = manager.get_ipc_handle(pointer).unwrap();
        let (base, size) = bench.driver.mem_get_address_range(pointer.device_pointer()).unwrap();
        assert_eq!(base.offset(handle.offset()), pointer.device_pointer());
        assert!(handle.offset() >= inside && handle.offset() + handle.bytes() <= size);
        assert_eq!(handle.bytes(), pointer.bytes());
        assert_eq!(handle.source_info().unwrap().device, bench.driver.device());
        assert_eq!(handle.open(&bench.driver).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let handle = manager.get_ipc_handle(&memory).unwrap();
    drop(memory);
    assert!(handle.base().unwrap().is_live(), "the handle keeps the memory alive");

    let null = manager.memalloc(0).unwrap();
    assert_eq!(manager.get_ipc_handle(&null).unwrap_err().kind(), ErrorKind::InvalidArgument);
    manager.reset();
    assert_eq!(manager.get_ipc_handle(&first).unwrap_err().kind(), ErrorKind::InvalidArgument);
}
