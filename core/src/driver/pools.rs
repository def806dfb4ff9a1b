//! Names and describes the pools of the driver's stream-ordered allocator.

use std::fmt;
use std::ops::BitOr;

use crate::DeviceId;

/// The raw handle of a pool of the driver (`CUmemoryPool` as a number).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is the handle alone")]
pub struct MemPool(pub u64);

/// The location of a pool's memory (`CUmemLocation`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::exhaustive_enums, reason = "a driver and a layer must know each place")]
pub enum MemLocation {
    /// The memory of the driver's device.
    #[default]
    Device,
    /// The memory of the host, on any NUMA node (since CUDA 13.0).
    Host,
    /// The memory of one NUMA node of the host (since CUDA 12.2).
    HostNuma(i32),
    /// The memory of the NUMA node that is nearest to the calling thread. CUDA defines this location, but
    /// refuses pools there.
    HostNumaCurrent,
}

impl MemLocation {
    /// Returns the location with CUDA's number `kind` of its type, and with CUDA's `id`. CUDA reports these
    /// numbers for a pool of the driver's device. Returns `None` for a location that this version of millpond
    /// does not know.
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

/// A place from which a pool's memory is accessed (`CUmemLocation`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a driver and a layer must know each place")]
pub enum AccessLocation {
    /// A device.
    Device(DeviceId),
    /// The host, on any NUMA node.
    Host,
    /// One NUMA node of the host.
    HostNuma(i32),
    /// The NUMA node that is nearest to the calling thread.
    HostNumaCurrent,
}

impl AccessLocation {
    /// Returns the device, or `None` for a place on the host.
    pub const fn device(self) -> Option<DeviceId> {
        match self {
            Self::Device(device) => Some(device),
            Self::Host | Self::HostNuma(_) | Self::HostNumaCurrent => None,
        }
    }
}

impl From<DeviceId> for AccessLocation {
    fn from(device: DeviceId) -> Self {
        Self::Device(device)
    }
}

impl fmt::Display for AccessLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => device.fmt(f),
            Self::Host => f.write_str("the host"),
            Self::HostNuma(node) => write!(f, "NUMA node {node} of the host"),
            Self::HostNumaCurrent => f.write_str("the thread's NUMA node of the host"),
        }
    }
}

/// The kind of memory in a pool (`CUmemAllocationType`).
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

/// A set of handle types (`CUmemAllocationHandleType`). A handle of such a type exports a pool to other
/// processes.
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
    /// The empty set of handle types: other processes cannot import the pool.
    pub const NONE: Self = Self(0);
    /// POSIX file descriptors.
    pub const POSIX_FD: Self = Self(1);
    /// Windows handles.
    pub const WIN32: Self = Self(2);
    /// Kernel-mode Windows handles.
    pub const WIN32_KMT: Self = Self(4);
    /// Fabric handles, which other machines can import (since CUDA 12.3).
    pub const FABRIC: Self = Self(8);

    /// Returns the set that CUDA represents by `bits`.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the bits by which CUDA represents the set.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the set is empty.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the set contains all handle types of `other`.
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
    /// The location of the memory.
    pub location: MemLocation,
    /// The kind of the memory.
    pub kind: MemAllocationType,
    /// The handle types through which other processes can import the pool. A pool of managed memory supports
    /// no handles.
    pub handles: HandleTypes,
    /// The most bytes that the pool may hold. With 0, as in CUDA, the system decides: the pool may hold all
    /// memory of its location. CUDA supports a limit since version 12.2, but not for managed memory.
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

/// An attribute of a pool of the driver (`CUmemPool_attribute`).
///
/// The attributes from [`AllocationType`](Self::AllocationType) on are read-only, and need CUDA 13.2. An
/// older driver returns [`DriverError::INVALID_VALUE`](super::DriverError::INVALID_VALUE) for them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MemPoolAttribute {
    /// Whether a stream may reuse memory that another stream freed (0 or 1), if an event dependency orders
    /// the free before the request.
    ReuseFollowEventDependencies,
    /// Whether a stream may reuse memory that another stream freed (0 or 1), if the free has completed on the
    /// device.
    ReuseAllowOpportunistic,
    /// Whether the pool may make one stream wait for another, in order to reuse memory (0 or 1).
    ReuseAllowInternalDependencies,
    /// How many bytes the pool may keep. If the pool holds more when the host waits for a stream, an event or
    /// the device, the pool releases unused memory.
    ReleaseThreshold,
    /// The number of bytes that the pool holds now; read-only.
    ReservedMemCurrent,
    /// The highest number of bytes that the pool has held. Setting this attribute to 0 restarts it from the
    /// bytes that the pool holds now.
    ReservedMemHigh,
    /// The number of live bytes now; read-only.
    UsedMemCurrent,
    /// The highest number of live bytes so far. Setting this attribute to 0 restarts it from the live bytes
    /// now.
    UsedMemHigh,
    /// CUDA's number of the pool's [`MemAllocationType`].
    AllocationType,
    /// The bits of the pool's [`HandleTypes`]; 0 for an imported pool.
    ExportHandleTypes,
    /// The id of the memory's location: the number of the device or of the NUMA node.
    LocationId,
    /// CUDA's number of the type of the memory's location; see [`MemLocation::from_cuda`].
    LocationType,
    /// The most bytes that the pool may hold; 0 for no limit.
    MaxPoolSize,
    /// Whether the device's decompression engine can use the memory (0 or 1).
    HwDecompressEnabled,
}

impl MemPoolAttribute {
    /// Returns whether the attribute counts memory. The driver does not count the memory of imported pools.
    pub const fn is_count(self) -> bool {
        use MemPoolAttribute::{ReservedMemCurrent, ReservedMemHigh, UsedMemCurrent, UsedMemHigh};
        matches!(self, ReservedMemCurrent | ReservedMemHigh | UsedMemCurrent | UsedMemHigh)
    }
}

/// A count of the memory that the device's graphs allocate in their own nodes (`CUgraphMem_attribute`). The
/// pools do not count this memory. All counts are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know each count")]
pub enum GraphMemAttribute {
    /// The bytes that graphs use now; read-only.
    UsedMemCurrent = 0,
    /// The highest number of bytes that graphs used. Setting this attribute to 0 restarts it.
    UsedMemHigh = 1,
    /// The bytes that the driver reserves for graphs now; read-only.
    ReservedMemCurrent = 2,
    /// The highest number of bytes that the driver reserved for graphs. Setting this attribute to 0 restarts
    /// it.
    ReservedMemHigh = 3,
}

/// Describes an allocation of an exported pool (`CUmemPoolPtrExportData`). A process that imported the pool
/// opens the allocation with this value. The 64 bytes are opaque.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "CUDA fixes its bytes")]
pub struct MemPoolPtrData(pub [u8; 64]);

/// A handle with which other processes, also on other machines, import a pool (`CUmemFabricHandle`). The 64
/// bytes are opaque.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "CUDA fixes its bytes")]
pub struct FabricHandle(pub [u8; 64]);
