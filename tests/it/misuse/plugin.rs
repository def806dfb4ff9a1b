//! Memory managers of NBEP 7 that are used wrongly.

use std::sync::Arc;

use millpond::plugin::{
    CudaMemoryManager, HostAllocFlags, IpcHandle, ManagerRegistry, MemoryManager, MillpondMemoryManager,
};
use millpond_core::driver::HostPtr;

use super::bench::{Bench, MIB, Program, error, program};

fn plain(bench: &Bench) -> CudaMemoryManager {
    CudaMemoryManager::new(Some(bench.driver()))
}

fn over(bench: &Bench, stack: &str) -> MillpondMemoryManager {
    MillpondMemoryManager::new(bench.stack(stack))
}

fn registry(value: Option<&'static str>) -> ManagerRegistry {
    let environment = Box::new(move |_: &str| value.map(str::to_owned));
    ManagerRegistry::new(environment, Box::new(millpond::driver::open), millpond::layers())
}

/// Returns a handle of 4096 bytes, as another process has it.
fn handle(bench: &Bench, manager: &CudaMemoryManager) -> IpcHandle {
    let memory = manager.memalloc(4096).unwrap();
    bench.call(memory.device_pointer(), "P");
    let handle = IpcHandle::from_bytes(&manager.get_ipc_handle(&memory).unwrap().to_bytes()).unwrap();
    std::mem::forget(memory);
    handle
}

pub(crate) const PROGRAMS: &[Program] = &[
    program(
        "a manager that was made for its version only hands out memory",
        |_| error(CudaMemoryManager::new(None).memalloc(4096)),
        "invalid argument: this memory manager has no device, because it was made only to report its \
         version; get a memory manager from get_memory_manager",
    ),
    program(
        "zero bytes of pinned memory",
        |bench| error(plain(bench).memhostalloc(0, HostAllocFlags::default())),
        "invalid argument: zero bytes cannot be pinned; request at least one byte",
    ),
    program(
        "memory is pinned twice",
        |bench| {
            let (manager, memory) = (plain(bench), Arc::new([0_u64; 64]));
            let ptr = HostPtr(memory.as_ptr().expose_provenance());
            // SAFETY: the owner keeps the memory.
            let pin = || unsafe { manager.mempin(Box::new(memory.clone()), ptr, 512, false) };
            let _first = pin().unwrap();
            error(pin())
        },
        "driver error for 512B on DEVICE: a part of the range is pinned already; drop the earlier pin \
         first: a pin: cuMemHostRegister: CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (712): a part of the \
         range is already pinned",
    ),
    program(
        "a view beyond the end of memory",
        |bench| error(plain(bench).memalloc(4096).unwrap().view(4000..5000)),
        "invalid argument: a view of bytes 4000..5000 does not fit into 4KiB; choose a range within 0..4096",
    ),
    program(
        "memory of a manager is freed twice",
        |bench| {
            let memory = plain(bench).memalloc(4096).unwrap();
            bench.call(memory.device_pointer(), "P");
            memory.free().unwrap();
            error(memory.free())
        },
        "invalid argument on DEVICE: cannot free the memory at P: it is already free, or its manager was \
         reset; use an allocation only while it is live",
    ),
    program(
        "memory is shared after a reset of its manager",
        |bench| {
            let manager = plain(bench);
            let memory = manager.memalloc(4096).unwrap();
            bench.call(memory.device_pointer(), "P");
            manager.reset();
            error(manager.get_ipc_handle(&memory))
        },
        "invalid argument on DEVICE: cannot share the memory at P: it is already free, or its manager was \
         reset; use an allocation only while it is live",
    ),
    program(
        "a use of another manager's memory is announced",
        |bench| {
            let memory = plain(bench).memalloc(4096).unwrap();
            bench.call(memory.device_pointer(), "P");
            error(over(bench, "cuda+pool").record_stream(&memory, bench.a))
        },
        "invalid argument on DEVICE: it must be this manager's live memory: cannot record a use of the \
         memory at P: it is already free, or its manager was reset; use an allocation only while it is live",
    ),
    program(
        "a null pointer is shared",
        |bench| {
            let manager = plain(bench);
            error(manager.get_ipc_handle(&manager.memalloc(0).unwrap()))
        },
        "invalid argument: a null pointer cannot be shared; allocate at least one byte",
    ),
    program(
        "memory of pages is shared by CUDA's legacy handles",
        |bench| {
            let manager = over(bench, "cuda+pool:pages=on");
            error(manager.get_ipc_handle(&manager.memalloc(4096).unwrap()))
        },
        "not supported on DEVICE in `cuda+pool:pages=on`: a stack on `cuda` with `pages=off` pools \
         shares its memory, such as cuda+pool:pages=off (a pool with `share=fd` shares blocks by file \
         descriptors): NBEP 7 uses CUDA's legacy IPC handles, which exist only for memory of cuMemAlloc; \
         share memory that its manager allocated with cuMemAlloc: cuIpcGetMemHandle: \
         CUDA_ERROR_NOT_SUPPORTED (801): other processes can open only memory from cuMemAlloc",
    ),
    program(
        "a handle is opened in the process that made it",
        |bench| {
            let manager = plain(bench);
            let memory = manager.memalloc(4096).unwrap();
            error(manager.get_ipc_handle(&memory).unwrap().open(&bench.driver()))
        },
        "invalid argument: this process made the handle and owns the memory; open the handle in \
         another process",
    ),
    program(
        "a handle is opened twice",
        |bench| {
            let mut handle = handle(bench, &plain(bench));
            let _opened = handle.open(&bench.driver()).unwrap();
            error(handle.open(&bench.driver()))
        },
        "invalid argument: the handle is already open; close it first",
    ),
    program(
        "a handle is closed that is not open",
        |bench| error(handle(bench, &plain(bench)).close()),
        "invalid argument: the handle is not open; open it first",
    ),
    program(
        "a forged handle names more than its allocation",
        |bench| {
            let right = handle(bench, &plain(bench));
            let mut forged = IpcHandle::new(None, *right.handle(), 4 * MIB, None, 0);
            error(forged.open(&bench.driver()))
        },
        "invalid argument: the handle names 4194304 bytes at offset 0, but the allocation has 4096 \
         bytes; ask the sharing process for a new handle",
    ),
    program(
        "a handle whose end is missing",
        |bench| {
            let bytes = handle(bench, &plain(bench)).to_bytes();
            error(IpcHandle::from_bytes(&bytes[..bytes.len() - 1]))
        },
        "invalid argument: these bytes are not an IPC handle: the header says 127 bytes, but there are 126; \
         pass all bytes of the handle",
    ),
    program(
        "bytes that are no handle",
        |_| error(IpcHandle::from_bytes(b"something else")),
        "invalid argument: these bytes are not an IPC handle: they do not start with the magic bytes; \
         pass all bytes of the handle",
    ),
    program(
        "the manager is set twice",
        |_| {
            let registry = registry(None);
            registry.set(CudaMemoryManager::factory()).unwrap();
            error(registry.set(CudaMemoryManager::factory()))
        },
        "invalid argument: the memory manager is already set; call set_memory_manager once per process, \
         before any use",
    ),
    program(
        "the manager is set after a device has one",
        |bench| {
            let registry = registry(None);
            registry.get(millpond::Driver::device(&*bench.device)).unwrap();
            error(registry.set(CudaMemoryManager::factory()))
        },
        "invalid argument: a device already has its memory manager; call set_memory_manager before anything \
         uses a device",
    ),
    program(
        "the environment names a layer that there is not",
        |bench| error(registry(Some("cuda+pol")).get(millpond::Driver::device(&*bench.device))),
        "invalid stack: MILLPOND_MEMORY_MANAGER=cuda+pol is not a stack; set it to a stack such as \
         `cuda+pool:initial=1GiB,pages=off`, or unset it: there is no layer `pol`; the layers are cuda, \
         managed, cuda_async, cuda_async_view, cuda_async_managed, cuda_async_pinned, pinned_host, host, \
         system, sam_headroom, pool, fixed_size, binning, arena, capture_scopes, plan, aligned, budget, \
         fallback, limiting, logging, prefetch, recording, retry, statistics, thread_safe, \
         tracking; did you mean `pool`?",
    ),
    program(
        "a stack of the environment that cannot be built",
        |bench| {
            error(registry(Some("cuda+pool:initial=900GiB")).get(millpond::Driver::device(&*bench.device)))
        },
        "out of memory for 900GiB on stream 0 of DEVICE in `cuda+pool:initial=900GiB`: \
         MILLPOND_MEMORY_MANAGER=cuda+pool:initial=900GiB: allocating the pool's initial size: 899.75GiB \
         more is needed\n\
         \x20 the device has 256MiB in all: request less at a time, or use managed memory if the device \
         has it\n\
         \x20 the device has 256MiB free of 256MiB",
    ),
];
