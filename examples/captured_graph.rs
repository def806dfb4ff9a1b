//! Memory that belongs to captured graphs: two graphs share a scope, and say what leaves them.
//!
//! Run it with `cargo run --example captured_graph`. It captures on a simulated H200; on a GPU,
//! `CudaDriver` captures and launches in the same way.

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
    // The layer makes scopes; without an open one it passes every request on.
    let stack: AnyResource =
        "cuda+pool+capture_scopes".parse::<StackSpec>()?.build(&millpond::layers(), &driver)?;
    let stream = device.stream_create(StreamFlags::NON_BLOCKING)?;

    // Graphs that never run at once share one scope: the second uses what the first freed.
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

    // The graphs have run for the last time: the end waits for the device and gives the memory back.
    for block in scope.blocks() {
        let output = DevicePtr::new(block.address);
        // SAFETY: the scope says that the block is handed out, with its size; no graph runs any more.
        unsafe { stack.deallocate_bytes(output, block.bytes, stream) };
    }
    drop(scope);
    assert_eq!(stack.statistics().unwrap_or_default().bytes_in_use, 0);
    Ok(())
}

/// What is captured: 8 MiB that are needed on the way, and an output of 1 MiB.
fn step(stack: &AnyResource, stream: StreamRef) -> Outcome<()> {
    let scratch = stack.allocate_bytes(8 << 20, stream)?;
    let _output = stack.allocate_bytes(1 << 20, stream)?;
    // … kernels that use both …
    // SAFETY: the block came from this stack with this size, once; its uses are on the stream.
    unsafe { stack.deallocate_bytes(scratch, 8 << 20, stream) };
    Ok(())
}
