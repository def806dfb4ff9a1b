//! Tests two GPUs that use each other's memory. With one GPU the tests say so, and do nothing.
#![cfg(target_os = "linux")]

use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use libloading::Library;
use millpond_core::driver::{AccessFlags, EventFlags, StreamFlags};
use millpond_core::{
    AnyResource, DeviceId, DeviceMemoryResourceExt, DevicePtr, Driver, DriverHandle, StreamRef,
};
use millpond_driver::cuda::{CudaDriver, Function};
use millpond_resources::{
    CudaAsyncMemoryResource, CudaAsyncOptions, CudaMemoryResource, PagesMode, Peers, PoolLayer,
    PoolMemoryResource,
};

const MIB: u64 = 1 << 20;
const LEGACY: StreamRef = StreamRef::LEGACY;

type Pool = PoolMemoryResource<CudaMemoryResource>;

/// Returns two devices that can use each other's memory. Prints the reason if there are none.
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
        // SAFETY: the type matches the function, and `context` takes the result.
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
        // SAFETY: the types match the functions; both blocks have that many bytes.
        unsafe {
            let set = self.0.get::<unsafe extern "C" fn(u64) -> i32>("cuCtxSetCurrent").unwrap();
            assert_eq!(set(context), 0);
            let copy = self.0.get::<unsafe extern "C" fn(u64, u64, u64) -> i32>("cuMemcpy").unwrap();
            copy(dst.address(), src.address(), bytes)
        }
    }

    fn copy_peer(&self, dst: (DevicePtr, i32), src: (DevicePtr, i32), bytes: u64) -> i32 {
        let (to, from) = (self.primary_context(dst.1), self.primary_context(src.1));
        // SAFETY: the type matches the function; both blocks have that many bytes.
        unsafe {
            let copy =
                self.0.get::<unsafe extern "C" fn(u64, u64, u64, u64, u64) -> i32>("cuMemcpyPeer").unwrap();
            copy(dst.0.address(), to, src.0.address(), from, bytes)
        }
    }

    fn enable_peer_access(&self, device: i32, to: i32) {
        let (own, peer) = (self.primary_context(device), self.primary_context(to));
        // SAFETY: the types match the functions, and both contexts exist.
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

/// Fills a block, which may be another device's memory, on one device, and waits.
fn fill(driver: &DriverHandle, ptr: DevicePtr, bytes: u64) -> Result<(), i32> {
    // SAFETY: the block is live, and nothing else uses it.
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
    // Plain memory needs only CUDA's functions.
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

/// A kernel that adds a number to each word of a block.
const ADD: &str = "
.version 6.0
.target sm_52
.address_size 64
.visible .entry add_to_words(
    .param .u64 block, .param .u32 words, .param .u32 value
)
{
    .reg .pred %outside;
    .reg .b32 %thread, %size, %lane, %words, %value, %word;
    .reg .b64 %block, %offset;
    ld.param.u64 %block, [block];
    ld.param.u32 %words, [words];
    ld.param.u32 %value, [value];
    mov.u32 %thread, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %lane, %tid.x;
    mad.lo.u32 %thread, %thread, %size, %lane;
    setp.ge.u32 %outside, %thread, %words;
    @%outside bra DONE;
    mul.wide.u32 %offset, %thread, 4;
    cvta.to.global.u64 %block, %block;
    add.s64 %block, %block, %offset;
    ld.global.u32 %word, [%block];
    add.u32 %word, %word, %value;
    st.global.u32 [%block], %word;
DONE:
    ret;
}
";

/// One of two GPUs, with a stream and the kernel.
struct Gpu {
    driver: Arc<CudaDriver>,
    stream: StreamRef,
    add: Function,
}

impl Gpu {
    fn new(ordinal: u32) -> Self {
        let driver = CudaDriver::open(ordinal).unwrap();
        let add = driver.load_ptx(ADD).unwrap().function("add_to_words").unwrap();
        Self { stream: driver.stream_create(StreamFlags::NON_BLOCKING).unwrap(), driver, add }
    }

    fn add(&self, block: DevicePtr, bytes: u64, mut value: u32) {
        let (mut address, mut words) = (block.address(), (bytes / 4) as u32);
        let mut args = [
            ptr::from_mut(&mut address).cast(),
            ptr::from_mut(&mut words).cast(),
            ptr::from_mut(&mut value).cast(),
        ];
        // SAFETY: one argument for each parameter, of its type; the block has that many words, and the
        // callers order its uses.
        unsafe { self.add.launch([words.div_ceil(256), 1, 1], [256, 1, 1], 0, self.stream, &mut args) }
            .unwrap();
    }

    /// Makes this GPU's later work wait for all work submitted to `other` so far.
    fn after(&self, other: &Self) {
        let event = other.driver.event_create(EventFlags::default()).unwrap();
        // SAFETY: both streams and the event are alive; a destroyed event ends when its work is done.
        unsafe {
            other.driver.event_record(event, other.stream).unwrap();
            self.driver.stream_wait_event(self.stream, event).unwrap();
            other.driver.event_destroy(event).unwrap();
        }
    }

    fn words(&self, block: DevicePtr, bytes: u64) -> Vec<u32> {
        let mut found = vec![0_u32; (bytes / 4) as usize];
        // SAFETY: the block has that many bytes, and the copy is done before the vector is read.
        unsafe { self.driver.memcpy_dtoh_async(found.as_mut_ptr().cast(), block, bytes, self.stream) }
            .unwrap();
        self.driver.stream_synchronize(self.stream).unwrap();
        found
    }
}

/// Returns the stacks that may supply a block for another GPU.
fn stacks(own: &Gpu, other: &Gpu) -> [AnyResource; 3] {
    let driver: DriverHandle = own.driver.clone();
    let pages = pool(&driver, PoolLayer::new());
    let regions = pool(&driver, PoolLayer::new().pages(PagesMode::Off));
    let cuda_async = CudaAsyncMemoryResource::new(driver, CudaAsyncOptions::default()).unwrap();
    cuda_async.pool().set_access(AccessFlags::ReadWrite, &[other.driver.device()]).unwrap();
    [pages.into_any(), regions.into_any(), cuda_async.into_any()]
}

/// Each block is written by its GPU, changed by a kernel of the other GPU, and handed out again.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn kernels_of_one_gpu_change_blocks_of_the_other() {
    if two().is_none() {
        return;
    }
    let cuda = Cuda::new();
    let gpus = [Gpu::new(0), Gpu::new(1)];
    for (own, other) in [(&gpus[0], &gpus[1]), (&gpus[1], &gpus[0])] {
        let ordinal = |gpu: &Gpu| gpu.driver.device().ordinal() as i32;
        cuda.enable_peer_access(ordinal(other), ordinal(own)); // for regions, which are plain memory
        for resource in stacks(own, other) {
            for round in 0..50_u32 {
                let bytes = [4096, 5 * MIB, 64 * MIB][round as usize % 3];
                let block = resource.allocate_bytes(bytes, own.stream).unwrap();
                // SAFETY: the block is ours.
                unsafe { own.driver.memset_d8_async(block, 1, bytes, own.stream) }.unwrap();
                other.after(own);
                other.add(block, bytes, round);
                own.after(other);
                own.add(block, bytes, 1);
                let expected = 0x0101_0101 + round + 1;
                let found = own.words(block, bytes);
                assert!(found.iter().all(|word| *word == expected), "`{resource}`, round {round}");
                // SAFETY: all its uses are before this in the stream.
                unsafe { resource.deallocate_bytes(block, bytes, own.stream) };
            }
        }
    }
}
