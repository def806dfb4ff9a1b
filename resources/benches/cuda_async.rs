//! Measures the extra time of `cuda_async` over a pair of `cuMemAllocFromPoolAsync` and `cuMemFreeAsync`.
//!
//! Needs a GPU.
//!
//! ```sh
//! cargo bench -p millpond-resources --bench cuda_async
//! ```
//!
//! Each round times the plain calls, the same calls through the driver's trait, and the resource, each on a
//! separate pool. A driver's pool changes its speed within a process, so only times of one round are
//! compared. A row shows medians over the rounds in nanoseconds: the plain pair, and the extra time of the
//! other two.

use std::time::Instant;

use millpond_core::driver::{MemPoolAttribute, MemPoolProps, StreamFlags};
use millpond_core::{DeviceMemoryResource, DriverHandle, Layout, Result};
use millpond_driver::cuda::{self, CudaDriver};
use millpond_resources::{CudaAsyncMemoryResource, CudaAsyncOptions};

const ROUNDS: usize = 41;
const PAIRS: u32 = 20_000;

type AllocFromPool = unsafe extern "C" fn(*mut u64, usize, u64, u64) -> i32;
type FreeAsync = unsafe extern "C" fn(u64, u64) -> i32;
type RetainContext = unsafe extern "C" fn(*mut u64, i32) -> i32;
type SetContext = unsafe extern "C" fn(u64) -> i32;

fn main() {
    // `cargo test` runs benchmarks with other arguments.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    if let Err(error) = cuda::availability() {
        println!("this benchmark needs a GPU: {error}");
        return;
    }
    if let Err(error) = measure() {
        println!("{error}");
        std::process::exit(1);
    }
}

fn measure() -> Result<()> {
    // SAFETY: the driver was opened before, so that the library is loaded and stays so.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.expect("the driver is there");
    // SAFETY: CUDA's header has the same types.
    let (alloc, free, retain, set) = unsafe {
        (
            *library.get::<AllocFromPool>(b"cuMemAllocFromPoolAsync").expect("a function of CUDA 11.2"),
            *library.get::<FreeAsync>(b"cuMemFreeAsync").expect("a function of CUDA 11.2"),
            *library.get::<RetainContext>(b"cuDevicePrimaryCtxRetain").expect("a function of CUDA 7"),
            *library.get::<SetContext>(b"cuCtxSetCurrent").expect("a function of CUDA 4"),
        )
    };
    let driver: DriverHandle = CudaDriver::open(0)?;
    // As in any program that uses CUDA's runtime, the context is current.
    let mut context = 0;
    // SAFETY: the device is there, and the context is never released.
    assert_eq!(unsafe { retain(&raw mut context, 0).max(set(context)) }, 0);
    let stream = driver.stream_create(StreamFlags::NON_BLOCKING)?;
    let keep = |pool| driver.mem_pool_set_attribute(pool, MemPoolAttribute::ReleaseThreshold, u64::MAX);
    let pools =
        [driver.mem_pool_create(MemPoolProps::default())?, driver.mem_pool_create(MemPoolProps::default())?];
    for pool in pools {
        keep(pool)?;
    }
    let resource = CudaAsyncMemoryResource::new(driver.clone(), CudaAsyncOptions::default())?;
    println!("{:>10} {:>10} {:>10} {:>10}", "bytes", "plain", "trait", "resource");
    for bytes in [1 << 10, 64 << 10, 1 << 20, 64 << 20_u64] {
        let layout = Layout::new(bytes);
        let plain = || {
            let mut ptr = 0;
            // SAFETY: the pool and the stream are alive, and the block is freed once.
            let codes = unsafe {
                (alloc(&raw mut ptr, bytes as usize, pools[0].0, stream.handle()), free(ptr, stream.handle()))
            };
            assert_eq!(codes, (0, 0));
        };
        let through_trait = || {
            let ptr = driver.mem_alloc_from_pool_async(bytes, pools[1], stream).expect("there is room");
            // SAFETY: the block is freed once.
            unsafe { driver.mem_free_async(ptr, stream) }.expect("the block is the pool's");
        };
        let through_resource = || {
            let ptr = resource.allocate(layout, stream).expect("there is room");
            // SAFETY: the block is given back once.
            unsafe { resource.deallocate(ptr, layout, stream) };
        };
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let [first, second, third] = [timed(plain), timed(through_trait), timed(through_resource)];
            times[0].push(first);
            times[1].push(second - first);
            times[2].push(third - first);
            driver.stream_synchronize(stream)?;
        }
        let [plain, by_trait, by_resource] = times.map(median);
        println!("{bytes:>10} {plain:>10.1} {by_trait:>+10.1} {by_resource:>+10.1}");
    }
    // SAFETY: nothing uses the pools and the stream any more.
    unsafe {
        driver.mem_pool_destroy(pools[0])?;
        driver.mem_pool_destroy(pools[1])?;
        driver.stream_destroy(stream)?;
    }
    Ok(())
}

/// Nanoseconds for one pair.
fn timed(pair: impl Fn()) -> f64 {
    let start = Instant::now();
    for _ in 0..PAIRS {
        pair();
    }
    start.elapsed().as_nanos() as f64 / f64::from(PAIRS)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
