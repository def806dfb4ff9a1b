//! Names and describes the pools of the driver's stream-ordered allocator.

use std::ops::BitOr;

/// A pool of the driver, by its raw handle (`CUmemoryPool` as a number).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is the handle alone")]
pub struct MemPool(pub u64);

/// Where the memory of a pool lies (`CUmemLocation`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::exhaustive_enums, reason = "a driver and a layer must know each place")]
pub enum MemLocation {
    /// On the driver's device.
    #[default]
    Device,
    /// On the host, on any NUMA node (since CUDA 13.0).
    Host,
    /// On this NUMA node of the host (since CUDA 12.2).
    HostNuma(i32),
    /// On the NUMA node next to the calling thread. CUDA knows this location, but refuses pools there.
    HostNumaCurrent,
}

impl MemLocation {
    /// Converts the type and the id of a location, as CUDA reports them for a pool of the driver's device.
    /// Returns `None` for a location that this version of millpond does not know.
    pub const fn from_cuda(kind: u64, id: u64) -> Option<Self> {
        match kind {
            1 => Some(Self::Device),
            2 => Some(Self::Host),
            3 => Some(Self::HostNuma(id as i32)),
            4 => Some(Self::HostNumaCurrent),
            _ => None,
        }
    }

    /// Returns CUDA's number of the location's type (`CUmemLocationType`).
    pub const fn cuda_type(self) -> u32 {
        match self {
            Self::Device => 1,
            Self::Host => 2,
            Self::HostNuma(_) => 3,
            Self::HostNumaCurrent => 4,
        }
    }

    /// Returns whether the location is on the host.
    pub const fn is_host(self) -> bool {
        !matches!(self, Self::Device)
    }
}

/// The kind of a pool's memory (`CUmemAllocationType`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::exhaustive_enums, reason = "a driver and a layer must know each kind")]
pub enum MemAllocationType {
    /// The memory stays at its location.
    #[default]
    Pinned,
    /// The memory moves between host and device (since CUDA 13.0).
    Managed,
}

impl MemAllocationType {
    /// Returns CUDA's number of the kind.
    pub const fn cuda_number(self) -> u32 {
        match self {
            Self::Pinned => 1,
            Self::Managed => 2,
        }
    }
}

/// A set of kinds of handles (`CUmemAllocationHandleType`). A pool is exported to other processes through
/// such a handle.
///
/// ```
/// use millpond_core::driver::HandleTypes;
///
/// let both = HandleTypes::POSIX_FD | HandleTypes::FABRIC;
/// assert!(both.contains(HandleTypes::FABRIC) && !HandleTypes::POSIX_FD.contains(both));
/// assert_eq!(HandleTypes::from_bits(both.bits()), both);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HandleTypes(u32);

impl HandleTypes {
    /// No handles: the pool is for this process alone.
    pub const NONE: Self = Self(0);
    /// POSIX file descriptors.
    pub const POSIX_FD: Self = Self(1);
    /// Windows handles.
    pub const WIN32: Self = Self(2);
    /// Kernel-mode Windows handles.
    pub const WIN32_KMT: Self = Self(4);
    /// Fabric handles, which other machines can import (since CUDA 12.3).
    pub const FABRIC: Self = Self(8);

    /// Returns the set whose bits in CUDA are `bits`.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the bits of the set in CUDA.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the set is empty.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the set contains all kinds of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for HandleTypes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The properties of a new pool (`CUmemPoolProps`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct MemPoolProps {
    /// Where the memory lies.
    pub location: MemLocation,
    /// The kind of the memory.
    pub kind: MemAllocationType,
    /// The kinds of handles through which other processes can import the pool. Managed memory supports none.
    pub handles: HandleTypes,
    /// The most bytes that the pool may hold; 0 for no limit (since CUDA 12.2, not for managed memory).
    pub max_bytes: u64,
    /// Whether the device's decompression engine can use the memory (since CUDA 12.8).
    pub hw_decompress: bool,
}

impl MemPoolProps {
    crate::setters! {
        location: MemLocation,
        kind: MemAllocationType,
        handles: HandleTypes,
        max_bytes: u64,
        hw_decompress: bool,
    }
}

/// An attribute of a driver's pool (`CUmemPool_attribute`).
///
/// The attributes from [`AllocationType`](Self::AllocationType) on are read-only. CUDA knows them since
/// version 13.2. An older driver returns [`DriverError::INVALID_VALUE`](super::DriverError::INVALID_VALUE).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MemPoolAttribute {
    /// Whether the pool may reuse memory that another stream freed, if an event dependency orders the free
    /// before the request (0 or 1).
    ReuseFollowEventDependencies,
    /// Whether the pool may reuse memory whose free has completed on the device (0 or 1).
    ReuseAllowOpportunistic,
    /// Whether the pool may insert dependencies between streams to reuse memory (0 or 1).
    ReuseAllowInternalDependencies,
    /// The bytes that the pool keeps when a stream, an event or the device is synchronised. The pool gives
    /// back memory beyond these bytes.
    ReleaseThreshold,
    /// The bytes that the pool holds now; read-only.
    ReservedMemCurrent,
    /// The peak of the bytes that the pool held. If it is set to 0, it restarts from the bytes that the pool
    /// holds now.
    ReservedMemHigh,
    /// The live bytes now; read-only.
    UsedMemCurrent,
    /// The peak of live bytes. If it is set to 0, it restarts from the live bytes now.
    UsedMemHigh,
    /// CUDA's number of the [`MemAllocationType`].
    AllocationType,
    /// The bits of the [`HandleTypes`]; 0 for an imported pool.
    ExportHandleTypes,
    /// The id of the location: the number of the device or of the NUMA node.
    LocationId,
    /// CUDA's number of the location's type; see [`MemLocation::from_cuda`].
    LocationType,
    /// The most bytes the pool may hold; 0 for no limit.
    MaxPoolSize,
    /// Whether the decompression engine can use the memory (0 or 1).
    HwDecompressEnabled,
}

/// Describes an allocation of an exported pool to the process that imported the pool. The 64 bytes are opaque
/// (`CUmemPoolPtrExportData`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "CUDA fixes its bytes")]
pub struct MemPoolPtrData(pub [u8; 64]);
