//! Tests decay and pressure on a real device.

use std::time::Duration;

use millpond_core::{DeviceId, DeviceMemoryResourceExt, StreamRef};
use millpond_resources::{CudaMemoryResource, Decay, PoolLayer, PoolMemoryResource};

const GIB: u64 = 1 << 30;

fn take_and_give(pool: &PoolMemoryResource<CudaMemoryResource>, bytes: u64) {
    let ptr = pool.allocate_bytes(bytes, StreamRef::LEGACY).expect("there is memory");
    // SAFETY: the block came from the pool with this size, and nothing uses it.
    unsafe { pool.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
}

#[test]
#[ignore = "needs a CUDA GPU; run by the GPU lane"]
fn what_a_pool_does_not_need_is_the_devices_again() {
    let driver = millpond_driver::open(DeviceId::cuda(0)).expect("a CUDA GPU");
    let pool = |decay| {
        CudaMemoryResource::new(driver.clone()).layer(PoolLayer::new().decay(decay)).expect("there is memory")
    };
    let free = || driver.mem_get_info().expect("the driver answers").free;
    let decaying = pool(Decay::Over(Duration::from_millis(200)));
    take_and_give(&decaying, 4 * GIB);
    let while_held = free();
    while decaying.pool_bytes() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(free() >= while_held + 3 * GIB, "{} are free, {while_held} were", free());

    // Neither decays now, and the second needs the first one's memory.
    let [first, second] = [(); 2].map(|()| pool(Decay::Off));
    let most = free() / 8 * 7;
    take_and_give(&first, most);
    take_and_give(&second, most);
    assert!(first.pool_bytes() < most && second.pool_bytes() >= most);
}
