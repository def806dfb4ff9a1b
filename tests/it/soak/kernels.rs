//! The kernels of `tag.ptx`, and the count of mismatches that they keep on the device.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use millpond::driver::cuda::{CudaDriver, Function};
use millpond::{ALLOCATION_ALIGNMENT, DevicePtr, Driver, Layout, StreamRef};

/// A block of the resource under test, and the tag in it.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) ptr: DevicePtr,
    pub(crate) layout: Layout,
    pub(crate) tag: u32,
}

impl Block {
    /// Returns the number of words that the kernels touch: the first of each granule, and the last of the
    /// block.
    fn words(&self) -> u32 {
        let granules = self.layout.bytes().div_ceil(ALLOCATION_ALIGNMENT);
        u32::try_from(granules + 1).expect("blocks of the soak are small")
    }
}

#[derive(Debug)]
pub(crate) struct Kernels {
    driver: Arc<CudaDriver>,
    write_tag: Function,
    check_tag: Function,
    spin: Function,
    mismatches: DevicePtr,
}

impl Kernels {
    pub(crate) fn load(driver: &Arc<CudaDriver>) -> millpond::Result<Self> {
        let module = driver.load_ptx(include_str!("tag.ptx"))?;
        let mismatches = driver.mem_alloc(size_of::<u32>() as u64)?;
        // SAFETY: the memory is our own and has this size.
        unsafe { driver.memset_d8_async(mismatches, 0, size_of::<u32>() as u64, StreamRef::LEGACY) }?;
        driver.synchronize()?;
        Ok(Self {
            driver: Arc::clone(driver),
            write_tag: module.function("write_tag")?,
            check_tag: module.function("check_tag")?,
            spin: module.function("spin")?,
            mismatches,
        })
    }

    /// Writes the block's tag into it.
    ///
    /// # Safety
    /// The block is live, and `stream` may use it.
    pub(crate) unsafe fn write_tag(&self, block: &Block, stream: StreamRef) -> millpond::Result<()> {
        let (mut ptr, mut bytes) = (block.ptr.address(), block.layout.bytes());
        let (mut words, mut tag) = (block.words(), block.tag);
        let mut args = [argument(&mut ptr), argument(&mut bytes), argument(&mut words), argument(&mut tag)];
        // SAFETY: there is one argument of the right type for each parameter, and the kernel stays within the
        // block.
        unsafe { launch(&self.write_tag, 4 * words, stream, &mut args) }
    }

    /// Counts the bytes of the block that do not hold its tag.
    ///
    /// # Safety
    /// As for [`write_tag`](Self::write_tag).
    pub(crate) unsafe fn check_tag(&self, block: &Block, stream: StreamRef) -> millpond::Result<()> {
        let (mut ptr, mut bytes) = (block.ptr.address(), block.layout.bytes());
        let (mut words, mut tag) = (block.words(), block.tag);
        let mut mismatches = self.mismatches.address();
        let mut args = [
            argument(&mut ptr),
            argument(&mut bytes),
            argument(&mut words),
            argument(&mut tag),
            argument(&mut mismatches),
        ];
        // SAFETY: as above; the kernel adds to the count atomically.
        unsafe { launch(&self.check_tag, 4 * words, stream, &mut args) }
    }

    /// Keeps the stream busy for `cycles` clock cycles.
    pub(crate) fn spin(&self, mut cycles: u64, stream: StreamRef) -> millpond::Result<()> {
        // SAFETY: there is one argument, of the parameter's type, and the kernel touches no memory.
        unsafe { launch(&self.spin, 1, stream, &mut [argument(&mut cycles)]) }
    }

    /// Returns how many bytes were found without their tag so far. Waits for the device.
    pub(crate) fn mismatches(&self) -> millpond::Result<u32> {
        self.driver.synchronize()?;
        let mut bytes = [0_u8; size_of::<u32>()];
        let (dst, count) = (bytes.as_mut_ptr(), bytes.len() as u64);
        // SAFETY: source and destination have this size, and live until the copy below is done.
        unsafe { self.driver.memcpy_dtoh_async(dst, self.mismatches, count, StreamRef::LEGACY) }?;
        self.driver.synchronize()?;
        Ok(u32::from_ne_bytes(bytes))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: the memory is our own, and `mem_free` waits for kernels that use it. After a failure the
        // driver may refuse; then the memory ends with the process.
        let _refused = unsafe { self.driver.mem_free(self.mismatches) };
    }
}

fn argument<T>(value: &mut T) -> *mut c_void {
    ptr::from_mut(value).cast()
}

/// # Safety
/// As for [`Function::launch`].
unsafe fn launch(
    function: &Function,
    threads: u32,
    stream: StreamRef,
    args: &mut [*mut c_void],
) -> millpond::Result<()> {
    const BLOCK: u32 = 256;
    // SAFETY: the caller's promises.
    unsafe { function.launch([threads.div_ceil(BLOCK), 1, 1], [BLOCK, 1, 1], 0, stream, args) }
}
