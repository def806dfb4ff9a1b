//! Runs kernels of cubecl on memory of a millpond stack. It needs a GPU, and cubecl-cuda with
//! `upstream.patch`: `../patched.sh` builds it.
//!
//! The stack's text is the first argument; without one, it is `cuda+pool`. With `copies` as the second
//! argument, no kernel runs: this also works on the simulated device of millpond-shim.

use std::error::Error;

use cubecl_core as cubecl;
use cubecl_core::prelude::*;
use cubecl_core::server::{IoError, ServerError};
use cubecl_cuda::{CudaRuntime, DeviceMemory, set_device_memory};
use cubecl_environment::future::block_on;
use cubecl_server::runtime::Runtime;
use millpond::adaptors::{AllocationCounters, StatisticsLayer};
use millpond::driver::DeviceSpec;
use millpond::stack::StackSpec;
use millpond::{AnyResource, DeviceMemoryResourceExt, find_trait};
use millpond_cubecl::MillpondStorage;

#[cube(launch)]
fn twice(values: &mut [f32]) {
    if ABSOLUTE_POS < values.len() {
        values[ABSOLUTE_POS] *= 2.0;
    }
}

/// The number of values in each buffer: 4 MiB.
const VALUES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let text = arguments.next().unwrap_or_else(|| "cuda+pool".to_owned());
    let has_kernels = arguments.next().as_deref() != Some("copies");

    let device = "cuda:0".parse::<DeviceSpec>()?.open()?;
    let stack: AnyResource = text.parse::<StackSpec>()?.build(&millpond::layers(), &device)?;
    let stack = stack.layer(StatisticsLayer::new())?.into_any();

    let resource = stack.clone();
    let is_set = set_device_memory(move |request| {
        let driver = resource.driver();
        // SAFETY: cubecl made the stream, destroys it never, and keeps the order that the storage needs.
        let storage = unsafe {
            driver
                .stream_ref(request.stream as u64)
                .map_err(millpond::Error::from)
                .and_then(|stream| MillpondStorage::new(resource.clone(), stream, request.alignment as u64))
        };
        let storage = storage.map_err(|error| {
            let backtrace = cubecl_environment::backtrace::BackTrace::capture();
            ServerError::from(IoError::Unknown { description: error.to_string(), backtrace })
        })?;
        Ok(Box::new(storage) as DeviceMemory)
    });
    assert!(is_set, "another part of the program has chosen");

    // Each thread has a stream of cubecl's own, and all streams share the stack.
    let threads = (0..4_u16).map(|thread| std::thread::spawn(move || work(thread, has_kernels)));
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        thread.join().map_err(|_| "a thread failed")?;
    }

    let counters = find_trait::<dyn AllocationCounters>(&*stack).expect("a layer counts").counters();
    println!(
        "{stack}: {} pages, {} bytes at most, {} now",
        counters.allocations.total, counters.bytes.peak, counters.bytes.current
    );
    assert!(counters.bytes.peak >= (VALUES * 4) as i64, "cubecl took its memory elsewhere");
    assert_eq!(counters.bytes.current, 0, "memory is left");
    println!("OK");
    Ok(())
}

/// Fills buffers, doubles their values on the device, and reads them.
fn work(thread: u16, has_kernels: bool) {
    let client = CudaRuntime::client(&Default::default());
    for round in 0..20_u16 {
        let values: Vec<f32> =
            (0..VALUES).map(|at| (at % 1000) as f32 + f32::from(round * 4 + thread)).collect();
        let buffer = client.create_from_slice(f32::as_bytes(&values));
        let factor = if has_kernels {
            let count = CubeCount::Static((VALUES / 256) as u32, 1, 1);
            // SAFETY: the buffer holds that many values.
            let argument = unsafe { BufferArg::from_raw_parts(buffer.clone(), VALUES) };
            twice::launch(&client, count, CubeDim::new_1d(256), argument);
            2.0
        } else {
            1.0
        };
        let read = client.read_one(buffer).expect("the buffer is readable");
        let read = f32::from_bytes(&read);
        assert!(read.iter().zip(&values).all(|(read, value)| *read == value * factor), "thread {thread}");
        if round % 5 == 4 {
            client.memory_cleanup().expect("memory can be cleaned");
        }
    }
    block_on(client.sync()).expect("the device works");
    client.memory_cleanup().expect("memory can be cleaned");
    block_on(client.sync()).expect("the device works");
}
