//! Tests that another process reads and writes a thousand blocks, and a thousand pointers of a driver's pool.
#![cfg(target_os = "linux")]

use std::fmt::Write as _;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use millpond_core::driver::{HandleTypes, MemPoolPtrData};
use millpond_core::{DeviceId, DeviceMemoryResourceExt, DevicePtr, DriverHandle, StreamRef};
use millpond_resources::memory_pool::{MemoryPool, MemoryPoolOptions, handshake};
use millpond_resources::share::ImportedBlock;
use millpond_resources::{CudaAsyncViewMemoryResource, CudaMemoryResource, PoolLayer, Share};

const LEGACY: StreamRef = StreamRef::LEGACY;
const COUNT: usize = 1000;
/// The file with one line for each block, which the other process reads.
const LIST: &str = "MILLPOND_TEST_LIST";

fn open() -> DriverHandle {
    millpond_driver::open(DeviceId::cuda(0)).expect("a CUDA GPU")
}

/// From 1 KiB to 1.5 MiB, in no order.
fn bytes_of(index: usize) -> u64 {
    (1 + (index as u64 * 7919) % 1500) << 10
}

fn value_of(index: usize, is_of_child: bool) -> u8 {
    (index % 127) as u8 + if is_of_child { 128 } else { 0 }
}

fn fill(driver: &DriverHandle, ptr: DevicePtr, index: usize, is_of_child: bool) {
    // SAFETY: every caller's block is live and has that many bytes.
    unsafe { driver.memset_d8_async(ptr, value_of(index, is_of_child), bytes_of(index), LEGACY) }.unwrap();
}

fn check(driver: &DriverHandle, ptr: DevicePtr, index: usize, is_of_child: bool) {
    let mut found = vec![0; bytes_of(index) as usize];
    // SAFETY: every caller's block is live and has that many bytes, and the copy is waited for.
    unsafe { driver.memcpy_dtoh_async(found.as_mut_ptr(), ptr, bytes_of(index), LEGACY) }.unwrap();
    driver.stream_synchronize(LEGACY).unwrap();
    let expected = value_of(index, is_of_child);
    assert!(found.iter().all(|byte| *byte == expected), "block {index}");
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn bytes_from(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// Runs this test as another process, which gets the list of blocks.
fn other_process(test: &str, list: &Path) -> Command {
    let mut other = Command::new(std::env::current_exe().unwrap());
    other
        .args(["--ignored", "--exact", &format!("two_processes_gpu::{test}"), "--nocapture"])
        .env(LIST, list);
    other
}

/// Each of a thousand blocks needs a descriptor, in both processes.
fn allow_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure takes the limit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the structure holds the limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_thousand_blocks_of_a_pool() {
    let driver = open();
    allow_descriptors();
    if let Some(list) = std::env::var_os(LIST) {
        let blocks: Vec<ImportedBlock> = std::fs::read_to_string(list)
            .unwrap()
            .lines()
            .map(|line| {
                let (description, descriptors) = line.split_once(' ').unwrap();
                let descriptors = descriptors.split('/').map(|number| {
                    // SAFETY: the parent made the descriptor for this process to inherit.
                    unsafe { OwnedFd::from_raw_fd(number.parse().unwrap()) }
                });
                ImportedBlock::open(&driver, &bytes_from(description), descriptors.collect()).unwrap()
            })
            .collect();
        assert_eq!(blocks.len(), COUNT);
        for (index, block) in blocks.iter().enumerate() {
            assert_eq!(block.bytes(), bytes_of(index));
            check(&driver, block.device_pointer(), index, false);
            fill(&driver, block.device_pointer(), index, true);
        }
        return driver.synchronize().unwrap();
    }
    let pool = CudaMemoryResource::new(driver.clone()).layer(PoolLayer::new().share(Share::Fd)).unwrap();
    let (mut list, mut inherited) = (String::new(), Vec::new());
    let blocks: Vec<DevicePtr> = (0..COUNT)
        .map(|index| {
            let ptr = pool.allocate_bytes(bytes_of(index), LEGACY).unwrap();
            fill(&driver, ptr, index, false);
            let (description, descriptors) = pool.export_block(ptr, bytes_of(index)).unwrap().into_parts();
            let copies = descriptors.iter().map(|fd| {
                // SAFETY: `dup` makes a new descriptor for this test, which the child inherits.
                let copy = unsafe { libc::dup(fd.as_raw_fd()) };
                assert!(copy >= 0, "{}", std::io::Error::last_os_error());
                // SAFETY: as above.
                inherited.push(unsafe { OwnedFd::from_raw_fd(copy) });
                copy.to_string()
            });
            let numbers = copies.collect::<Vec<_>>().join("/");
            writeln!(list, "{} {numbers}", hex_of(&description)).unwrap();
            ptr
        })
        .collect();
    driver.synchronize().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, list).unwrap();
    let output = other_process("a_thousand_blocks_of_a_pool", file.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    for (index, ptr) in blocks.into_iter().enumerate() {
        check(&driver, ptr, index, true);
        // SAFETY: the block came from this pool with this size, and nothing uses it.
        unsafe { pool.deallocate_bytes(ptr, bytes_of(index), LEGACY) };
    }
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_thousand_pointers_of_a_pool_of_the_driver() {
    let driver = open();
    if let Some(list) = std::env::var_os(LIST) {
        // SAFETY: this process frees the blocks, and completes the frees, before it ends.
        let pool = unsafe { MemoryPool::import_fd(driver.clone(), std::io::stdin().as_fd()) }.unwrap();
        let list = std::fs::read_to_string(list).unwrap();
        let blocks = list.lines().map(|line| {
            let data = MemPoolPtrData(bytes_from(line).try_into().unwrap());
            pool.import_pointer(&data).unwrap()
        });
        let blocks: Vec<_> = blocks.collect();
        assert_eq!(blocks.len(), COUNT);
        for (index, block) in blocks.into_iter().enumerate() {
            check(&driver, block.device_pointer(), index, false);
            fill(&driver, block.device_pointer(), index, true);
            block.free_on(LEGACY).unwrap();
        }
        return driver.synchronize().unwrap();
    }
    let options = MemoryPoolOptions::new().handles(HandleTypes::POSIX_FD);
    let pool = MemoryPool::new(driver.clone(), options).unwrap();
    let resource = CudaAsyncViewMemoryResource::new(pool.clone()).unwrap();
    let mut list = String::new();
    let blocks: Vec<DevicePtr> = (0..COUNT)
        .map(|index| {
            let ptr = resource.allocate_bytes(bytes_of(index), LEGACY).unwrap();
            fill(&driver, ptr, index, false);
            writeln!(list, "{}", hex_of(&pool.export_pointer(ptr).unwrap().0)).unwrap();
            ptr
        })
        .collect();
    driver.synchronize().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, list).unwrap();
    let (importers, token) = handshake().unwrap();
    let mut other = other_process("a_thousand_pointers_of_a_pool_of_the_driver", file.path())
        .stdin(Stdio::from(pool.export_fd().unwrap()))
        .stdout(Stdio::from(OwnedFd::from(token)))
        .spawn()
        .unwrap();
    importers.wait().unwrap();
    assert!(other.wait().unwrap().success());
    for (index, ptr) in blocks.into_iter().enumerate() {
        check(&driver, ptr, index, true);
        // SAFETY: the block came from this resource with this size, and nothing uses it.
        unsafe { resource.deallocate_bytes(ptr, bytes_of(index), LEGACY) };
    }
}
