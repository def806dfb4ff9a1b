//! A hash map and a vector in managed memory. On a GPU, a kernel doubles the vector's values in place.

use std::ffi::c_void;

use millpond::driver::{DeviceSpec, MemoryKind, cuda};
use millpond::{DevicePtr, DriverHandle, Result, StreamRef};
use millpond_allocator_api2::{Map, Vector, allocator};

/// Doubles the value of each thread.
const DOUBLE: &str = "
.version 6.0
.target sm_52
.address_size 64
.visible .entry twice(.param .u64 values)
{
    .reg .u32 %i, %value;
    .reg .u64 %at;
    mov.u32 %i, %tid.x;
    ld.param.u64 %at, [values];
    mad.wide.u32 %at, %i, 4, %at;
    ld.global.u32 %value, [%at];
    add.u32 %value, %value, %value;
    st.global.u32 [%at], %value;
    ret;
}
";

fn main() -> Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let memory = allocator("managed+pool", &device)?;

    let mut prices = Vector::new_in(memory.clone());
    let mut index: Map<&str, usize> = Map::with_hasher_in(Default::default(), memory.clone());
    for (name, price) in [("apple", 3_u32), ("pear", 4), ("plum", 5)] {
        index.insert(name, prices.len());
        prices.push(price);
    }
    let at = DevicePtr::new(prices.as_ptr().addr() as u64);
    assert_eq!(device.pointer_kind(at)?, MemoryKind::Managed);

    let factor = if double(&device, &mut prices)? { 2 } else { 1 };
    assert_eq!(prices[index["plum"]], 5 * factor);
    println!("plum costs {}, in `{}` of {}", prices[index["plum"]], memory.resource(), device.device());
    Ok(())
}

/// Doubles the values on a GPU, and waits for the result. Returns `false` on a simulated device, which runs
/// no kernels.
fn double(device: &DriverHandle, values: &mut Vector<u32>) -> Result<bool> {
    if !device.device().is_cuda() {
        return Ok(false);
    }
    let gpu = cuda::CudaDriver::open(device.device().ordinal())?;
    let twice = gpu.load_ptx(DOUBLE)?.function("twice")?;
    let mut at = values.as_mut_ptr();
    let mut arguments = [(&raw mut at).cast::<c_void>()];
    let threads = values.len() as u32;
    // SAFETY: the kernel takes an address, and each thread writes one value of the vector. Nothing else uses
    // the vector until the device has finished.
    unsafe { twice.launch([1, 1, 1], [threads, 1, 1], 0, StreamRef::LEGACY, &mut arguments) }?;
    device.synchronize()?;
    Ok(true)
}
