//! Runs candle on a pool of millpond's options, and on memory of a millpond stack. It needs a GPU.

use std::error::Error;

use candle_core::{DType, Device, Tensor};
use millpond::containers::CudaBuffer;
use millpond::driver::DeviceSpec;
use millpond::resources::memory_pool::MemoryPoolOptions;
use millpond::stack::StackSpec;
use millpond_candle::{lend_as_tensor, use_pool};

/// The sides of the matrices.
const N: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::new_cuda_with_stream(0)?;
    let options = MemoryPoolOptions::new().release_threshold(u64::MAX).max_bytes(8 << 30);
    let pool = use_pool(device.location(), options)?;

    // A product of matrices of ones: each value is N.
    let ones = Tensor::ones((N, N), DType::F32, &device)?;
    for _ in 0..100 {
        let product = ones.matmul(&ones)?;
        assert_eq!(product.max_all()?.to_scalar::<f32>()?, N as f32);
    }
    let matrix = (N * N * 4) as u64;
    println!(
        "pool: {} bytes in use, {} reserved, {} at most",
        pool.used_bytes()?,
        pool.reserved_bytes()?,
        pool.reserved_high()?
    );
    assert!(pool.used_high()? >= 2 * matrix, "the tensors lie elsewhere");
    println!("pool: {} bytes trimmed", pool.trim(0)?);

    // A tensor over memory of a stack, for the duration of the closure.
    let cuda = device.as_cuda_device()?;
    let driver = "cuda:0".parse::<DeviceSpec>()?.open()?;
    let stack = "cuda+pool".parse::<StackSpec>()?.build(&millpond::layers(), &driver)?;
    let values: Vec<f32> = (0..N * N).map(|at| (at % 7) as f32).collect();
    let mut buffer = CudaBuffer::from_host(&values, &cuda.cuda_stream(), stack)?;
    // SAFETY: the closure keeps no tensor over the buffer: sums and products are tensors of their own.
    let (sum, twice) = unsafe {
        lend_as_tensor(&mut buffer, cuda, (N, N), |lent| {
            Ok((lent.sum_all()?.to_scalar::<f32>()?, (lent + lent)?))
        })
    }?;
    let expected: f32 = values.iter().sum();
    assert!((sum - expected).abs() <= expected * 1e-3, "{sum}, {expected}");
    let doubled: Vec<f32> = twice.flatten_all()?.to_vec1()?;
    assert!(doubled.iter().zip(&values).all(|(doubled, value)| *doubled == value * 2.0));

    // The memory is still the buffer's, and a panic inside the closure gives it back, too.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: as above.
        unsafe {
            lend_as_tensor(&mut buffer, cuda, N * N, |_| -> candle_core::Result<()> { panic!("on purpose") })
        }
    }));
    assert!(panicked.is_err());
    assert_eq!(cuda.cuda_stream().clone_dtoh(&buffer)?, values);
    println!("tensor over `{}`: the sum is {sum}", "cuda+pool");
    drop((buffer, twice, ones));
    println!("OK");
    Ok(())
}
