//! Shows stacks: resources and adaptors layered on top of each other, in Rust and as text. Their order
//! matters.

use millpond::adaptors::{AllocationCounters, StatisticsLayer};
use millpond::driver::DeviceSpec;
use millpond::resources::{CudaMemoryResource, PoolLayer};
use millpond::stack::StackSpec;
use millpond::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Result, StreamRef, find_trait};

const BLOCK: u64 = 1 << 20;

fn main() -> Result<()> {
    let device = DeviceSpec::default_device().open()?;

    // The last layer added is the outermost. Statistics above the pool count the program's requests.
    let above =
        CudaMemoryResource::new(device.clone()).layer(PoolLayer::new())?.layer(StatisticsLayer::new())?;
    work(&above)?;
    println!("{above}: {} allocations", above.counters().allocations.total);

    // Statistics below the pool count the pool's requests. It requests one region, once.
    let below =
        CudaMemoryResource::new(device.clone()).layer(StatisticsLayer::new())?.layer(PoolLayer::new())?;
    work(&below)?;
    let counted = find_trait::<dyn AllocationCounters>(&below).expect("a layer counts");
    println!("{below}: {} allocations", counted.counters().allocations.total);

    // The same stack can be built from text in a configuration file, an environment variable or a command
    // line.
    let spec: StackSpec = "cuda + pool:initial=64MiB,max=25% + statistics".parse()?;
    let built: AnyResource = spec.build(&millpond::layers(), &device)?;
    work(&built)?;
    println!("{built}: {:?}", built.statistics().map(|statistics| statistics.ladder));

    // If the text has a mistake, the error lists the valid names.
    let mistake = "cuda+pol".parse::<StackSpec>()?.build(&millpond::layers(), &device);
    println!("{}", mistake.expect_err("there is no layer `pol`"));
    Ok(())
}

/// Allocates ten blocks, one after the other. A pool needs memory for only one of them.
fn work(resource: &dyn DeviceMemoryResource) -> Result<()> {
    for _ in 0..10 {
        let block = resource.allocate_bytes(BLOCK, StreamRef::LEGACY)?;
        // SAFETY: the block came from this resource with this size, once, and nothing uses it.
        unsafe { resource.deallocate_bytes(block, BLOCK, StreamRef::LEGACY) };
    }
    Ok(())
}
