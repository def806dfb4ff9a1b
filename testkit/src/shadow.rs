//! A plain model of an allocator: the live ranges, and the request of each.
//!
//! It does a resource's work in the most obvious way, so that a resource can be compared with it. The idea is
//! from rlsf's shadow allocator.

use std::collections::BTreeMap;
use std::fmt;

use millpond_core::{DevicePtr, Layout, align_up};

/// A violation that no allocator may commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// A request for bytes returned the null pointer.
    Null {
        /// The request.
        layout: Layout,
    },
    /// A request for 0 bytes returned a block.
    NotNull {
        /// The block that was handed out.
        ptr: DevicePtr,
    },
    /// The pointer is not a multiple of the alignment.
    Misaligned {
        /// The block that was handed out.
        ptr: DevicePtr,
        /// The request.
        layout: Layout,
    },
    /// The block ends beyond the end of the address space.
    Wraps {
        /// The block that was handed out.
        ptr: DevicePtr,
        /// The request.
        layout: Layout,
    },
    /// The block overlaps a live block.
    Overlap {
        /// The block that was handed out.
        ptr: DevicePtr,
        /// The request.
        layout: Layout,
        /// The start of the live block.
        other: DevicePtr,
        /// The size of the live block in bytes, as requested.
        other_bytes: u64,
    },
    /// The freed block is not live.
    NotLive {
        /// The freed pointer.
        ptr: DevicePtr,
    },
    /// The block is freed with another layout.
    WrongLayout {
        /// The freed pointer.
        ptr: DevicePtr,
        /// The layout of the allocation.
        allocated: Layout,
        /// The layout of the deallocation.
        returned: Layout,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null { layout } => write!(f, "null for a request of {} bytes", layout.bytes()),
            Self::NotNull { ptr } => write!(f, "{ptr} for a request of 0 bytes; it must return null"),
            Self::Misaligned { ptr, layout } => {
                write!(f, "{ptr} is not a multiple of {}", layout.alignment())
            }
            Self::Wraps { ptr, layout } => {
                write!(f, "{} bytes at {ptr} end beyond the address space", layout.bytes())
            }
            Self::Overlap { ptr, layout, other, other_bytes } => {
                let bytes = layout.bytes();
                write!(f, "{bytes} bytes at {ptr} overlap the {other_bytes} live bytes at {other}")
            }
            Self::NotLive { ptr } => write!(f, "no live block starts at {ptr}"),
            Self::WrongLayout { ptr, allocated, returned } => {
                write!(f, "{ptr} was allocated as {allocated:?} but freed as {returned:?}")
            }
        }
    }
}

/// The live blocks of one resource.
///
/// ```
/// use millpond_core::{DevicePtr, Layout};
/// use millpond_testkit::shadow::{Fault, ShadowAllocator};
/// let mut shadow = ShadowAllocator::new();
/// shadow.allocate(DevicePtr::new(0x1000), Layout::new(512)).unwrap();
/// let overlap = shadow.allocate(DevicePtr::new(0x1100), Layout::new(1));
/// assert!(matches!(overlap, Err(Fault::Overlap { .. })));
/// shadow.deallocate(DevicePtr::new(0x1000), Layout::new(512)).unwrap();
/// assert_eq!(shadow.live_blocks(), 0);
/// ```
#[derive(Clone, Default, Debug)]
pub struct ShadowAllocator {
    live: BTreeMap<DevicePtr, Layout>,
    requested_bytes: u64,
    rounded_bytes: u64,
    allocations: u64,
    deallocations: u64,
}

impl ShadowAllocator {
    /// Creates a model without live blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that `ptr` was handed out for `layout`.
    ///
    /// # Errors
    /// Returns the first rule that the block breaks, and records nothing.
    pub fn allocate(&mut self, ptr: DevicePtr, layout: Layout) -> Result<(), Fault> {
        if layout.bytes() == 0 {
            return if ptr.is_null() { Ok(()) } else { Err(Fault::NotNull { ptr }) };
        }
        if ptr.is_null() {
            return Err(Fault::Null { layout });
        }
        if !ptr.is_aligned_to(layout.alignment()) {
            return Err(Fault::Misaligned { ptr, layout });
        }
        let Some(end) = ptr.address().checked_add(layout.bytes()) else {
            return Err(Fault::Wraps { ptr, layout });
        };
        if let Some((&other, &below)) = self.live.range(..DevicePtr::new(end)).next_back()
            && other.address() + below.bytes() > ptr.address()
        {
            return Err(Fault::Overlap { ptr, layout, other, other_bytes: below.bytes() });
        }
        self.live.insert(ptr, layout);
        self.requested_bytes += layout.bytes();
        self.rounded_bytes += rounded(layout);
        self.allocations += 1;
        Ok(())
    }

    /// Records that `ptr` was freed.
    ///
    /// # Errors
    /// Returns [`Fault::NotLive`] or [`Fault::WrongLayout`], and records nothing.
    pub fn deallocate(&mut self, ptr: DevicePtr, layout: Layout) -> Result<(), Fault> {
        if layout.bytes() == 0 && ptr.is_null() {
            return Ok(());
        }
        match self.live.get(&ptr) {
            None => return Err(Fault::NotLive { ptr }),
            Some(&allocated) if allocated != layout => {
                return Err(Fault::WrongLayout { ptr, allocated, returned: layout });
            }
            Some(_) => self.live.remove(&ptr),
        };
        self.requested_bytes -= layout.bytes();
        self.rounded_bytes -= rounded(layout);
        self.deallocations += 1;
        Ok(())
    }

    /// Returns the live blocks in address order.
    pub fn live(&self) -> impl Iterator<Item = (DevicePtr, Layout)> + '_ {
        self.live.iter().map(|(&ptr, &layout)| (ptr, layout))
    }

    /// Returns whether a live block starts at `ptr`.
    pub fn is_live(&self, ptr: DevicePtr) -> bool {
        self.live.contains_key(&ptr)
    }

    /// Returns the number of live blocks.
    pub fn live_blocks(&self) -> u64 {
        self.live.len() as u64
    }

    /// Returns the bytes of the live blocks, as requested.
    pub const fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }

    /// Returns the bytes of the live blocks, each rounded up to a multiple of 256.
    pub const fn rounded_bytes(&self) -> u64 {
        self.rounded_bytes
    }

    /// Returns the number of blocks handed out so far; requests for 0 bytes do not count.
    pub const fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Returns the number of blocks freed so far.
    pub const fn deallocations(&self) -> u64 {
        self.deallocations
    }
}

fn rounded(layout: Layout) -> u64 {
    align_up(layout.bytes(), millpond_core::ALLOCATION_ALIGNMENT).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64) -> DevicePtr {
        DevicePtr::new(address)
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let mut shadow = ShadowAllocator::new();
        shadow.allocate(at(0x1000), Layout::new(256)).unwrap();
        shadow.allocate(at(0x1200), Layout::new(256)).unwrap();
        shadow.allocate(at(0x1100), Layout::new(256)).unwrap();
        assert_eq!((shadow.live_blocks(), shadow.requested_bytes()), (3, 768));
    }

    #[test]
    fn overlaps_are_seen_from_every_side() {
        let mut shadow = ShadowAllocator::new();
        shadow.allocate(at(0x2000), Layout::new(0x400)).unwrap();
        for (address, bytes) in [(0x2000, 1), (0x2300, 256), (0x1f00, 257), (0x1f00, 0x10000), (0x2100, 16)] {
            let result = shadow.allocate(at(address), Layout::new(bytes));
            assert!(matches!(result, Err(Fault::Overlap { .. })), "{address:#x} {bytes}: {result:?}");
        }
        assert_eq!(shadow.live_blocks(), 1);
    }

    #[test]
    fn every_other_fault_has_its_name() {
        let mut shadow = ShadowAllocator::new();
        let page = Layout::with_alignment(8, 4096).unwrap();
        assert_eq!(shadow.allocate(DevicePtr::NULL, page).unwrap_err(), Fault::Null { layout: page });
        assert!(matches!(shadow.allocate(at(0x1100), page), Err(Fault::Misaligned { .. })));
        assert!(matches!(shadow.allocate(at(0x100), Layout::new(0)), Err(Fault::NotNull { .. })));
        assert!(matches!(
            shadow.allocate(at(0u64.wrapping_sub(256)), Layout::new(512)),
            Err(Fault::Wraps { .. })
        ));
        shadow.allocate(at(0x1000), page).unwrap();
        assert!(matches!(shadow.deallocate(at(0x1000), Layout::new(9)), Err(Fault::WrongLayout { .. })));
        assert!(matches!(shadow.deallocate(at(0x1100), page), Err(Fault::NotLive { .. })));
        shadow.deallocate(at(0x1000), page).unwrap();
        assert!(matches!(shadow.deallocate(at(0x1000), page), Err(Fault::NotLive { .. })));
    }
}
