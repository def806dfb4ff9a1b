//! The kernels of `tag.ptx`, and the count of mismatches that they keep on the device.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use millpond::driver::cuda::{CudaDriver, Function};
use millpond::{ALLOCATION_ALIGNMENT, DevicePtr, Driver, Layout, StreamRef};

/// The most blocks that one launch takes.
pub(crate) const BATCH: usize = 16;

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

/// The parameter of the kernels: the blocks of one launch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Table([Entry; BATCH]);

#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
struct Entry {
    address: u64,
    bytes: u64,
    words: u32,
    tag: u32,
}

const _: () = assert!(size_of::<Table>() == 384, "the size that tag.ptx names");

impl Table {
    /// Returns the table, and the size of the launch: the threads that the largest block needs, and the
    /// number of blocks.
    fn new(blocks: &[Block]) -> (Self, [u32; 2]) {
        assert!((1..=BATCH).contains(&blocks.len()), "a launch takes 1 to {BATCH} blocks");
        let mut table = [Entry::default(); BATCH];
        let mut most_words = 0;
        for (entry, block) in table.iter_mut().zip(blocks) {
            let (address, bytes, words) = (block.ptr.address(), block.layout.bytes(), block.words());
            *entry = Entry { address, bytes, words, tag: block.tag };
            most_words = most_words.max(words);
        }
        (Self(table), [4 * most_words, blocks.len() as u32])
    }
}

#[derive(Debug)]
pub(crate) struct Kernels {
    driver: Arc<CudaDriver>,
    write_tags: Function,
    check_tags: Function,
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
            write_tags: module.function("write_tags")?,
            check_tags: module.function("check_tags")?,
            spin: module.function("spin")?,
            mismatches,
        })
    }

    /// Writes its tag into each block.
    ///
    /// # Safety
    /// The blocks are live, and `stream` may use them.
    ///
    /// # Panics
    /// Panics if there are no blocks, or more than [`BATCH`].
    pub(crate) unsafe fn write_tags(&self, blocks: &[Block], stream: StreamRef) -> millpond::Result<()> {
        let (mut table, size) = Table::new(blocks);
        // SAFETY: there is one argument of the right type for each parameter, and the kernel stays within the
        // blocks.
        unsafe { launch(&self.write_tags, size, stream, &mut [argument(&mut table)]) }
    }

    /// Counts the bytes of the blocks that do not hold their block's tag.
    ///
    /// # Safety
    /// As for [`write_tags`](Self::write_tags).
    ///
    /// # Panics
    /// As for [`write_tags`](Self::write_tags).
    pub(crate) unsafe fn check_tags(&self, blocks: &[Block], stream: StreamRef) -> millpond::Result<()> {
        let (mut table, size) = Table::new(blocks);
        let mut mismatches = self.mismatches.address();
        let mut args = [argument(&mut table), argument(&mut mismatches)];
        // SAFETY: as above; the kernel adds to the count atomically.
        unsafe { launch(&self.check_tags, size, stream, &mut args) }
    }

    /// Keeps the stream busy for `cycles` clock cycles.
    pub(crate) fn spin(&self, mut cycles: u64, stream: StreamRef) -> millpond::Result<()> {
        // SAFETY: there is one argument, of the parameter's type, and the kernel touches no memory.
        unsafe { launch(&self.spin, [1, 1], stream, &mut [argument(&mut cycles)]) }
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
    [threads, rows]: [u32; 2],
    stream: StreamRef,
    args: &mut [*mut c_void],
) -> millpond::Result<()> {
    const BLOCK: u32 = 256;
    // SAFETY: the caller's promises.
    unsafe { function.launch([threads.div_ceil(BLOCK), rows, 1], [BLOCK, 1, 1], 0, stream, args) }
}
