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
    /// Whether the host's memory can be mapped into the device's addresses (0 or 1).
    CanMapHostMemory,
    /// Whether the device supports legacy IPC of memory and events (0 or 1).
    IpcEventSupported,
    /// Whether physical memory can be shared through POSIX file descriptors (0 or 1).
    PosixFdHandlesSupported,
    /// Whether other hardware can access physical memory that is made for it, by GPUDirect RDMA (0 or 1).
    RdmaOfPhysicalMemorySupported,
    /// The kinds of handles by which pools can be exported: the bits of [`HandleTypes`](super::HandleTypes).
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
    /// Whether the stream does not synchronise with the legacy default stream.
    pub non_blocking: bool,
    /// Lower numbers run first; 0 is the default.
    pub priority: i32,
}

impl StreamFlags {
    /// Does not synchronise with the legacy default stream.
    pub const NON_BLOCKING: Self = Self { non_blocking: true, priority: 0 };
    /// Synchronises with the legacy default stream; CUDA's default.
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
    /// Whether each record takes the time; slower.
    pub timing: bool,
    /// Whether a waiting host thread sleeps instead of spinning.
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
    /// Whether it can be shared with other processes through POSIX file descriptors.
    pub share_fd: bool,
    /// Whether other hardware can access it (GPUDirect RDMA).
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
    /// Keep it on the device if possible.
    PreferDevice,
    /// Keep it on the host if possible.
    PreferHost,
    /// It is mostly read.
    ReadMostly,
    /// The device will use it: keep it mapped there.
    AccessedByDevice,
}

/// The options of pinned host memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct HostFlags {
    /// Whether it is pinned for every context.
    pub portable: bool,
    /// Whether it is mapped into the device's address space.
    pub mapped: bool,
    /// Whether it is write-combined: slow for the host to read.
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

/// CUDA's handle by which another process opens an allocation: 64 opaque bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::exhaustive_structs, reason = "CUDA fixes its bytes")]
pub struct IpcMemHandle(pub [u8; 64]);

/// The mode of a capture or of a thread. It decides which unsafe calls a capture forbids to a thread
/// (`CUstreamCaptureMode`).
///
/// Some driver calls are unsafe while a graph is captured: allocating and freeing plain memory, waiting for
/// streams and events, and querying them. A capture can forbid such a call to a thread. The driver then
/// refuses the call, and ends the captures that forbid it. A capture forbids the call if neither the capture
/// nor the thread is relaxed, and one of these is true:
/// - the thread began the capture itself;
/// - the capture and the thread are both global.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(clippy::exhaustive_enums, reason = "a driver must know each, and CUDA fixes them")]
pub enum CaptureMode {
    /// Concerns unsafe calls of all threads. Each thread starts in this mode, and `torch.cuda.graph` uses it.
    #[default]
    Global,
    /// Concerns only unsafe calls of the capturing thread.
    ThreadLocal,
    /// Concerns no unsafe calls.
    Relaxed,
}
