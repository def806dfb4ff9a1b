//! Tests blocks for other processes through file descriptors: within one process on the simulated device, and
//! between two on a GPU.
#![cfg(unix)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;

use millpond_core::{DeviceId, DeviceMemoryResourceExt, DevicePtr, DriverHandle, ErrorKind, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::share::ImportedBlock;
use millpond_resources::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource, Share};

const MIB: u64 = 1 << 20;
const LEGACY: StreamRef = StreamRef::LEGACY;

type Pool = PoolMemoryResource<CudaMemoryResource>;

fn pool(driver: &DriverHandle) -> Pool {
    CudaMemoryResource::new(driver.clone()).layer(PoolLayer::new().share(Share::Fd)).unwrap()
}

fn sim() -> (Arc<SimDevice>, DriverHandle) {
    let device = SimDevice::new(SimConfig::with_capacity(4 << 30));
    (device.clone(), device)
}

/// Returns bytes that identify their positions.
fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251 + at / 65536) as u8).collect()
}

fn write(driver: &DriverHandle, ptr: DevicePtr, bytes: &[u8]) {
    // SAFETY: the block has that many bytes, and the copy is waited for.
    unsafe { driver.memcpy_htod_async(ptr, bytes.as_ptr(), bytes.len() as u64, LEGACY) }.unwrap();
    driver.synchronize().unwrap();
}

fn read(driver: &DriverHandle, ptr: DevicePtr, bytes: u64) -> Vec<u8> {
    let mut read = vec![0; bytes as usize];
    // SAFETY: the block has that many bytes, and the copy is waited for.
    unsafe { driver.memcpy_dtoh_async(read.as_mut_ptr(), ptr, bytes, LEGACY) }.unwrap();
    driver.synchronize().unwrap();
    read
}

/// Returns small blocks, blocks that cross handle borders in the heap, and blocks in views.
fn blocks(pool: &Pool) -> Vec<(DevicePtr, u64)> {
    let take = |bytes| (pool.allocate_bytes(bytes, LEGACY).unwrap(), bytes);
    let mut kept: Vec<_> = [300, 70_000, 3 * MIB, 5 * MIB + 512, 9 * MIB].into_iter().map(take).collect();
    let mut holes = Vec::new();
    for round in 0..24 {
        let block = take(3 * MIB + round * 4096);
        if round % 2 == 0 { holes.push(block) } else { kept.push(block) }
    }
    for (ptr, bytes) in holes {
        // SAFETY: the block came from this pool with this size, and nothing uses it.
        unsafe { pool.deallocate_bytes(ptr, bytes, LEGACY) };
    }
    kept.extend([7 * MIB, 20 * MIB, 11 * MIB].into_iter().map(take));
    kept
}

#[test]
fn issue_9_a_block_is_the_same_memory_where_it_is_imported() {
    let (device, driver) = sim();
    let pool = pool(&driver);
    let mut several = 0;
    for (ptr, bytes) in blocks(&pool) {
        let exported = pool.export_block(ptr, bytes).unwrap();
        assert_eq!(exported.bytes(), bytes);
        assert_eq!(exported.parts().len(), exported.descriptors().len());
        several += usize::from(exported.parts().len() > 1);
        let (description, descriptors) = exported.into_parts();
        let imported = ImportedBlock::open(&driver, &description, descriptors).unwrap();
        assert!(imported.bytes() == bytes && imported.device_pointer() != ptr);
        write(&driver, ptr, &pattern(bytes));
        assert_eq!(read(&driver, imported.device_pointer(), bytes), pattern(bytes), "{bytes}");
        let end = DevicePtr::new(imported.device_pointer().address() + bytes - 256);
        write(&driver, end, &[9; 256]);
        assert_eq!(read(&driver, ptr, bytes)[bytes as usize - 256..], [9; 256]);
    }
    assert!(several >= 3, "{several} blocks lay in several handles");
    pool.validate();
    drop(pool);
    assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0));
    assert_eq!(device.violations(), []);
}

#[test]
fn issue_9_imported_memory_outlives_the_pool_and_the_context() {
    let (device, driver) = sim();
    let pool = pool(&driver);
    let ptr = pool.allocate_bytes(5 * MIB, LEGACY).unwrap();
    write(&driver, ptr, &pattern(5 * MIB));
    let (description, descriptors) = pool.export_block(ptr, 5 * MIB).unwrap().into_parts();
    let imported = ImportedBlock::open(&driver, &description, descriptors).unwrap();
    drop(pool);
    assert_eq!(read(&driver, imported.device_pointer(), 5 * MIB), pattern(5 * MIB));
    device.reset_context();
    let now: DriverHandle = device.open_again();
    assert_eq!(read(&now, imported.device_pointer(), 5 * MIB), pattern(5 * MIB));
    drop(imported);
    assert_eq!((device.live_allocations(), device.live_bytes()), (0, 0));
    assert_eq!(device.violations(), []);
}

#[test]
fn issue_9_what_cannot_be_exported_is_refused_with_what_to_do() {
    let (_device, driver) = sim();
    let cuda = || CudaMemoryResource::new(driver.clone());
    let private = cuda().layer(PoolLayer::new()).unwrap();
    let ptr = private.allocate_bytes(MIB, LEGACY).unwrap();
    let error = private.export_block(ptr, MIB).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("share=fd"), "{error}");

    let error = cuda().layer(PoolLayer::new().share(Share::Fd).pages(PagesMode::Off)).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("pages=off"), "{error}");

    let pool = pool(&driver);
    assert_eq!(pool.to_string(), "cuda+pool:share=fd");
    let ptr = pool.allocate_bytes(MIB, LEGACY).unwrap();
    for (ptr, bytes) in
        [(ptr, MIB - 1), (ptr, 0), (DevicePtr::new(ptr.address() + 256), MIB), (DevicePtr::NULL, 0)]
    {
        assert_eq!(pool.export_block(ptr, bytes).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    // SAFETY: the block came from this pool with this size, and nothing uses it.
    unsafe { pool.deallocate_bytes(ptr, MIB, LEGACY) };
    assert!(pool.export_block(ptr, MIB).is_err(), "it was given back");
}

#[test]
fn issue_9_a_wrong_description_maps_nothing() {
    let (device, driver) = sim();
    let pool = pool(&driver);
    let (ptr, bytes) = blocks(&pool).pop().unwrap();
    let live = device.live_allocations();
    let export = || pool.export_block(ptr, bytes).unwrap().into_parts();
    let (good, _) = export();
    let mut wrong: Vec<Vec<u8>> = (0..good.len()).map(|length| good[..length].to_vec()).collect();
    wrong.push([&good[..], &good[8..32]].concat());
    for at in 0..good.len() {
        let mut changed = good.clone();
        changed[at] ^= 0x81;
        wrong.push(changed);
    }
    for description in wrong {
        let (_, descriptors) = export();
        match ImportedBlock::open(&driver, &description, descriptors) {
            // The last part may be shorter: then the block has the same memory, but less of it.
            Ok(block) => assert!(block.bytes() != bytes),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert_eq!(device.live_allocations(), live, "nothing is left over");
    }
    let (_, mut few) = export();
    few.pop();
    assert!(ImportedBlock::open(&driver, &good, few).is_err());
    assert_eq!(device.violations(), []);
}

const DESCRIPTION: &str = "MILLPOND_TEST_SHARED_BLOCK";
const DESCRIPTORS: &str = "MILLPOND_TEST_SHARED_FDS";
const BYTES: u64 = 50 * MIB + 4096;

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn issue_9_a_block_is_shared_with_another_process() {
    let driver = millpond_driver::open(DeviceId::cuda(0)).expect("a CUDA GPU");
    let pool = pool(&driver);
    let all = blocks(&pool);
    let ptr = pool.allocate_bytes(BYTES, LEGACY).unwrap();
    write(&driver, ptr, &pattern(BYTES));
    let (description, descriptors) = pool.export_block(ptr, BYTES).unwrap().into_parts();
    println!("{} handles, {} other blocks", descriptors.len(), all.len());
    let hex: String = description.iter().map(|byte| format!("{byte:02x}")).collect();
    // The child inherits descriptors that do not close when it starts.
    let inherited: Vec<OwnedFd> = descriptors
        .into_iter()
        .map(|fd| {
            // SAFETY: `dup` makes a new descriptor for this test, which the child inherits.
            let copy = unsafe { libc::dup(fd.as_raw_fd()) };
            assert!(copy >= 0);
            // SAFETY: as above.
            unsafe { OwnedFd::from_raw_fd(copy) }
        })
        .collect();
    let numbers: Vec<String> = inherited.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "share::share_child", "--nocapture"])
        .env(DESCRIPTION, hex)
        .env(DESCRIPTORS, numbers.join("/"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(read(&driver, ptr, BYTES), vec![0xA5; BYTES as usize], "the child's bytes");
}

/// The other process of the test above, which starts it. It does nothing when run alone.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn share_child() {
    let (Ok(hex), Ok(numbers)) = (std::env::var(DESCRIPTION), std::env::var(DESCRIPTORS)) else { return };
    let digit = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    let description: Vec<u8> = (0..hex.len() / 2).map(digit).collect();
    let descriptors = numbers.split('/').map(|number| {
        // SAFETY: the parent made the descriptor for this process to inherit.
        unsafe { OwnedFd::from_raw_fd(number.parse().unwrap()) }
    });
    let driver = millpond_driver::open(DeviceId::cuda(0)).expect("a CUDA GPU");
    let free = driver.mem_get_info().unwrap().free;
    let block = ImportedBlock::open(&driver, &description, descriptors.collect()).unwrap();
    assert_eq!(block.bytes(), BYTES);
    assert!(free - driver.mem_get_info().unwrap().free < 40 * MIB, "the memory is there already");
    assert_eq!(read(&driver, block.device_pointer(), BYTES), pattern(BYTES));
    // SAFETY: the parent keeps the block and does not touch it until this process is done.
    unsafe { driver.memset_d8_async(block.device_pointer(), 0xA5, BYTES, LEGACY) }.unwrap();
    driver.synchronize().unwrap();
    drop(block);
}

#[test]
fn issue_9_descriptors_are_closed_with_the_block() {
    let (_device, driver) = sim();
    let pool = pool(&driver);
    let ptr = pool.allocate_bytes(MIB, LEGACY).unwrap();
    let open = || std::fs::read_dir("/dev/fd").map_or(0, Iterator::count);
    let before = open();
    let exported = pool.export_block(ptr, MIB).unwrap();
    drop(exported);
    for _ in 0..100 {
        let (description, descriptors) = pool.export_block(ptr, MIB).unwrap().into_parts();
        drop(ImportedBlock::open(&driver, &description, descriptors).unwrap());
    }
    assert!(open() <= before + 20, "{} descriptors are open, {before} were", open());
}
