//! A vector of millpond's pool as a tensor of cutile. The tensor's copy comes from a pool that millpond
//! configures.

use std::error::Error;
use std::sync::Arc;

use cuda_core::Context;
use cutile::prelude::{DeviceOp, Tensor, ToHostVec};
use millpond::containers::DeviceVec;
use millpond::driver::cuda::CudaDriver;
use millpond::resources::memory_pool::{CurrentPool, MemoryPoolOptions};
use millpond::stack::StackSpec;
use millpond::{DriverHandle, StreamRef};
use millpond_cuda_core::Foreign;

fn main() -> Result<(), Box<dyn Error>> {
    let device: DriverHandle = CudaDriver::open(0)?;
    let stack = "cuda+pool".parse::<StackSpec>()?.build(&millpond::layers(), &device)?;
    let outputs = CurrentPool::new(device, MemoryPoolOptions::new().release_threshold(u64::MAX))?;
    let home = Context::new(0)?.new_stream()?;

    let numbers: Vec<f32> = (0..1 << 20).map(|number| number as f32).collect();
    let vec = DeviceVec::from_host(&numbers, StreamRef::LEGACY, stack)?;
    let owner = Arc::new(Foreign::new(vec.into_buffer(), &home)?);
    // SAFETY: only this tensor uses the memory until the stream has finished.
    let tensor = unsafe { Tensor::<f32>::from_foreign(owner, vec![1024, 1024], vec![1024, 1]) };

    let copy = tensor.dup().sync_on(&home)?;
    println!("the copy takes {} bytes of millpond's driver pool", outputs.used_bytes()?);
    assert_eq!(copy.to_host_vec().sync_on(&home)?, numbers);
    assert_eq!(tensor.to_host_vec().sync_on(&home)?, numbers);
    println!("both tensors hold the numbers");
    Ok(())
}
