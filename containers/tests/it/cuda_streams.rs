//! Tests the order of streams on a GPU. A kernel that the test holds blocks one stream, so nothing depends on
//! speed: work that waits for it cannot finish, and a host that waits for it comes back only after the kernel
//! has given up.
#![cfg(feature = "cudarc")]

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaStream, LaunchConfig, PinnedHostSlice, PushKernelArg, sys,
};
use cudarc::nvrtc::Ptx;
use millpond_containers::{CudaBuffer, DeviceVec, use_pool_in_cudarc};
use millpond_core::{AnyResource, DeviceMemoryResourceExt};
use millpond_driver::cuda::{self, CudaDriver};
use millpond_resources::memory_pool::{MemoryPool, MemoryPoolOptions};
use millpond_resources::{CudaMemoryResource, PoolLayer};

const LEN: usize = 1 << 20;

/// `hold` ends when its flag is set, or after many seconds; then it sets the second number. `twice` doubles
/// `count` values.
const KERNELS: &str = r"
.version 6.4
.target sm_75
.address_size 64

.visible .entry hold(.param .u64 flag)
{
    .reg .pred %p<3>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<5>;

    ld.param.u64 %rd1, [flag];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u64 %rd2, %clock64;
again:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra done;
    mov.u64 %rd3, %clock64;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p2, %rd4, 40000000000;
    @%p2 bra again;
    mov.u32 %r2, 1;
    st.volatile.global.u32 [%rd1+4], %r2;
done:
    ret;
}

.visible .entry twice(.param .u64 values, .param .u32 count)
{
    .reg .pred %p1;
    .reg .b32 %r<5>;
    .reg .f32 %f1;
    .reg .b64 %rd<4>;

    ld.param.u64 %rd1, [values];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r2, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra end;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    add.f32 %f1, %f1, %f1;
    st.global.f32 [%rd3], %f1;
end:
    ret;
}
";

struct Bench {
    pool: AnyResource,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    twice: CudaFunction,
    hold: CudaFunction,
}

impl Bench {
    fn new() -> Self {
        let pool = CudaMemoryResource::new(CudaDriver::open(0).unwrap()).layer(PoolLayer::new()).unwrap();
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let module = context.load_module(Ptx::from_src(KERNELS)).unwrap();
        let [doubling, hold] = ["twice", "hold"].map(|name| module.load_function(name).unwrap());
        let bench = Self { pool: pool.into_any(), context, stream, twice: doubling, hold };
        // CUDA loads kernels at their first launch, and may wait for the device then.
        let mut values = bench.buffer(1.0);
        let mut copy = bench.buffer(0.0);
        twice(&bench, &bench.stream, &mut values);
        bench.stream.memcpy_dtod(&values, &mut copy).unwrap();
        bench.stream.memset_zeros(&mut copy).unwrap();
        Hold::new(&bench, &bench.stream).release();
        bench.context.synchronize().unwrap();
        bench
    }

    fn buffer(&self, value: f32) -> CudaBuffer<f32> {
        CudaBuffer::from_host(&vec![value; LEN], &self.stream, self.pool.clone()).unwrap()
    }

    fn all(&self, values: &CudaBuffer<f32>) -> f32 {
        let values = self.stream.clone_dtoh(values).unwrap();
        assert!(values.iter().all(|value| *value == values[0]), "the values differ");
        values[0]
    }
}

fn twice(bench: &Bench, stream: &CudaStream, values: &mut CudaBuffer<f32>) {
    let count = LEN as u32;
    // SAFETY: the kernel takes an address and a count, and stays inside.
    unsafe {
        let mut launch = stream.launch_builder(&bench.twice);
        launch.arg(values).arg(&count).launch(LaunchConfig::for_num_elems(count)).unwrap();
    }
}

/// A kernel that blocks a stream until it is released or dropped.
struct Hold {
    flags: PinnedHostSlice<u32>,
}

impl Hold {
    fn new(bench: &Bench, stream: &CudaStream) -> Self {
        // SAFETY: both numbers are written before they are read.
        let flags = unsafe { bench.context.alloc_pinned_with_flags(2, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let mut flags: PinnedHostSlice<u32> = flags.unwrap();
        flags.as_mut_slice().unwrap().fill(0);
        let address = flags.as_ptr().unwrap() as u64;
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: the kernel takes the address of two numbers, which live until it has ended.
        unsafe { stream.launch_builder(&bench.hold).arg(&address).launch(one) }.unwrap();
        Self { flags }
    }

    fn flag(&self, at: usize) -> *mut u32 {
        self.flags.as_ptr().unwrap().cast_mut().wrapping_add(at)
    }

    fn set(&self) {
        // SAFETY: the number belongs to the slice, and the device only reads it.
        unsafe { self.flag(0).write_volatile(1) };
    }

    /// Ends the kernel. It must still be running: the host has not waited for it.
    fn release(self) {
        // SAFETY: the number belongs to the slice.
        let gave_up = unsafe { self.flag(1).read_volatile() };
        assert_eq!(gave_up, 0, "the host waited for the kernel until that gave up");
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.set();
        self.flags.context().synchronize().unwrap();
    }
}

/// Asks often whether the work is done. If it waits for a held kernel, it never is.
fn finishes(event: &CudaEvent) -> bool {
    (0..10_000).any(|_| {
        std::thread::yield_now();
        event.try_is_complete().unwrap()
    })
}

/// Shows that the tests below can fail: a container without events does not wait.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn a_vector_orders_no_kernel() {
    let bench = Bench::new();
    let other = bench.context.new_stream().unwrap();
    // SAFETY: the stream outlives the vector.
    let on = unsafe { cuda::stream_ref_of(&bench.stream) }.unwrap();
    let values = DeviceVec::from_host(&vec![1.0_f32; LEN], on, bench.pool.clone()).unwrap();
    let count = LEN as u32;
    bench.context.synchronize().unwrap();
    let hold = Hold::new(&bench, &other);
    for stream in [&other, &bench.stream] {
        // SAFETY: the kernel stays inside of the vector.
        unsafe {
            let mut launch = stream.launch_builder(&bench.twice);
            launch.arg(&values).arg(&count).launch(LaunchConfig::for_num_elems(count)).unwrap();
        }
    }
    bench.stream.synchronize().unwrap();
    hold.release();
}

/// The program of a port: two streams, and one buffer where a `CudaSlice` was.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn kernels_on_two_streams_are_ordered() {
    let bench = Bench::new();
    let [other, third] = [(); 2].map(|()| bench.context.new_stream().unwrap());
    let (mut values, mut copy) = (bench.buffer(1.0), bench.buffer(0.0));
    let hold = Hold::new(&bench, &other);
    twice(&bench, &other, &mut values);
    twice(&bench, &bench.stream, &mut values);
    let end = bench.stream.record_event(None).unwrap();
    third.memcpy_dtod(&values, &mut copy).unwrap();
    let copied = third.record_event(None).unwrap();
    other.memset_zeros(&mut values).unwrap();
    assert!(!finishes(&end) && !finishes(&copied));
    hold.release();
    assert_eq!((bench.all(&values), bench.all(&copy)), (0.0, 4.0));
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn parts_on_several_streams_are_ordered() {
    let bench = Bench::new();
    let other = bench.context.new_stream().unwrap();
    let mut values = bench.buffer(1.0);
    let hold = Hold::new(&bench, &other);
    let mut whole = values.as_view_mut();
    let (mut first, mut second) = whole.try_split_at_mut(LEN / 2).unwrap();
    let half = (LEN / 2) as u32;
    for (stream, part) in [(&other, &mut first), (&bench.stream, &mut second)] {
        // SAFETY: the kernel stays inside of the part.
        unsafe {
            let mut launch = stream.launch_builder(&bench.twice);
            launch.arg(part).arg(&half).launch(LaunchConfig::for_num_elems(half)).unwrap();
        }
    }
    twice(&bench, &bench.stream, &mut values);
    let end = bench.stream.record_event(None).unwrap();
    assert!(!finishes(&end));
    hold.release();
    assert_eq!(bench.all(&values), 4.0);
}

/// Another buffer gets the memory only after both copies. cudarc's slice would forget the first copy.
#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn memory_is_reused_after_all_copies() {
    let bench = Bench::new();
    let [held, other] = [(); 2].map(|()| bench.context.new_stream().unwrap());
    let (values, mut first, mut second) = (bench.buffer(1.0), bench.buffer(0.0), bench.buffer(0.0));
    bench.context.synchronize().unwrap();
    let hold = Hold::new(&bench, &held);
    held.memcpy_dtod(&values, &mut first).unwrap();
    other.memcpy_dtod(&values, &mut second).unwrap();
    other.synchronize().unwrap();
    // The second copy did not wait for the first.
    drop(values);
    let reused = CudaBuffer::<f32>::zeroed(LEN, &bench.stream, bench.pool.clone()).unwrap();
    let end = bench.stream.record_event(None).unwrap();
    assert!(!finishes(&end));
    hold.release();
    assert_eq!([&first, &second, &reused].map(|values| bench.all(values)), [1.0, 1.0, 0.0]);
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn cudarc_allocates_from_a_configured_pool() {
    const BYTES: usize = 64 << 20;
    let driver = CudaDriver::open(0).unwrap();
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let before = MemoryPool::current_of(driver.clone()).unwrap();
    let pool = use_pool_in_cudarc(0, MemoryPoolOptions::new().release_threshold(u64::MAX)).unwrap();
    assert_eq!(pool.used_bytes().unwrap(), 0);
    let zeros = stream.alloc_zeros::<u8>(BYTES).unwrap();
    assert!(pool.used_bytes().unwrap() >= BYTES as u64);
    drop(zeros);
    stream.synchronize().unwrap();
    assert_eq!(pool.used_bytes().unwrap(), 0);
    // The release threshold keeps the memory for the next allocation.
    assert!(pool.reserved_bytes().unwrap() >= BYTES as u64);

    let kept = stream.alloc_zeros::<u8>(BYTES).unwrap();
    let still = MemoryPool::clone(&pool);
    drop(pool);
    assert_eq!(MemoryPool::current_of(driver).unwrap(), before);
    let used = still.used_bytes().unwrap();
    let other = stream.alloc_zeros::<u8>(BYTES).unwrap();
    assert_eq!(still.used_bytes().unwrap(), used);
    assert_eq!(stream.clone_dtoh(&kept).unwrap(), vec![0; BYTES]);
    drop((kept, other));
}
