//! Shows a storage of cubecl over a stack: a page, a slice of the page, and the free in stream order. It runs
//! on the GPU, or on a simulated H200 if there is none.

use std::error::Error;

use cubecl_runtime::storage::ComputeStorage;
use millpond::prelude::*;
use millpond_cubecl::MillpondStorage;

fn main() -> Result<(), Box<dyn Error>> {
    let device = DeviceSpec::default_device().open()?;
    let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
    let stack: AnyResource = "cuda+pool".parse::<StackSpec>()?.build(&millpond::layers(), &device)?;

    // SAFETY: the stream outlives the storage, and no work uses the pages.
    let mut storage = unsafe { MillpondStorage::new(stack, (&stream).into(), 512) }?;
    let page = storage.alloc(1 << 20)?;
    println!("a page of {} bytes at {:#x}", page.size(), storage.get(&page)?);
    println!("a slice at {:#x}", storage.get(&page.offset_start(4096))?);

    storage.dealloc(page.id);
    println!("retired: {} bytes are held", storage.bytes_allocated());
    storage.flush();
    println!("flushed: {} bytes are held", storage.bytes_allocated());
    Ok(())
}
