//! Shares blocks of a pool with other processes, through POSIX file descriptors.
//!
//! A pool that was built with `share=fd` maps physical memory in handles that can be exported. A block lies
//! in one handle, or in several consecutive handles.
//! [`PoolMemoryResource::export_block`](crate::PoolMemoryResource::export_block) returns an
//! [`ExportedBlock`]. It has a file descriptor for each handle, and a description that says where the block
//! lies in the handles. Send the descriptors and the description to another process. You can send descriptors
//! over a Unix socket, or let a child process inherit them. In the other process, an [`ImportedBlock`] maps
//! the same memory at another address.
//!
//! - An open descriptor keeps the **physical memory** alive. The mapping of the other process does so, too.
//!   The memory stays even after the pool is dropped or the pool's process has ended.
//! - Neither the descriptor nor the mapping keeps the **block** live. Free the block only when the other
//!   process no longer uses it. After the free, the pool gives the same memory to other callers. No error
//!   then reports that two users share the memory.
//! - An exported handle contains all of its memory, so the other process could also map memory next to the
//!   block. Share blocks only with processes that you trust.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use millpond_core::driver::{AccessFlags, DriverResult, call};
use millpond_core::{DevicePtr, DriverHandle, Error, Result};

use crate::store::pages::Part;

const MAGIC: [u8; 8] = *b"MPFDS\r\n\x01";
const WORD: usize = 8;

/// A block that was exported for another process. It consists of file descriptors and a description.
///
/// ```
/// use millpond_core::{DeviceMemoryResourceExt, DriverHandle, Layout};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::share::ImportedBlock;
/// use millpond_resources::{CudaMemoryResource, PoolLayer, Share};
///
/// let driver: DriverHandle = SimDevice::new(SimConfig::h200());
/// let pool = CudaMemoryResource::new(driver.clone()).layer(PoolLayer::new().share(Share::Fd))?;
/// let ptr = pool.allocate_sync(Layout::new(1 << 20))?; // all earlier work on this memory is done
/// let (description, descriptors) = pool.export_block(ptr, 1 << 20)?.into_parts();
/// // … in the other process, which was sent both:
/// let block = ImportedBlock::open(&driver, &description, descriptors)?;
/// assert_eq!(block.bytes(), 1 << 20);
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Debug)]
pub struct ExportedBlock {
    parts: Vec<SharedPart>,
    descriptors: Vec<OwnedFd>,
}

/// Describes the range of a block that lies in one handle of physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SharedPart {
    /// The size of the whole handle in bytes.
    pub handle_bytes: u64,
    /// The start of the range, as an offset in the handle in bytes.
    pub offset: u64,
    /// The length of the range in bytes.
    pub bytes: u64,
}

impl ExportedBlock {
    pub(crate) fn new(driver: &DriverHandle, parts: &[Part]) -> Result<Self> {
        let export = |part: &Part| {
            let fd = call(&**driver, |driver| driver.mem_export_to_fd(part.physical))?;
            // SAFETY: the driver has just opened the descriptor for its caller, who owns it.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        };
        let descriptors = parts.iter().map(export).collect::<Result<Vec<_>>>()?;
        let shared = |part: &Part| {
            let Part { handle_bytes, offset, bytes, .. } = *part;
            SharedPart { handle_bytes, offset, bytes }
        };
        Ok(Self { parts: parts.iter().map(shared).collect(), descriptors })
    }

    /// Returns the size of the block in bytes.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Returns where the block lies: for each handle, the range of the block in this handle. The order is the
    /// order of the addresses. The entry at an index belongs to the [descriptor](Self::descriptors) at the
    /// same index.
    pub fn parts(&self) -> &[SharedPart] {
        &self.parts
    }

    /// Returns the file descriptors, one for each handle. Dropping the exported block closes them.
    pub fn descriptors(&self) -> &[OwnedFd] {
        &self.descriptors
    }

    /// Returns the description of the block for [`ImportedBlock::open`]. The length of the description is 8
    /// bytes, plus 24 bytes for each handle.
    pub fn description(&self) -> Vec<u8> {
        let words = self.parts.iter().flat_map(|part| [part.handle_bytes, part.offset, part.bytes]);
        MAGIC.into_iter().chain(words.flat_map(u64::to_le_bytes)).collect()
    }

    /// Returns the [`description`](Self::description) and the file descriptors. The caller then owns the
    /// descriptors.
    pub fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        (self.description(), self.descriptors)
    }
}

/// A block of another process's pool, mapped into this process until this value is dropped.
///
/// Drop the value only after this process's work on the block is done. The drop does not wait for the work,
/// because a wait for the device would end graph captures of other threads.
#[derive(Debug)]
pub struct ImportedBlock {
    driver: DriverHandle,
    ptr: DevicePtr,
    bytes: u64,
    /// Reserved addresses: base and bytes.
    reserved: (DevicePtr, u64),
    /// Mappings there: address and bytes.
    mapped: Vec<(DevicePtr, u64)>,
}

impl ImportedBlock {
    /// Maps a block that another process [exported](ExportedBlock::into_parts), and closes the descriptors.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the description is malformed or does
    /// not match the descriptors. Also the driver's errors.
    pub fn open(driver: &DriverHandle, description: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self> {
        let parts = read(description)?;
        if parts.len() != descriptors.len() {
            return Err(malformed("the number of its parts differs from the number of descriptors"));
        }
        let whole = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.handle_bytes));
        let whole = whole.ok_or_else(|| malformed("its bytes overflow"))?;
        let reserved = call(&**driver, |driver| {
            let granularity = driver.mem_get_allocation_granularity()?;
            driver.mem_address_reserve(whole, granularity)
        })
        .map_err(|error| error.context("reserving addresses for a shared block"))?;
        // From here on, dropping the block undoes the calls.
        let mut block = Self {
            driver: DriverHandle::clone(driver),
            ptr: DevicePtr::new(reserved.address() + parts[0].offset),
            bytes: parts.iter().map(|part| part.bytes).sum(),
            reserved: (reserved, whole),
            mapped: Vec::new(),
        };
        for (part, fd) in parts.iter().zip(&descriptors) {
            block
                .map(part, fd)
                .map_err(|error| Error::from(error).context("mapping a part of a shared block"))?;
        }
        call(&**driver, |driver| {
            // SAFETY: the loop above mapped the whole range, without a gap.
            unsafe { driver.mem_set_access(reserved, whole, AccessFlags::ReadWrite, &[driver.device()]) }
        })?;
        Ok(block)
    }

    fn map(&mut self, part: &SharedPart, fd: &OwnedFd) -> DriverResult<()> {
        let at =
            self.mapped.last().map_or(self.reserved.0, |(at, bytes)| DevicePtr::new(at.address() + bytes));
        let handle = self.driver.mem_import_from_fd(fd.as_raw_fd())?;
        // SAFETY: the addresses are reserved for this block, and nothing is mapped there. The mapping keeps
        // the memory, so the handle may be released.
        let mapped = unsafe {
            let mapped = self.driver.mem_map(at, part.handle_bytes, handle);
            if mapped.is_ok() {
                self.mapped.push((at, part.handle_bytes));
            }
            self.driver.mem_release(handle).and(mapped)
        };
        mapped.inspect_err(|error| self.driver.health().note(error))
    }

    /// Returns the address of the block in this process.
    pub fn device_pointer(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns the size of the block in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for ImportedBlock {
    fn drop(&mut self) {
        // The mappings belong to this block, even after a reset of the context.
        let driver = &self.driver;
        if driver.health().is_lost() && !driver.was_reset() {
            return;
        }
        let unmap = || {
            for (at, bytes) in &self.mapped {
                // SAFETY: the mapping is this block's, and its user's work on it is done.
                unsafe { driver.mem_unmap(*at, *bytes)? };
            }
            // SAFETY: the reservation is this block's, and nothing is mapped there any more.
            unsafe { driver.mem_address_free(self.reserved.0, self.reserved.1) }
        };
        if let Err(error) = unmap() {
            driver.health().note(&error);
            tracing::warn!(
                target: "millpond::share",
                %error,
                "cannot unmap a shared block; the driver keeps it"
            );
        }
    }
}

fn malformed(why: &str) -> Error {
    Error::invalid_argument(format!(
        "the description of the shared block is not valid: {why}; pass on everything that the export returned"
    ))
}

/// Reads an untrusted description.
fn read(description: &[u8]) -> Result<Vec<SharedPart>> {
    let rest = description.strip_prefix(&MAGIC).ok_or_else(|| malformed("its first bytes are wrong"))?;
    if rest.is_empty() || !rest.len().is_multiple_of(3 * WORD) {
        return Err(malformed("it is truncated"));
    }
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let part = |bytes: &[u8]| SharedPart {
        handle_bytes: word(&bytes[..WORD]),
        offset: word(&bytes[WORD..2 * WORD]),
        bytes: word(&bytes[2 * WORD..]),
    };
    let parts: Vec<SharedPart> = rest.chunks_exact(3 * WORD).map(part).collect();
    let last = parts.len() - 1;
    let is_right = |(index, part): (usize, &SharedPart)| {
        let end = part.offset.checked_add(part.bytes);
        let goes_on = index == last || end == Some(part.handle_bytes);
        part.bytes > 0
            && end.is_some_and(|end| end <= part.handle_bytes)
            && (index == 0 || part.offset == 0)
            && goes_on
    };
    if parts.iter().enumerate().all(is_right) {
        Ok(parts)
    } else {
        Err(malformed("its parts are not contiguous"))
    }
}
