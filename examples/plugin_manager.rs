//! Shows the memory manager that a framework such as Numba plugs in: NBEP 7's interface on top of a stack.
//!
//! A framework allocates without naming a stream, passes views around, and drops them on any thread. It may
//! reset the context while arrays still exist. `MILLPOND_MEMORY_MANAGER=cuda+pool` chooses a process's stack
//! from outside.

use std::sync::Arc;

use millpond::driver::DeviceSpec;
use millpond::plugin::{MemoryManager, MillpondMemoryManager, set_memory_manager};
use millpond::stack::StackSpec;
use millpond::{DeviceMemoryResource, Result};

fn main() -> Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let spec: StackSpec = "cuda+pool+statistics".parse()?;
    let manager = MillpondMemoryManager::new(spec.build(&millpond::layers(), &device)?);
    println!("interface version {}", manager.interface_version());

    // Memory is a counted reference; a view keeps the allocation that it points into alive.
    let memory = manager.memalloc(1 << 20)?;
    let half = memory.view(1 << 19..1 << 20)?;
    drop(memory);
    println!("a view of {} bytes, live: {}", half.bytes(), half.is_live());

    // Cleanup can be deferred, for instance while a kernel runs that must not be delayed.
    {
        let _deferred = manager.defer_cleanup();
        drop(half);
        println!("deferred: {} deallocations", manager.parked());
    }
    println!("after that: {}", manager.parked());

    // A pointer that outlives a reset frees nothing, even if its address has a new owner by then.
    let stale = manager.memalloc(4096)?;
    manager.reset();
    let fresh = manager.memalloc(4096)?;
    println!("after a reset: stale is live: {}, fresh is live: {}", stale.is_live(), fresh.is_live());
    drop(stale);
    println!("dropping the stale one leaves fresh alone: {}", fresh.is_live());

    let stack = manager.stack()?;
    println!("`{stack}`: {:?} blocks in use", stack.statistics().map(|statistics| statistics.blocks_in_use));

    // A process chooses its manager once, before the first use; a second choice is an error.
    let factory = || MillpondMemoryManager::factory(spec.clone(), millpond::layers());
    set_memory_manager(factory())?;
    if let Err(error) = set_memory_manager(Arc::clone(&factory())) {
        println!("{error}");
    }
    Ok(())
}
