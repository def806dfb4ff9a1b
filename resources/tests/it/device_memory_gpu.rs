//! Tests on a GPU how pools, processes and plain allocations share its free memory.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use millpond_core::driver::MemPoolAttribute;
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, StreamRef};
use millpond_driver::{CallKind, CountingDriver, DeviceSpec};
use millpond_resources::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource};

const MIB: u64 = 1 << 20;
const S: StreamRef = StreamRef::LEGACY;
const ROUNDS: usize = 20;

type Pool = PoolMemoryResource<CudaMemoryResource>;

fn gpu() -> DriverHandle {
    DeviceSpec::Cuda(0).open().expect("a GPU")
}

fn pool_over(driver: DriverHandle, pages: PagesMode) -> Pool {
    CudaMemoryResource::new(driver).layer(PoolLayer::new().pages(pages)).expect("a pool")
}

fn free(driver: &DriverHandle) -> u64 {
    driver.mem_get_info().expect("the device is well").free
}

fn give(pool: &Pool, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the block came from the pool with this size and is freed once; nothing uses it.
    unsafe { pool.deallocate_bytes(ptr, bytes, S) };
}

#[test]
#[ignore = "needs a CUDA GPU; takes most of its memory"]
fn of_two_pools_one_is_served() {
    let driver = gpu();
    for pages in [PagesMode::On, PagesMode::Off] {
        let bytes = free(&driver) / 10 * 6 / MIB * MIB;
        let pools = [(); 2].map(|()| pool_over(driver.clone(), pages));
        let barrier = Barrier::new(2);
        let served: Vec<AtomicU64> = (0..ROUNDS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for pool in &pools {
                let (barrier, served) = (&barrier, &served);
                scope.spawn(move || {
                    for served in served {
                        barrier.wait();
                        let answer = pool.allocate_bytes(bytes, S);
                        served.fetch_add(u64::from(answer.is_ok()), Ordering::Relaxed);
                        barrier.wait();
                        if let Ok(ptr) = answer {
                            give(pool, ptr, bytes);
                        }
                        pool.trim(0).expect("free memory can be returned");
                    }
                });
            }
        });
        let served: Vec<u64> = served.iter().map(|served| served.load(Ordering::Relaxed)).collect();
        assert_eq!(served, vec![1; ROUNDS], "{pages}, {} MiB each", bytes / MIB);
    }
}

/// The other process: allocates and frees as its input says, and prints the results.
#[test]
#[ignore = "needs a CUDA GPU; started by the test of two processes"]
fn the_other_process() {
    let Ok(bytes) = std::env::var("MILLPOND_TEST_BYTES") else { return };
    let bytes: u64 = bytes.parse().expect("a number");
    let pool = pool_over(gpu(), PagesMode::On);
    let mut held = None;
    println!("ready");
    for line in std::io::stdin().lines() {
        match line.expect("the other process tells").as_str() {
            "ask" => {
                held = pool.allocate_bytes(bytes, S).ok();
                println!("served {}", u64::from(held.is_some()));
            }
            _ => {
                if let Some(ptr) = held.take() {
                    give(&pool, ptr, bytes);
                }
                pool.trim(0).expect("free memory can be returned");
                println!("given");
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU; takes most of its memory"]
fn of_two_processes_one_is_served() {
    let driver = gpu();
    let bytes = free(&driver) / 10 * 6 / MIB * MIB;
    let pool = pool_over(driver, PagesMode::On);
    let mut other = Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "device_memory_gpu::the_other_process", "--nocapture"])
        .env("MILLPOND_TEST_BYTES", bytes.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut tell = other.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(other.stdout.take().expect("a pipe")).lines();
    let mut hear = |what: &str| loop {
        let line = lines.next().expect("it goes on").expect("text");
        if let Some(start) = line.find(what) {
            return line[start + what.len()..].trim().to_owned();
        }
    };
    hear("ready");
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        writeln!(tell, "ask").expect("it listens");
        let answer = pool.allocate_bytes(bytes, S);
        let others: u64 = hear("served").parse().expect("a number");
        all.push(others + u64::from(answer.is_ok()));
        if let Ok(ptr) = answer {
            give(&pool, ptr, bytes);
        }
        pool.trim(0).expect("free memory can be returned");
        writeln!(tell, "give").expect("it listens");
        hear("given");
    }
    drop(tell);
    other.wait().expect("it ends");
    assert_eq!(all, vec![1; ROUNDS], "{} MiB each", bytes / MIB);
}

#[test]
#[ignore = "needs a CUDA GPU; takes most of its memory"]
fn hopeless_requests_disturb_no_plain_allocation() {
    let driver = gpu();
    let all = free(&driver);
    let held = driver.mem_alloc(all / 4 * 3 / MIB * MIB).expect("it is free");
    let counter = CountingDriver::new(driver.clone());
    let kinds = [CallKind::MemCreate, CallKind::MemAlloc, CallKind::Synchronize, CallKind::MemMap];
    let calls = || kinds.map(|kind| counter.counts().get(kind).calls);
    for pages in [PagesMode::On, PagesMode::Off] {
        let pool = pool_over(counter.clone(), pages);
        let before = calls();
        let (is_over, wanted) = (AtomicBool::new(false), all / 2);
        std::thread::scope(|scope| {
            let hog = scope.spawn(|| {
                let (start, mut tries) = (Instant::now(), 0_u32);
                while !is_over.load(Ordering::Relaxed) {
                    pool.allocate_bytes(wanted, S).expect_err("there is not that much");
                    tries += 1;
                }
                (tries, start.elapsed() / tries.max(1))
            });
            let (mut refused, start) = (0, Instant::now());
            while start.elapsed().as_secs() < 3 {
                match driver.mem_alloc(64 * MIB) {
                    // SAFETY: nothing uses the block.
                    Ok(ptr) => unsafe { driver.mem_free(ptr).expect("it was allocated") },
                    Err(_) => refused += 1,
                }
            }
            is_over.store(true, Ordering::Relaxed);
            let (tries, each) = hog.join().expect("it was refused each time");
            println!("pages={pages}: {tries} hopeless requests, {each:?} each; {refused} plain ones refused");
            assert_eq!(refused, 0);
        });
        assert_eq!(calls(), before, "{kinds:?}");
    }
    // SAFETY: nothing uses the block.
    unsafe { driver.mem_free(held).expect("it was allocated") };
}

#[test]
#[ignore = "needs a CUDA GPU; takes most of its memory"]
fn what_the_drivers_pool_keeps_is_free() {
    let driver = gpu();
    let all = free(&driver);
    let drivers_pool = driver.device_get_default_mem_pool().expect("there is one");
    let threshold = MemPoolAttribute::ReleaseThreshold;
    driver.mem_pool_set_attribute(drivers_pool, threshold, u64::MAX).expect("it can be set");
    let kept = driver.mem_alloc_async(all / 5 * 4, S).expect("it is free");
    // SAFETY: nothing uses the block.
    unsafe { driver.mem_free_async(kept, S).expect("it was allocated") };
    driver.synchronize().expect("the device is well");
    assert!(free(&driver) < all / 3, "the pool keeps it");
    for pages in [PagesMode::On, PagesMode::Off] {
        let pool = pool_over(driver.clone(), pages);
        let ptr = pool.allocate_bytes(all / 2, S).expect("the driver gives it back");
        give(&pool, ptr, all / 2);
    }
    driver.mem_pool_set_attribute(drivers_pool, threshold, 0).expect("it can be set");
}
