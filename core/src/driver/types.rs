//! The values that driver calls take and return.

/// Free and total memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(clippy::exhaustive_structs, reason = "free and total is all that CUDA knows")]
pub struct MemoryInfo {
    /// Free bytes.
    pub free: u64,
    /// Total bytes.
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
    /// Whether the device supports stream-ordered allocation and its pools (0 or 1).
    MemoryPoolsSupported,
    /// Whether the device supports virtual memory management (0 or 1).
    VirtualMemoryManagementSupported,
    /// Whether host and device may use managed memory at the same time (0 or 1).
    ConcurrentManagedAccess,
    /// Whether the device can access pageable host memory (0 or 1).
    PageableMemoryAccess,
    /// Whether the device shares its memory with the host (0 or 1).
    Integrated,
    /// Whether the host's memory can be mapped into the device's address space (0 or 1).
    CanMapHostMemory,
    /// Whether the device supports legacy IPC of memory and events (0 or 1).
    IpcEventSupported,
    /// Whether physical memory can be shared through POSIX file descriptors (0 or 1).
    PosixFdHandlesSupported,
    /// Whether other hardware can access physical memory through GPUDirect RDMA, if the memory is made with
    /// [`PhysicalProps::rdma`] (0 or 1).
    RdmaOfPhysicalMemorySupported,
    /// The bits of [`HandleTypes`](super::HandleTypes): the kinds of handles through which pools can be
    /// exported.
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

/// How a stream behaves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct StreamFlags {
    /// Whether the stream runs without synchronising with the legacy default stream.
    pub non_blocking: bool,
    /// The priority. Work of streams with lower numbers runs first; 0 is the default.
    pub priority: i32,
}

impl StreamFlags {
    /// A stream that does not synchronise with the legacy default stream.
    pub const NON_BLOCKING: Self = Self { non_blocking: true, priority: 0 };
    /// A stream that synchronises with the legacy default stream; CUDA's default.
    pub const BLOCKING: Self = Self { non_blocking: false, priority: 0 };

    crate::setters! { non_blocking: bool, priority: i32 }
}

/// An event, by its raw handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is the handle alone")]
pub struct Event(pub u64);

/// The properties of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct EventFlags {
    /// Whether each record of the event also stores the time. This makes records slower.
    pub timing: bool,
    /// Whether a thread that waits for the event sleeps instead of spinning.
    pub blocking_sync: bool,
}

impl EventFlags {
    crate::setters! { timing: bool, blocking_sync: bool }
}

/// Physical memory without an address, by its raw handle.
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

/// The access that a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know each, and CUDA fixes them")]
pub enum AccessFlags {
    /// No access.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// Advice on managed memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MemAdvice {
    /// Keep the memory on the device if possible.
    PreferDevice,
    /// Keep the memory on the host if possible.
    PreferHost,
    /// The memory is mostly read.
    ReadMostly,
    /// The device will access the memory, so keep it mapped there.
    AccessedByDevice,
}

/// The options of pinned host memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct HostFlags {
    /// Whether the memory is pinned for every context.
    pub portable: bool,
    /// Whether the memory is mapped into the device's address space.
    pub mapped: bool,
    /// Whether the memory is write-combined, which makes reads by the host slow.
    pub write_combined: bool,
}

impl HostFlags {
    crate::setters! { portable: bool, mapped: bool, write_combined: bool }
}

/// An address in host memory. It is a number, so that threads can pass it on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is the address alone")]
pub struct HostPtr(pub usize);

impl HostPtr {
    /// Returns the address as a pointer.
    pub fn as_mut_ptr(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// CUDA's handle through which another process opens an allocation. The 64 bytes are opaque.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "CUDA fixes its bytes")]
pub struct IpcMemHandle(pub [u8; 64]);

/// The capture mode of a capture or of a thread. The mode of a capture and the mode of a thread together
/// decide which driver calls the capture forbids to the thread (`CUstreamCaptureMode`).
///
/// While a graph is captured, some driver calls are unsafe: allocating and freeing plain memory, waiting for
/// streams and events, and querying streams and events. A capture can forbid these calls to a thread. If the
/// thread makes such a call, the driver refuses the call, and ends the captures that forbid it. A capture
/// forbids the call if neither the capture nor the thread is relaxed, and one of these is true:
/// - the thread itself began the capture;
/// - the capture and the thread are both global.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know each, and CUDA fixes them")]
pub enum CaptureMode {
    /// A capture in this mode forbids unsafe calls to all threads in this mode, and to the thread that began
    /// it. Each thread starts in this mode, and `torch.cuda.graph` uses it.
    #[default]
    Global,
    /// A capture in this mode forbids unsafe calls only to the thread that began it.
    ThreadLocal,
    /// A capture in this mode forbids nothing. Nothing is forbidden to a thread in this mode.
    Relaxed,
}
