//! The values that driver calls take and return.

/// The free and total memory of a device or of the host, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(clippy::exhaustive_structs, reason = "free and total is all that CUDA knows")]
pub struct MemoryInfo {
    /// The number of free bytes.
    pub free: u64,
    /// The number of bytes that the device has in all.
    pub total: u64,
}

/// An attribute of a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DeviceAttribute {
    /// The number of multiprocessors.
    MultiprocessorCount,
    /// The major number of the compute capability.
    ComputeCapabilityMajor,
    /// The minor number of the compute capability.
    ComputeCapabilityMinor,
    /// Whether the device supports stream-ordered allocation from CUDA's memory pools (0 or 1).
    MemoryPoolsSupported,
    /// Whether the device supports virtual memory management (0 or 1).
    VirtualMemoryManagementSupported,
    /// Whether host and device may use managed memory at the same time (0 or 1).
    ConcurrentManagedAccess,
    /// Whether the device can access pageable host memory (0 or 1).
    PageableMemoryAccess,
    /// Whether the device shares its memory with the host (0 or 1). With 0, a pool relies on the exact free
    /// memory of [`mem_get_info`](super::Driver::mem_get_info). With 1, or if the driver does not know the
    /// attribute, a pool may try to allocate more memory than is free.
    Integrated,
    /// Whether the host's memory can be mapped into the device's address space (0 or 1).
    CanMapHostMemory,
    /// Whether the device supports legacy IPC of memory and events (0 or 1).
    IpcEventSupported,
    /// Whether physical memory can be shared through POSIX file descriptors (0 or 1).
    PosixFdHandlesSupported,
    /// Whether other hardware can access physical memory through GPUDirect RDMA (0 or 1). The memory must be
    /// created with [`PhysicalProps::rdma`].
    RdmaOfPhysicalMemorySupported,
    /// The handle types through which pools can be exported, as the bits of
    /// [`HandleTypes`](super::HandleTypes). Fabric handles are included only if this process sees a channel
    /// of IMEX.
    MemPoolSupportedHandleTypes,
}

/// The kind of memory that a pointer points into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Device memory.
    Device,
    /// Managed memory.
    Managed,
    /// Pinned or registered host memory.
    Host,
    /// Memory that the driver does not know.
    Unknown,
}

/// The properties of a new stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct StreamFlags {
    /// Whether the stream runs without synchronising with the legacy default stream.
    pub non_blocking: bool,
    /// The priority of the stream. Work of streams with lower numbers runs first; 0 is the default.
    pub priority: i32,
}

impl StreamFlags {
    /// A stream that does not synchronise with the legacy default stream.
    pub const NON_BLOCKING: Self = Self { non_blocking: true, priority: 0 };
    /// A stream that synchronises with the legacy default stream; CUDA's default.
    pub const BLOCKING: Self = Self { non_blocking: false, priority: 0 };

    crate::setters! { non_blocking: bool, priority: i32 }
}

/// The raw handle of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is the handle alone")]
pub struct Event(pub u64);

/// The properties of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct EventFlags {
    /// Whether each record of the event also stores the time. This makes records slower.
    pub timing: bool,
    /// Whether a waiting thread sleeps. If this is `false`, the thread spins.
    pub blocking_sync: bool,
}

impl EventFlags {
    crate::setters! { timing: bool, blocking_sync: bool }
}

/// The raw handle of physical memory. Physical memory has no address until it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is the handle alone")]
pub struct PhysicalHandle(pub u64);

/// The properties of new physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct PhysicalProps {
    /// Whether the memory can be shared with other processes through POSIX file descriptors.
    pub share_fd: bool,
    /// Whether other hardware can access the memory (GPUDirect RDMA).
    pub rdma: bool,
}

impl PhysicalProps {
    crate::setters! { share_fd: bool, rdma: bool }
}

/// The access that a device has to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know each, and CUDA fixes them")]
pub enum AccessFlags {
    /// The device cannot access the memory.
    None,
    /// The device can read the memory.
    Read,
    /// The device can read and write the memory.
    ReadWrite,
}

/// Tells the driver how managed memory will be used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MemAdvice {
    /// Keep the memory on the device if possible.
    PreferDevice,
    /// Keep the memory on the host if possible.
    PreferHost,
    /// Most accesses to the memory are reads.
    ReadMostly,
    /// The device will access the memory, so the driver keeps the memory mapped in the device's address
    /// space.
    AccessedByDevice,
}

/// The options of pinned host memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct HostFlags {
    /// Whether the memory counts as pinned in every CUDA context.
    pub portable: bool,
    /// Whether the memory is mapped into the device's address space.
    pub mapped: bool,
    /// Whether the memory is write-combined, which makes reads by the host slow.
    pub write_combined: bool,
}

impl HostFlags {
    crate::setters! { portable: bool, mapped: bool, write_combined: bool }
}

/// An address in host memory. The address is a number, so that threads can pass it to each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is the address alone")]
pub struct HostPtr(pub usize);

impl HostPtr {
    /// Returns the address as a pointer.
    pub fn as_mut_ptr(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// CUDA's handle with which another process opens an allocation. The 64 bytes are opaque.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "CUDA fixes its bytes")]
pub struct IpcMemHandle(pub [u8; 64]);

/// The capture mode of a capture or of a thread (`CUstreamCaptureMode`). The mode of a capture and the mode
/// of a thread together decide which driver calls the thread must not make during the capture.
///
/// Some driver calls are unsafe while a graph is captured: allocating and freeing plain memory, waiting for
/// streams and events, and querying streams and events. A capture can forbid unsafe calls to a thread. If the
/// thread makes such a call, the driver refuses the call, and ends the captures that forbid it.
///
/// A relaxed capture forbids nothing, and nothing is forbidden to a relaxed thread. In all other cases, a
/// capture forbids unsafe calls to a thread if one of these is true:
/// - the thread itself began the capture;
/// - the capture and the thread are both global.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know each, and CUDA fixes them")]
pub enum CaptureMode {
    /// A global capture forbids unsafe calls to all global threads, and to the thread that began the capture
    /// unless that thread is relaxed. Each thread starts in this mode. The captures of `torch.cuda.graph` are
    /// global.
    #[default]
    Global,
    /// A thread-local capture forbids unsafe calls only to the thread that began the capture.
    ThreadLocal,
    /// A relaxed capture forbids nothing. Nothing is forbidden to a relaxed thread.
    Relaxed,
}
