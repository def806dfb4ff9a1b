//! The values that calls of the driver take and return.

/// Free and total memory in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryInfo {
    /// Free bytes.
    pub free: u64,
    /// Bytes that there are.
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
    /// Whether stream-ordered allocation and its pools are there (0 or 1).
    MemoryPoolsSupported,
    /// Whether virtual memory management is there (0 or 1).
    VirtualMemoryManagementSupported,
    /// Whether host and device may use managed memory at the same time (0 or 1).
    ConcurrentManagedAccess,
    /// Whether the device reads pageable host memory (0 or 1).
    PageableMemoryAccess,
    /// Whether the device shares its memory with the host (0 or 1).
    Integrated,
    /// Whether the host's memory can be mapped into the device's addresses (0 or 1).
    CanMapHostMemory,
    /// Whether legacy IPC of memory and events is there (0 or 1).
    IpcEventSupported,
    /// Whether physical memory can be shared through POSIX file descriptors (0 or 1).
    PosixFdHandlesSupported,
    /// Whether other hardware can reach physical memory that is made for it, by GPUDirect RDMA (0 or 1).
    RdmaOfPhysicalMemorySupported,
    /// The kinds of handles that pools can be exported by: the bits of [`HandleTypes`](super::HandleTypes).
    MemPoolSupportedHandleTypes,
}

/// The kind of memory that a pointer points into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
pub struct StreamFlags {
    /// Not synchronised with the legacy default stream.
    pub non_blocking: bool,
    /// Lower numbers run first; 0 is the default.
    pub priority: i32,
}

impl StreamFlags {
    /// Not synchronised with the legacy default stream.
    pub const NON_BLOCKING: Self = Self { non_blocking: true, priority: 0 };
    /// Synchronised with the legacy default stream, as CUDA's default is.
    pub const BLOCKING: Self = Self { non_blocking: false, priority: 0 };
}

/// An event, by its raw handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event(pub u64);

/// The properties of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EventFlags {
    /// Takes a time when recorded; dearer.
    pub timing: bool,
    /// A waiting host thread sleeps instead of spinning.
    pub blocking_sync: bool,
}

/// Physical memory without an address, by its raw handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PhysicalHandle(pub u64);

/// How physical memory is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PhysicalProps {
    /// It can be shared with other processes through POSIX file descriptors.
    pub share_fd: bool,
    /// Other hardware can reach it (GPUDirect RDMA).
    pub rdma: bool,
}

/// The access that a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessFlags {
    /// Nothing.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// Advice on managed memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemAdvice {
    /// It is best kept on the device.
    PreferDevice,
    /// It is best kept on the host.
    PreferHost,
    /// It is mostly read.
    ReadMostly,
    /// The device will use it: keep it mapped there.
    AccessedByDevice,
}

/// How host memory is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HostFlags {
    /// Pinned for every context.
    pub portable: bool,
    /// Mapped into the device's address space.
    pub mapped: bool,
    /// Write-combined: slow for the host to read.
    pub write_combined: bool,
}

/// An address in host memory; a number, so that it may cross threads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostPtr(pub usize);

impl HostPtr {
    /// The address as a pointer.
    pub fn as_mut_ptr(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// CUDA's handle of an allocation for another process: 64 opaque bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpcMemHandle(pub [u8; 64]);

/// Which unsafe calls a capture forbids, and whether a thread is subject to captures (`CUstreamCaptureMode`).
///
/// Some driver calls are unsafe while a graph is captured: allocating and freeing plain memory, waiting for
/// streams and events, asking whether they are done. Such a call is refused, and ends the captures that
/// forbid it. A capture forbids it to a thread if neither the capture nor the thread is relaxed and
/// - the thread began the capture itself, or
/// - the capture and the thread are both global.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CaptureMode {
    /// Unsafe calls of all threads are meant. What a thread has at first, and what `torch.cuda.graph` uses.
    #[default]
    Global,
    /// Unsafe calls of the thread that captures are meant.
    ThreadLocal,
    /// No unsafe calls are meant.
    Relaxed,
}
