//! The pools of the driver's stream-ordered allocator, as calls name and describe them.

use std::ops::BitOr;

/// A pool of the driver, by its raw handle (`CUmemoryPool` as a number).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemPool(pub u64);

/// Where the memory of a pool lies (`CUmemLocation`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemLocation {
    /// On the driver's device.
    #[default]
    Device,
    /// On the host, on any NUMA node (CUDA 13.0).
    Host,
    /// On this NUMA node of the host (CUDA 12.2).
    HostNuma(i32),
    /// On the NUMA node next to the calling thread. CUDA knows it, and refuses pools there.
    HostNumaCurrent,
}

impl MemLocation {
    /// The location of a type and an id as CUDA reports them for a pool of the driver's device; `None` for a
    /// location that this version does not name.
    pub const fn from_cuda(kind: u64, id: u64) -> Option<Self> {
        match kind {
            1 => Some(Self::Device),
            2 => Some(Self::Host),
            3 => Some(Self::HostNuma(id as i32)),
            4 => Some(Self::HostNumaCurrent),
            _ => None,
        }
    }

    /// CUDA's number of the type (`CUmemLocationType`).
    pub const fn cuda_type(self) -> u32 {
        match self {
            Self::Device => 1,
            Self::Host => 2,
            Self::HostNuma(_) => 3,
            Self::HostNumaCurrent => 4,
        }
    }

    /// Whether it is on the host.
    pub const fn is_host(self) -> bool {
        !matches!(self, Self::Device)
    }
}

/// The kind of a pool's memory (`CUmemAllocationType`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemAllocationType {
    /// It stays where it is.
    #[default]
    Pinned,
    /// It moves between host and device (CUDA 13.0).
    Managed,
}

impl MemAllocationType {
    /// CUDA's number.
    pub const fn cuda_number(self) -> u32 {
        match self {
            Self::Pinned => 1,
            Self::Managed => 2,
        }
    }
}

/// The kinds of handles by which a pool can be exported to other processes
/// (`CUmemAllocationHandleType`): any number of them.
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
    /// Handles of Windows.
    pub const WIN32: Self = Self(2);
    /// Kernel-mode handles of Windows.
    pub const WIN32_KMT: Self = Self(4);
    /// Fabric handles, which reach other machines (CUDA 12.3).
    pub const FABRIC: Self = Self(8);

    /// The kinds of CUDA's bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// CUDA's bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether there are none.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` are among them.
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

/// How a pool of the driver is made (`CUmemPoolProps`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MemPoolProps {
    /// Where its memory lies.
    pub location: MemLocation,
    /// The kind of its memory.
    pub kind: MemAllocationType,
    /// The handles by which other processes import it. Managed memory has none.
    pub handles: HandleTypes,
    /// The most bytes it may hold; 0 for no limit (CUDA 12.2, and not for managed memory).
    pub max_bytes: u64,
    /// The device's decompression engine can use its memory (CUDA 12.8).
    pub hw_decompress: bool,
}

/// An attribute of a driver's pool (`CUmemPool_attribute`).
///
/// Those from [`AllocationType`](Self::AllocationType) on are read-only, and known since CUDA 13.2: an older
/// driver answers [`DriverError::INVALID_VALUE`](super::DriverError::INVALID_VALUE).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemPoolAttribute {
    /// Reuse memory of another stream that an event dependency orders before the request (0 or 1).
    ReuseFollowEventDependencies,
    /// Reuse of completed frees (0 or 1).
    ReuseAllowOpportunistic,
    /// Reuse by inserting dependencies (0 or 1).
    ReuseAllowInternalDependencies,
    /// Bytes held before memory is given back at the next synchronisation.
    ReleaseThreshold,
    /// Bytes held now; read-only.
    ReservedMemCurrent,
    /// The most bytes held; setting it to 0 starts again from what is held now.
    ReservedMemHigh,
    /// Bytes handed out now; read-only.
    UsedMemCurrent,
    /// The most bytes handed out; setting it to 0 starts again from what is handed out now.
    UsedMemHigh,
    /// The number of the [`MemAllocationType`].
    AllocationType,
    /// The bits of the [`HandleTypes`]; 0 for an imported pool.
    ExportHandleTypes,
    /// The id of the location: the device's number, or the NUMA node's.
    LocationId,
    /// The number of the location's type; see [`MemLocation::from_cuda`].
    LocationType,
    /// The most bytes it may hold; 0 for no limit.
    MaxPoolSize,
    /// Whether the decompression engine can use it (0 or 1).
    HwDecompressEnabled,
}

/// An allocation of an exported pool, for the process that imported the pool: 64 opaque bytes
/// (`CUmemPoolPtrExportData`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemPoolPtrData(pub [u8; 64]);
