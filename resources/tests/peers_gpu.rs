//! Tests two GPUs that use each other's memory. With one GPU the tests print that, and do nothing.
#![cfg(target_os = "linux")]

use std::time::Instant;

use libloading::Library;
use millpond_core::{DeviceId, DeviceMemoryResourceExt, DevicePtr, DriverHandle, StreamRef};
use millpond_resources::{CudaMemoryResource, PagesMode, Peers, PoolLayer, PoolMemoryResource};

const MIB: u64 = 1 << 20;
const LEGACY: StreamRef = StreamRef::LEGACY;

type Pool = PoolMemoryResource<CudaMemoryResource>;

/// Two devices that can use each other's memory; prints the reason if there are none.
fn two() -> Option<[DriverHandle; 2]> {
    if millpond_driver::cuda::device_count() < 2 {
        println!("skipped: there are not two GPUs");
        return None;
    }
    let two = [0, 1].map(|ordinal| millpond_driver::open(DeviceId::cuda(ordinal)).expect("a CUDA GPU"));
    let reach = |from: usize, to: usize| two[from].can_be_accessed_by(two[to].device()).unwrap();
    if !reach(0, 1) || !reach(1, 0) {
        println!("skipped: the two GPUs cannot use each other's memory");
        return None;
    }
    Some(two)
}

fn pool(driver: &DriverHandle, layer: PoolLayer) -> Pool {
    CudaMemoryResource::new(driver.clone()).layer(layer).unwrap()
}

/// CUDA as other libraries use it.
struct Cuda(Library);

impl Cuda {
    fn new() -> Self {
        // SAFETY: the driver is loaded already.
        Self(unsafe { Library::new("libcuda.so.1") }.unwrap())
    }

    fn primary_context(&self, device: i32) -> u64 {
        let mut context = 0;
        // SAFETY: the type is the function's, and `context` takes the result.
        unsafe {
            let retain =
                self.0.get::<unsafe extern "C" fn(*mut u64, i32) -> i32>("cuDevicePrimaryCtxRetain").unwrap();
            assert_eq!(retain(&raw mut context, device), 0);
        }
        context
    }

    /// `cuMemcpy` in the device's context.
    fn copy(&self, device: i32, dst: DevicePtr, src: DevicePtr, bytes: u64) -> i32 {
        let context = self.primary_context(device);
        // SAFETY: types are the functions'; both blocks have that many bytes.
        unsafe {
            let set = self.0.get::<unsafe extern "C" fn(u64) -> i32>("cuCtxSetCurrent").unwrap();
            assert_eq!(set(context), 0);
            let copy = self.0.get::<unsafe extern "C" fn(u64, u64, u64) -> i32>("cuMemcpy").unwrap();
            copy(dst.address(), src.address(), bytes)
        }
    }

    fn copy_peer(&self, dst: (DevicePtr, i32), src: (DevicePtr, i32), bytes: u64) -> i32 {
        let (to, from) = (self.primary_context(dst.1), self.primary_context(src.1));
        // SAFETY: the type is the function's; both blocks have that many bytes.
        unsafe {
            let copy =
                self.0.get::<unsafe extern "C" fn(u64, u64, u64, u64, u64) -> i32>("cuMemcpyPeer").unwrap();
            copy(dst.0.address(), to, src.0.address(), from, bytes)
        }
    }

    fn enable_peer_access(&self, device: i32, to: i32) {
        let (own, peer) = (self.primary_context(device), self.primary_context(to));
        // SAFETY: types are the functions', and both contexts are there.
        unsafe {
            let set = self.0.get::<unsafe extern "C" fn(u64) -> i32>("cuCtxSetCurrent").unwrap();
            assert_eq!(set(own), 0);
            let enable =
                self.0.get::<unsafe extern "C" fn(u64, u32) -> i32>("cuCtxEnablePeerAccess").unwrap();
            let answer = enable(peer, 0);
            assert!(answer == 0 || answer == 704, "{answer}"); // 704: it is enabled already
        }
    }
}

/// Fills on one device, whose memory the block may not be, and waits.
fn fill(driver: &DriverHandle, ptr: DevicePtr, bytes: u64) -> Result<(), i32> {
    // SAFETY: the block is handed out, and nothing else uses it.
    unsafe { driver.memset_d8_async(ptr, 7, bytes, LEGACY) }.map_err(|error| error.code())?;
    driver.synchronize().map_err(|error| error.code())
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn issue_9_each_gpu_uses_the_others_pool() {
    let Some([first, second]) = two() else { return };
    let (p, q) = (pool(&first, PoolLayer::new()), pool(&second, PoolLayer::new()));
    let cuda = Cuda::new();
    for bytes in [1000, 5 * MIB, 300 * MIB] {
        let a = p.allocate_bytes(bytes, LEGACY).unwrap();
        let b = q.allocate_bytes(bytes, LEGACY).unwrap();
        assert_eq!((fill(&second, a, bytes), fill(&first, b, bytes)), (Ok(()), Ok(())), "{bytes}");
        for device in [0, 1] {
            assert_eq!(cuda.copy(device, b, a, bytes), 0, "{bytes} bytes, in the context of {device}");
        }
        assert_eq!(cuda.copy_peer((b, 1), (a, 0), bytes), 0);
    }
    assert_eq!((p.peers(), q.peers()), (vec![second.device()], vec![first.device()]));
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn issue_9_a_gpu_without_access_is_refused_until_it_is_added() {
    let Some([first, second]) = two() else { return };
    let p = pool(&first, PoolLayer::new().peers(Peers::None));
    let q = pool(&second, PoolLayer::new().peers(Peers::None));
    let cuda = Cuda::new();
    cuda.enable_peer_access(1, 0);
    let (a, b) = (p.allocate_bytes(5 * MIB, LEGACY).unwrap(), q.allocate_bytes(5 * MIB, LEGACY).unwrap());
    assert_eq!(fill(&second, a, MIB), Err(1));
    assert_eq!(cuda.copy(1, b, a, MIB), 1);
    assert_eq!(cuda.copy_peer((b, 1), (a, 0), MIB), 0, "cuMemcpyPeer needs no access");
    p.add_peer(second.device()).unwrap();
    assert_eq!(fill(&second, a, MIB), Ok(()));
    assert_eq!(cuda.copy(1, b, a, MIB), 0);
    let later = p.allocate_bytes(400 * MIB, LEGACY).unwrap();
    assert_eq!(fill(&second, later, 400 * MIB), Ok(()));
    // Plain memory needs CUDA's own means only.
    let plain = pool(&first, PoolLayer::new().pages(PagesMode::Off));
    let a = plain.allocate_bytes(5 * MIB, LEGACY).unwrap();
    assert_eq!((fill(&second, a, MIB), cuda.copy(1, b, a, MIB)), (Ok(()), 0));
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn issue_9_the_cost_of_1_and_2_gpus() {
    let Some([first, _second]) = two() else { return };
    for round in 0..3 {
        for (peers, label) in [(Peers::None, "1 device"), (Peers::Auto, "2 devices")] {
            let pool = pool(&first, PoolLayer::new().peers(peers));
            pool.allocate_bytes(MIB, LEGACY).unwrap(); // the reservation
            let start = Instant::now();
            for _ in 0..2000 {
                pool.allocate_bytes(10 * MIB, LEGACY).unwrap();
            }
            let each = start.elapsed().as_nanos() / 2000;
            println!("round {round}, {label}: {each} ns for each new block of 10 MiB");
        }
    }
}
