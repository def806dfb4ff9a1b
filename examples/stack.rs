//! Stacks: resources and adaptors put on top of each other, in Rust and as text. Order matters.

use millpond::adaptors::{AllocationCounters, StatisticsLayer};
use millpond::driver::DeviceSpec;
use millpond::resources::{CudaMemoryResource, PoolLayer};
use millpond::stack::StackSpec;
use millpond::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Result, StreamRef, find_trait};

const BLOCK: u64 = 1 << 20;

fn main() -> Result<()> {
    let device = DeviceSpec::default_device().open()?;

    // The last layer added is the outermost. Statistics above the pool count what the program asks for …
    let above =
        CudaMemoryResource::new(device.clone()).layer(PoolLayer::new())?.layer(StatisticsLayer::new())?;
    work(&above)?;
    println!("{above}: {} allocations", above.counters().allocations.total);

    // … below the pool they count what the pool asks for: one region, taken once.
    let below =
        CudaMemoryResource::new(device.clone()).layer(StatisticsLayer::new())?.layer(PoolLayer::new())?;
    work(&below)?;
    let counted = find_trait::<dyn AllocationCounters>(&below).expect("a layer counts");
    println!("{below}: {} allocations", counted.counters().allocations.total);

    // The same stacks as text: what a configuration file, an environment variable or a command line holds.
    let spec: StackSpec = "cuda + pool:initial=64MiB,max=25% + statistics".parse()?;
    let built: AnyResource = spec.build(&millpond::layers(), &device)?;
    work(&built)?;
    println!("{built}: {:?}", built.statistics().map(|statistics| statistics.ladder));

    // A mistake is an error that says what is right.
    let mistake = "cuda+pol".parse::<StackSpec>()?.build(&millpond::layers(), &device);
    println!("{}", mistake.expect_err("there is no layer `pol`"));
    Ok(())
}

/// Ten blocks, one after the other: a pool needs memory for one.
fn work(resource: &dyn DeviceMemoryResource) -> Result<()> {
    for _ in 0..10 {
        let block = resource.allocate_bytes(BLOCK, StreamRef::LEGACY)?;
        // SAFETY: the block came from this resource with this size, once, and nothing uses it.
        unsafe { resource.deallocate_bytes(block, BLOCK, StreamRef::LEGACY) };
    }
    Ok(())
}
