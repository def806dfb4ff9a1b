//! Tests that buffers of OpenVM with `upstream.patch` allocate from millpond's stack.

use millpond::adaptors::AllocationCounters;
use openvm_cuda_common::copy::MemCopyD2H;
use openvm_cuda_common::d_buffer::DeviceBuffer;
use openvm_cuda_common::memory_manager::set_allocator;
use openvm_cuda_common::stream::GpuDeviceCtx;

#[test]
fn buffers_allocate_from_the_stack() {
    let context = GpuDeviceCtx::for_device(0).expect("a GPU, or ../test.sh");
    millpond_openvm::use_stack(0, "cuda+pool+statistics").unwrap();
    let before = DeviceBuffer::<u8>::with_capacity_on(100, &context);
    set_allocator(millpond_openvm::d_malloc_on, millpond_openvm::d_free);
    let resource = millpond::resources::get_current_device_resource().unwrap();
    let counted = || {
        let counters = millpond::find_trait::<dyn AllocationCounters>(&resource).unwrap().counters();
        (counters.allocations.total, counters.bytes.current)
    };
    assert_eq!(counted(), (0, 0));
    let small = DeviceBuffer::<u32>::with_capacity_on(100, &context);
    let large = DeviceBuffer::<u32>::with_capacity_on(1 << 22, &context);
    assert_eq!(counted(), (2, 400 + (4 << 22)));
    small.fill_zero_on(&context).unwrap();
    assert_eq!(small.to_host_on(&context).unwrap(), vec![0; 100]);
    drop((before, small, large));
    assert_eq!(counted(), (2, 0));
}
