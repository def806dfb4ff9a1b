//! Shows how captured graphs use memory from a scope: two graphs share one scope, which reports the blocks
//! that leave each capture.
//!
//! Run it with `cargo run --example captured_graph`. It captures on a simulated H200; `CudaDriver` captures
//! and launches in the same way on a GPU.

use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::driver::{CaptureMode, StreamFlags};
use millpond::resources::CaptureScope;
use millpond::stack::StackSpec;
use millpond::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverHandle, StreamRef,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let device = SimDevice::new(SimConfig::h200());
    let driver: DriverHandle = device.clone();
    // The layer makes scopes; while none is open, it passes every request on.
    let stack: AnyResource =
        "cuda+pool+capture_scopes".parse::<StackSpec>()?.build(&millpond::layers(), &driver)?;
    let stream = device.stream_create(StreamFlags::NON_BLOCKING)?;

    // Graphs that never run at the same time can share a scope: the second graph reuses memory that the first
    // freed.
    let scope = CaptureScope::of(&stack)?;
    for name in ["first", "second"] {
        let opened = scope.begin(stream)?;
        device.begin_capture(stream, CaptureMode::Global)?;
        step(&stack, stream)?;
        device.end_capture(stream)?;
        for block in opened.end() {
            println!("{name}: {} bytes at {:#x} leave the capture", block.bytes, block.address);
        }
    }
    println!("{}", stack.memory_report());

    // The graphs have run for the last time. The end of the scope waits for the device and returns the
    // memory.
    for block in scope.blocks() {
        let output = DevicePtr::new(block.address);
        // SAFETY: the scope reports a live block with its size, and no graph runs any more.
        unsafe { stack.deallocate_bytes(output, block.bytes, stream) };
    }
    drop(scope);
    assert_eq!(stack.statistics().unwrap_or_default().bytes_in_use, 0);
    Ok(())
}

/// The captured work: 8 MiB of scratch memory, and an output of 1 MiB.
fn step(stack: &AnyResource, stream: StreamRef) -> Outcome<()> {
    let scratch = stack.allocate_bytes(8 << 20, stream)?;
    let _output = stack.allocate_bytes(1 << 20, stream)?;
    // … kernels that use both …
    // SAFETY: the block came from this stack with this size, once; its uses are on the stream.
    unsafe { stack.deallocate_bytes(scratch, 8 << 20, stream) };
    Ok(())
}
