//! Shows how to log a program's allocations, then replay the log through other stacks and compare them:
//! `cargo run -p millpond-replay --example log_and_replay`.

use std::error::Error;

use millpond_core::stack::StackSpec;
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Result, StreamRef};
use millpond_driver::DeviceSpec;
use millpond_engine::program::{Limits, Program};
use millpond_replay::compare::{self, Settings};
use millpond_replay::progress::Progress;
use millpond_replay::report::Format;

fn main() -> Result<(), Box<dyn Error>> {
    let log = std::env::temp_dir().join(format!("millpond-example-{}.csv", std::process::id()));
    let device = DeviceSpec::default_device();

    // The logging adaptor goes on top of the program's own stack. (The variable MILLPOND_LOG_FILE can name
    // the file from outside.)
    let spec: StackSpec = format!("cuda+pool+logging:file={}", log.display()).parse()?;
    let stack = spec.build(&compare::layers(), &device.open()?)?;
    work(&stack)?;
    drop(stack); // nothing is lost: the last rows are written here

    // Replays the same requests in the same order through three other stacks.
    let program = Program::open(&log, Limits::default())?;
    let stacks = ["cuda", "cuda+pool:initial=64MiB", "cuda+pool+binning"];
    let stacks = stacks.iter().map(|text| text.parse()).collect::<Result<_>>()?;
    let settings = Settings::new(device, stacks);
    let comparison = compare::compare(&program, &settings, &compare::layers(), &Progress::default())?;
    Format::Table.reporter(std::io::stdout()).report(&comparison)?;
    std::fs::remove_file(&log)?;
    Ok(())
}

/// A loop with growing blocks, like a decoder's cache.
fn work(resource: &dyn DeviceMemoryResource) -> Result<()> {
    let mut cache: Option<(DevicePtr, u64)> = None;
    for step in 1..=100u64 {
        let bytes = step * 100_000;
        let fresh = resource.allocate_bytes(bytes, StreamRef::LEGACY)?;
        if let Some((old, old_bytes)) = cache.replace((fresh, bytes)) {
            // SAFETY: the block came from this resource with this size, once, and nothing uses it.
            unsafe { resource.deallocate_bytes(old, old_bytes, StreamRef::LEGACY) };
        }
    }
    if let Some((last, bytes)) = cache {
        // SAFETY: as above.
        unsafe { resource.deallocate_bytes(last, bytes, StreamRef::LEGACY) };
    }
    Ok(())
}
