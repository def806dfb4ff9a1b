//! Tests the two functions with OpenVM's streams and buffers. Without a GPU, `../test.sh openvm` runs the
//! tests over the simulated device.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{null_mut, without_provenance_mut};

use millpond_openvm::{d_free, d_malloc_on, use_stack};
use openvm_cuda_common::copy::MemCopyD2H;
use openvm_cuda_common::d_buffer::DeviceBuffer;
use openvm_cuda_common::error::MemoryError;
use openvm_cuda_common::stream::GpuDeviceCtx;

const BYTES: usize = 1 << 30;

fn context() -> GpuDeviceCtx {
    GpuDeviceCtx::for_device(0).expect("a GPU, or ../test.sh")
}

/// A buffer of OpenVM over a block. It does not free the block.
fn buffer(ptr: *mut c_void, bytes: usize) -> ManuallyDrop<DeviceBuffer<u8>> {
    // SAFETY: the block has that many bytes, and the buffer is not dropped.
    ManuallyDrop::new(unsafe { DeviceBuffer::from_raw_parts(ptr.cast(), bytes) })
}

#[test]
fn buffers_of_openvm_use_the_memory() {
    let context = context();
    let ptr = d_malloc_on(5000, &context.stream).unwrap();
    let bytes = buffer(ptr, 5000);
    bytes.fill_zero_on(&context).unwrap();
    assert_eq!(bytes.to_host_on(&context).unwrap(), vec![0; 5000]);
    // SAFETY: the block is no longer used.
    unsafe { d_free(ptr) }.unwrap();
}

/// The stream that allocated a block gets it again at once. Another stream does not while work is pending.
#[test]
fn the_stream_of_the_allocation_orders_the_free() {
    let (a, b) = (context(), context());
    let ptr = d_malloc_on(BYTES, &a.stream).unwrap();
    buffer(ptr, BYTES).fill_zero_on(&a).unwrap();
    // SAFETY: only `a` has used the block.
    unsafe { d_free(ptr) }.unwrap();
    let other = d_malloc_on(BYTES, &b.stream).unwrap();
    assert_ne!(other, ptr);
    assert_eq!(d_malloc_on(BYTES, &a.stream).unwrap(), ptr);
    for block in [ptr, other] {
        // SAFETY: the blocks are no longer used.
        unsafe { d_free(block) }.unwrap();
    }
}

#[test]
fn a_block_keeps_its_stream() {
    let context = context();
    let ptr = d_malloc_on(100, &context.stream).unwrap();
    buffer(ptr, 100).fill_zero_on(&context).unwrap();
    drop(context);
    // SAFETY: the block is no longer used.
    unsafe { d_free(ptr) }.unwrap();
}

#[test]
fn mistakes_are_upstreams_errors() {
    let context = context();
    let nothing = d_malloc_on(0, &context.stream);
    assert!(matches!(nothing, Err(MemoryError::InvalidMemorySize { size: 0 })), "{nothing:?}");
    let huge = d_malloc_on(1 << 44, &context.stream);
    let Err(MemoryError::OutOfMemory { requested, available }) = huge else { panic!("{huge:?}") };
    assert!(requested == 1 << 44 && available > 0 && available < requested, "{available}");
    // SAFETY: none of these is a live block.
    unsafe {
        let null = d_free(null_mut());
        assert!(matches!(null, Err(MemoryError::NullPointer)), "{null:?}");
        let unknown = d_free(without_provenance_mut(64));
        assert!(matches!(unknown, Err(MemoryError::InvalidPointer)), "{unknown:?}");
    }
    let ptr = d_malloc_on(100, &context.stream).unwrap();
    // SAFETY: the block is not used; the second call frees nothing.
    let [first, second] = unsafe { [d_free(ptr), d_free(ptr)] };
    assert!(first.is_ok() && matches!(second, Err(MemoryError::InvalidPointer)), "{second:?}");
}

#[test]
fn a_stack_from_text_serves_the_device() {
    assert!(use_stack(0, "cuda+pol").unwrap_err().to_string().contains("there is no layer `pol`"));
    let context = context();
    let before = d_malloc_on(100, &context.stream).unwrap();
    use_stack(0, "cuda+pool:max=4GiB+statistics").unwrap();
    let after = d_malloc_on(100, &context.stream).unwrap();
    let resource = millpond::resources::get_current_device_resource().unwrap();
    assert_eq!(resource.to_string(), "cuda+pool:max=4GiB+statistics");
    for block in [before, after] {
        // SAFETY: the blocks are not used.
        unsafe { d_free(block) }.unwrap();
    }
}
