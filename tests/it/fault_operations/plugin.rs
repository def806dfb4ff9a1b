//! The operations of `millpond-plugin` and of the engine of `millpond-replay`.

use std::sync::Arc;

use millpond::plugin::{
    CudaMemoryManager, DeferredOptions, HostAllocFlags, HostOnlyMemoryManager, IpcHandle, ManagerRegistry,
    MemoryManager, MillpondMemoryManager, get_ipc_handle, with_stream,
};
use millpond::stack::StackSpec;
use millpond::{DeviceId, DriverHandle, Error, Result};
use millpond_core::driver::HostPtr;
use millpond_engine::log::LogReader;
use millpond_engine::program::{Limits, Program};
use millpond_engine::{Options, Threads, replay};
use millpond_testkit::faults::{Act, Operation, Stage};

use super::support::{act, on_stage};

fn mapped() -> HostAllocFlags {
    HostAllocFlags::default().mapped(true)
}

fn millpond_manager(stage: &Stage, text: &str) -> Result<MillpondMemoryManager> {
    let spec: StackSpec = text.parse()?;
    let build = move |driver: &DriverHandle| spec.build(&millpond::layers(), driver);
    let manager = MillpondMemoryManager::with_builder(Some(stage.driver()), Arc::new(build));
    manager.initialize()?;
    Ok(manager)
}

/// An operation on each kind of manager.
fn on_managers(
    stage: &Stage,
    mut body: impl FnMut(&dyn MemoryManager, &Stage) -> Result<()> + 'static,
) -> Result<Act> {
    let plain = CudaMemoryManager::new(Some(stage.driver()));
    plain.initialize()?;
    let stack = millpond_manager(stage, "cuda+pool:pages=off")?;
    let stage = stage.clone();
    act(move || {
        body(&plain, &stage)?;
        body(&stack, &stage)
    })
}

fn on_plain(
    stage: &Stage,
    mut body: impl FnMut(&CudaMemoryManager, &Stage) -> Result<()> + 'static,
) -> Result<Act> {
    let manager = CudaMemoryManager::new(Some(stage.driver()));
    manager.initialize()?;
    let stage = stage.clone();
    act(move || body(&manager, &stage))
}

fn on_host_half(
    stage: &Stage,
    mut body: impl FnMut(&HostOnlyMemoryManager) -> Result<()> + 'static,
) -> Result<Act> {
    let manager = HostOnlyMemoryManager::new(Some(stage.driver()), DeferredOptions::IMMEDIATE);
    act(move || body(&manager))
}

/// Returns host memory at an address of its own: a pin that could not be lifted stays.
fn memory_to_pin() -> (Box<u64>, HostPtr) {
    let kept = Box::leak(Box::new(0_u64));
    (Box::new(0), HostPtr(std::ptr::from_mut(kept).expose_provenance()))
}

fn pin(manager: &dyn MemoryManager, mapped: bool) -> Result<()> {
    let (owner, ptr) = memory_to_pin();
    // SAFETY: the memory is never freed.
    unsafe { manager.mempin(owner, ptr, 8, mapped) }.map(drop)
}

/// A log of two streams. The engine makes the second stream itself.
const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream\n\
    1,0,allocate,0x1000,1000,0\n\
    1,1,allocate,0x2000,2000,5\n\
    1,2,free,0x1000,1000,0\n\
    1,3,allocate,0x3000,3000,5\n\
    1,4,free,0x2000,2000,5\n";

/// Replays [`LOG`], whose last block is never freed.
fn replayed(stage: &Stage, text: &str) -> Result<()> {
    let failed = |error: &dyn std::error::Error| Error::invalid_argument(error.to_string());
    let log = LogReader::from_reader("log", LOG.as_bytes()).map_err(|error| failed(&error))?;
    let program = Program::read(log, Limits::default()).map_err(|error| failed(&error))?;
    let driver = stage.driver();
    let resource = text.parse::<StackSpec>()?.build(&millpond::layers(), &driver)?;
    let options = Options::default().threads(Threads::One).passes(2);
    let outcome = replay(&program, &resource, &driver, options, &mut ()).map_err(|error| match error {
        millpond_engine::Error::Stack(error) => error,
        other => failed(&other),
    })?;
    // A refused request is not an error of the replay.
    match outcome.first_failure {
        Some(_) if driver.health().is_lost() => Err(driver.health().error()),
        Some(failure) => Err(Error::invalid_argument(failure.error)),
        None => Ok(()),
    }
}

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::new("MemoryManager::memalloc", |stage| {
        on_managers(stage, |manager, stage| {
            let memory = manager.memalloc(1 << 20)?;
            with_stream(stage.a(), || manager.memalloc(4096))?;
            drop(memory.view(16..32)?);
            Ok(())
        })
    }),
    Operation::new("MemoryManager::memhostalloc", |stage| {
        on_managers(stage, |manager, _| {
            manager.memhostalloc(4096, HostAllocFlags::default()).map(drop)?;
            manager.memhostalloc(4096, mapped()).map(drop)
        })
    }),
    Operation::new("MemoryManager::memallocmanaged", |stage| {
        on_managers(stage, |manager, _| {
            manager.memallocmanaged(4096, true).map(drop)?;
            manager.memallocmanaged(4096, false).map(drop)
        })
    }),
    Operation::new("MemoryManager::mempin", |stage| {
        on_managers(stage, |manager, _| {
            pin(manager, false)?;
            pin(manager, true)
        })
    }),
    Operation::new("MemoryManager::initialize", |stage| {
        on_stage(stage, |stage| {
            CudaMemoryManager::new(Some(stage.driver())).initialize()?;
            millpond_manager(stage, "cuda+pool:initial=4MiB").map(drop)
        })
    }),
    Operation::new("MemoryManager::get_memory_info", |stage| {
        on_managers(stage, |manager, _| manager.get_memory_info().map(drop))
    }),
    Operation::new("MemoryManager::get_ipc_handle", |stage| {
        on_managers(stage, |manager, _| {
            let memory = manager.memalloc(1 << 20)?;
            manager.get_ipc_handle(&memory).map(drop)
        })
    }),
    Operation::new("get_ipc_handle", |stage| {
        on_plain(stage, |manager, stage| {
            let memory = manager.memalloc(1 << 20)?;
            get_ipc_handle(&*stage.driver(), &memory).map(drop)
        })
    }),
    Operation::new("IpcHandle::open", |stage| {
        on_plain(stage, |manager, stage| {
            let memory = manager.memalloc(1 << 20)?;
            let bytes = manager.get_ipc_handle(&memory)?.to_bytes();
            IpcHandle::from_bytes(&bytes)?.open(&stage.driver()).map(drop)
        })
    }),
    Operation::new("IpcHandle::open_staged", |stage| {
        on_managers(stage, |manager, stage| {
            let memory = manager.memalloc(1 << 20)?;
            let mut handle = IpcHandle::from_bytes(&manager.get_ipc_handle(&memory)?.to_bytes())?;
            handle.open_staged(&stage.driver(), manager, &stage.driver()).map(drop)
        })
    }),
    Operation::new("IpcHandle::close", |stage| {
        on_plain(stage, |manager, stage| {
            let memory = manager.memalloc(1 << 20)?;
            let mut handle = IpcHandle::from_bytes(&manager.get_ipc_handle(&memory)?.to_bytes())?;
            let opened = handle.open(&stage.driver())?;
            handle.close()?;
            assert!(!opened.is_live());
            Ok(())
        })
    }),
    Operation::new("MemoryManager::reset", |stage| {
        on_managers(stage, |manager, _| {
            let memory = manager.memalloc(1 << 20)?;
            let pinned = manager.memhostalloc(4096, mapped())?;
            manager.reset();
            drop((memory, pinned));
            manager.initialize()
        })
    }),
    Operation::new("MemoryManager::defer_cleanup", |stage| {
        on_managers(stage, |manager, _| {
            let deferral = manager.defer_cleanup();
            for _ in 0..12 {
                drop(manager.memalloc(4096)?);
            }
            drop(manager.memhostalloc(4096, HostAllocFlags::default())?);
            drop(deferral);
            Ok(())
        })
    }),
    Operation::new("CudaMemoryManager::flush", |stage| {
        on_plain(stage, |manager, _| {
            drop(manager.memalloc(4096)?);
            manager.flush();
            Ok(())
        })
    }),
    Operation::new("MemoryPointer::free", |stage| {
        on_plain(stage, |manager, _| {
            let memory = manager.memalloc(4096)?;
            memory.free()
        })
    }),
    Operation::new("MillpondMemoryManager::stack", |stage| {
        on_stage(stage, |stage| {
            let build =
                |driver: &DriverHandle| "cuda+pool".parse::<StackSpec>()?.build(&millpond::layers(), driver);
            MillpondMemoryManager::with_builder(Some(stage.driver()), Arc::new(build)).stack().map(drop)
        })
    }),
    Operation::new("MillpondMemoryManager::record_stream", |stage| {
        let manager = millpond_manager(stage, "cuda+pool")?;
        on_stage(stage, move |stage| {
            let memory = with_stream(stage.a(), || manager.memalloc(1 << 20))?;
            manager.record_stream(&memory, stage.b())?;
            drop(memory);
            manager.memalloc(1 << 20).map(drop)
        })
    }),
    Operation::new("HostOnlyMemoryManager::initialize", |stage| {
        on_stage(stage, |stage| {
            HostOnlyMemoryManager::new(Some(stage.driver()), DeferredOptions::default()).initialize()
        })
    }),
    Operation::new("HostOnlyMemoryManager::driver", |stage| {
        on_host_half(stage, |manager| manager.driver().map(drop))
    }),
    Operation::new("HostOnlyMemoryManager::memhostalloc", |stage| {
        on_host_half(stage, |manager| manager.memhostalloc(4096, mapped()).map(drop))
    }),
    Operation::new("HostOnlyMemoryManager::mempin", |stage| {
        on_host_half(stage, |manager| {
            let (owner, ptr) = memory_to_pin();
            // SAFETY: the memory is never freed.
            unsafe { manager.mempin(owner, ptr, 8, true) }.map(drop)
        })
    }),
    Operation::new("HostOnlyMemoryManager::memallocmanaged", |stage| {
        on_host_half(stage, |manager| manager.memallocmanaged(4096, true).map(drop))
    }),
    Operation::new("ManagerRegistry::get", |stage| {
        on_stage(stage, |stage| {
            let environment = Box::new(|_: &str| Some("cuda+pool:initial=4MiB,pages=off".to_owned()));
            let open = Box::new(|id: DeviceId| millpond::driver::open(id));
            let registry = ManagerRegistry::new(environment, open, millpond::layers());
            let manager = registry.get(stage.driver().device())?;
            let memory = manager.memalloc(4096)?;
            registry.reset();
            drop(memory);
            Ok(())
        })
    }),
    Operation::new("replay", |stage| on_stage(stage, |stage| replayed(stage, "cuda"))),
    Operation::new("replay (over a pool)", |stage| {
        on_stage(stage, |stage| replayed(stage, "cuda+pool:pages=off"))
    }),
];
