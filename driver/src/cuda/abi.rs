//! The CUDA constants and structures that millpond uses.
//!
//! Handles, device pointers and `size_t` are all `u64`; `library` refuses 32-bit hosts. The tests compare
//! everything with cudarc's generated bindings.

use std::ffi::c_void;

use millpond_core::driver::{
    AccessFlags, CaptureMode, DeviceAttribute, EventFlags, HostFlags, MemLocation, MemPoolAttribute,
    MemPoolProps, PhysicalProps,
};

pub(super) const CU_DEVICE_CPU: i32 = -1;
pub(super) const CU_MEM_ATTACH_GLOBAL: u32 = 1;
pub(super) const CU_STREAM_NON_BLOCKING: u32 = 1;
pub(super) const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: u32 = 1;
pub(super) const CU_MEM_ALLOC_GRANULARITY_MINIMUM: u32 = 0;

pub(super) const CU_POINTER_ATTRIBUTE_MEMORY_TYPE: u32 = 2;
pub(super) const CU_POINTER_ATTRIBUTE_IS_MANAGED: u32 = 8;
pub(super) const CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: u32 = 17;
pub(super) const CU_MEMORYTYPE_HOST: u32 = 1;

pub(super) const CU_MEM_ADVISE_SET_READ_MOSTLY: u32 = 1;
pub(super) const CU_MEM_ADVISE_SET_PREFERRED_LOCATION: u32 = 3;
pub(super) const CU_MEM_ADVISE_SET_ACCESSED_BY: u32 = 5;

pub(super) const CU_JIT_ERROR_LOG_BUFFER: u32 = 5;
pub(super) const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: u32 = 6;

const CU_MEM_LOCATION_TYPE_DEVICE: u32 = 1;
const CU_MEM_LOCATION_TYPE_HOST: u32 = 2;
const CU_MEM_ALLOCATION_TYPE_PINNED: u32 = 1;
pub(super) const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: u32 = 1;
pub(super) const CU_MEM_HANDLE_TYPE_FABRIC: u32 = 8;
const CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS: u16 = 2;

const CU_EVENT_BLOCKING_SYNC: u32 = 1;
const CU_EVENT_DISABLE_TIMING: u32 = 2;

const CU_MEMHOST_PORTABLE: u32 = 1;
const CU_MEMHOST_DEVICEMAP: u32 = 2;
const CU_MEMHOSTALLOC_WRITECOMBINED: u32 = 4;

/// `CUmemLocation`: the place of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    kind: u32,
    id: i32,
}

impl Location {
    pub(super) const HOST: Self = Self { kind: CU_MEM_LOCATION_TYPE_HOST, id: 0 };

    pub(super) const fn device(device: i32) -> Self {
        Self { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: device }
    }

    /// The location of a pool, seen from the driver of this device.
    pub(super) const fn of(location: MemLocation, device: i32) -> Self {
        let id = match location {
            MemLocation::Device => device,
            MemLocation::HostNuma(node) => node,
            MemLocation::Host | MemLocation::HostNumaCurrent => 0,
        };
        Self { kind: location.cuda_type(), id }
    }
}

/// `CUmemAllocationProp`: the properties of physical memory.
#[repr(C)]
#[derive(Debug)]
pub(super) struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32_metadata: *mut c_void,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl AllocationProp {
    /// Device memory.
    pub(super) const fn on_device(device: i32, props: PhysicalProps) -> Self {
        Self {
            kind: CU_MEM_ALLOCATION_TYPE_PINNED,
            handle_types: if props.share_fd { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR } else { 0 },
            location: Location::device(device),
            win32_metadata: std::ptr::null_mut(),
            compression: 0,
            rdma: props.rdma as u8,
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// `CUmemAccessDesc`: one device's access to a mapping.
#[repr(C)]
#[derive(Debug)]
pub(super) struct AccessDesc {
    pub(super) location: Location,
    pub(super) flags: u32,
}

/// `CUmemPoolProps`: the properties of a pool. The newest fields use bytes that older versions reserve.
#[repr(C)]
#[derive(Debug)]
pub(super) struct PoolProps {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32_attributes: *mut c_void,
    max_size: u64,
    usage: u16,
    reserved: [u8; 54],
}

impl PoolProps {
    /// The properties of a pool of this device's driver.
    pub(super) const fn new(device: i32, props: MemPoolProps) -> Self {
        Self {
            kind: props.kind.cuda_number(),
            handle_types: props.handles.bits(),
            location: Location::of(props.location, device),
            win32_attributes: std::ptr::null_mut(),
            max_size: props.max_bytes,
            usage: if props.hw_decompress { CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS } else { 0 },
            reserved: [0; 54],
        }
    }
}

/// `CUmemPoolPtrExportData`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PtrExportData(pub(super) [u8; 64]);

/// `CUipcMemHandle`, which CUDA takes by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// `CUdevice_attribute`; `None` for an attribute that this version does not know.
pub(super) const fn device_attribute(attribute: DeviceAttribute) -> Option<u32> {
    Some(match attribute {
        DeviceAttribute::MultiprocessorCount => 16,
        DeviceAttribute::Integrated => 18,
        DeviceAttribute::CanMapHostMemory => 19,
        DeviceAttribute::ComputeCapabilityMajor => 75,
        DeviceAttribute::ComputeCapabilityMinor => 76,
        DeviceAttribute::PageableMemoryAccess => 88,
        DeviceAttribute::ConcurrentManagedAccess => 89,
        DeviceAttribute::VirtualMemoryManagementSupported => 102,
        DeviceAttribute::PosixFdHandlesSupported => 103,
        DeviceAttribute::RdmaOfPhysicalMemorySupported => 110,
        DeviceAttribute::MemoryPoolsSupported => 115,
        DeviceAttribute::MemPoolSupportedHandleTypes => 119,
        DeviceAttribute::IpcEventSupported => 125,
        _ => return None,
    })
}

/// `CUmemPool_attribute`; `None` for an attribute that this version does not know.
pub(super) const fn pool_attribute(attribute: MemPoolAttribute) -> Option<u32> {
    Some(match attribute {
        MemPoolAttribute::ReuseFollowEventDependencies => 1,
        MemPoolAttribute::ReuseAllowOpportunistic => 2,
        MemPoolAttribute::ReuseAllowInternalDependencies => 3,
        MemPoolAttribute::ReleaseThreshold => 4,
        MemPoolAttribute::ReservedMemCurrent => 5,
        MemPoolAttribute::ReservedMemHigh => 6,
        MemPoolAttribute::UsedMemCurrent => 7,
        MemPoolAttribute::UsedMemHigh => 8,
        MemPoolAttribute::AllocationType => 9,
        MemPoolAttribute::ExportHandleTypes => 10,
        MemPoolAttribute::LocationId => 11,
        MemPoolAttribute::LocationType => 12,
        MemPoolAttribute::MaxPoolSize => 13,
        MemPoolAttribute::HwDecompressEnabled => 14,
        _ => return None,
    })
}

/// Whether CUDA passes this pool attribute as an `int` or an enumeration; the others are 64 bits wide.
pub(super) const fn pool_attribute_is_int(attribute: u32) -> bool {
    matches!(attribute, 1..=3 | 9..=12 | 14)
}

/// `CUmemAccess_flags`.
pub(super) const fn access_flags(access: AccessFlags) -> u32 {
    match access {
        AccessFlags::None => 0,
        AccessFlags::Read => 1,
        AccessFlags::ReadWrite => 3,
    }
}

/// The access with CUDA's number; there are no other numbers.
pub(super) const fn access_flags_from(number: u32) -> AccessFlags {
    match number {
        0 => AccessFlags::None,
        1 => AccessFlags::Read,
        _ => AccessFlags::ReadWrite,
    }
}

/// The `CUgraphNodeType`s of the nodes that allocate and free memory.
pub(super) const GRAPH_NODES_OF_MEMORY: [u32; 2] = [10, 11];

/// `CUstreamCaptureMode`.
pub(super) const fn capture_mode(mode: CaptureMode) -> u32 {
    match mode {
        CaptureMode::Global => 0,
        CaptureMode::ThreadLocal => 1,
        CaptureMode::Relaxed => 2,
    }
}

/// The mode with CUDA's number; there are no other numbers.
pub(super) const fn capture_mode_from(number: u32) -> CaptureMode {
    match number {
        0 => CaptureMode::Global,
        1 => CaptureMode::ThreadLocal,
        _ => CaptureMode::Relaxed,
    }
}

/// `CUevent_flags`.
pub(super) const fn event_flags(flags: EventFlags) -> u32 {
    let timing = if flags.timing { 0 } else { CU_EVENT_DISABLE_TIMING };
    let sync = if flags.blocking_sync { CU_EVENT_BLOCKING_SYNC } else { 0 };
    timing | sync
}

/// The flags of `cuMemHostAlloc`. `cuMemHostRegister` uses the same flags, except that the write-combining
/// bit has another meaning there.
pub(super) const fn host_flags(flags: HostFlags) -> u32 {
    let portable = if flags.portable { CU_MEMHOST_PORTABLE } else { 0 };
    let mapped = if flags.mapped { CU_MEMHOST_DEVICEMAP } else { 0 };
    let combined = if flags.write_combined { CU_MEMHOSTALLOC_WRITECOMBINED } else { 0 };
    portable | mapped | combined
}

#[cfg(all(test, feature = "cudarc"))]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use cudarc::driver::sys;

    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_generated_bindings() {
        macro_rules! same {
            ($($ours:ty, $theirs:ty;)*) => {$(
                assert_eq!(size_of::<$ours>(), size_of::<$theirs>(), stringify!($ours));
                assert_eq!(align_of::<$ours>(), align_of::<$theirs>(), stringify!($ours));
            )*};
        }
        same! {
            Location, sys::CUmemLocation;
            AllocationProp, sys::CUmemAllocationProp;
            AccessDesc, sys::CUmemAccessDesc;
            PoolProps, sys::CUmemPoolProps;
            PtrExportData, sys::CUmemPoolPtrExportData;
        }
        assert_eq!(size_of::<IpcHandle>(), size_of::<sys::CUipcMemHandle>());
        assert_eq!(size_of::<u64>(), size_of::<sys::CUdeviceptr>());
        assert_eq!(size_of::<u64>(), size_of::<sys::CUstream>());
        assert_eq!(size_of::<u64>(), size_of::<sys::CUmemGenericAllocationHandle>());
        assert_eq!(size_of::<i32>(), size_of::<sys::CUdevice>());
        assert_eq!(size_of::<i32>(), size_of::<sys::CUresult>());
    }

    #[test]
    fn fields_stand_where_the_generated_bindings_have_them() {
        macro_rules! same {
            ($ours:ty, $theirs:ty: $($a:ident = $b:ident),*) => {$(
                assert_eq!(offset_of!($ours, $a), offset_of!($theirs, $b), stringify!($ours.$a));
            )*};
        }
        // The size check above leaves only the other half for the identifier.
        same!(Location, sys::CUmemLocation: kind = type_);
        same!(AllocationProp, sys::CUmemAllocationProp: kind = type_, handle_types = requestedHandleTypes);
        same!(AllocationProp, sys::CUmemAllocationProp: location = location, compression = allocFlags);
        same!(AllocationProp, sys::CUmemAllocationProp: win32_metadata = win32HandleMetaData);
        same!(AccessDesc, sys::CUmemAccessDesc: location = location, flags = flags);
        same!(PoolProps, sys::CUmemPoolProps: kind = allocType, handle_types = handleTypes);
        same!(PoolProps, sys::CUmemPoolProps: location = location);
        same!(PoolProps, sys::CUmemPoolProps: win32_attributes = win32SecurityAttributes);
        // These fields are reserved before 12.2. Without a feature, the version depends on the installation.
        #[cfg(any(feature = "cuda-12080", feature = "cuda-13000", feature = "cuda-13040"))]
        same!(PoolProps, sys::CUmemPoolProps: max_size = maxSize, usage = usage);
    }

    #[test]
    fn flags_of_an_allocation_stand_where_the_generated_bindings_have_them() {
        type Flags = sys::CUmemAllocationProp_st__bindgen_ty_1;
        let start = offset_of!(AllocationProp, compression);
        assert_eq!(offset_of!(AllocationProp, rdma) - start, offset_of!(Flags, gpuDirectRDMACapable));
        assert_eq!(offset_of!(AllocationProp, usage) - start, offset_of!(Flags, usage));
        assert_eq!(size_of::<AllocationProp>() - start, size_of::<Flags>());
    }

    #[test]
    fn numbers_are_those_of_the_generated_bindings() {
        use sys::CUdevice_attribute as Theirs;

        let theirs = |attribute: DeviceAttribute| match attribute {
            DeviceAttribute::MultiprocessorCount => Theirs::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            DeviceAttribute::ComputeCapabilityMajor => Theirs::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            DeviceAttribute::ComputeCapabilityMinor => Theirs::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            DeviceAttribute::MemoryPoolsSupported => Theirs::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
            DeviceAttribute::VirtualMemoryManagementSupported => {
                Theirs::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            }
            DeviceAttribute::MemPoolSupportedHandleTypes => {
                Theirs::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
            }
            DeviceAttribute::ConcurrentManagedAccess => Theirs::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
            DeviceAttribute::PageableMemoryAccess => Theirs::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
            DeviceAttribute::Integrated => Theirs::CU_DEVICE_ATTRIBUTE_INTEGRATED,
            DeviceAttribute::CanMapHostMemory => Theirs::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
            DeviceAttribute::IpcEventSupported => Theirs::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
            DeviceAttribute::PosixFdHandlesSupported => {
                Theirs::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            }
            DeviceAttribute::RdmaOfPhysicalMemorySupported => {
                Theirs::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
            }
            other => panic!("{other:?} has no line in this test"),
        };
        for attribute in [
            DeviceAttribute::MultiprocessorCount,
            DeviceAttribute::ComputeCapabilityMajor,
            DeviceAttribute::ComputeCapabilityMinor,
            DeviceAttribute::MemoryPoolsSupported,
            DeviceAttribute::VirtualMemoryManagementSupported,
            DeviceAttribute::ConcurrentManagedAccess,
            DeviceAttribute::PageableMemoryAccess,
            DeviceAttribute::Integrated,
            DeviceAttribute::CanMapHostMemory,
            DeviceAttribute::IpcEventSupported,
            DeviceAttribute::PosixFdHandlesSupported,
            DeviceAttribute::RdmaOfPhysicalMemorySupported,
            DeviceAttribute::MemPoolSupportedHandleTypes,
        ] {
            assert_eq!(device_attribute(attribute), Some(theirs(attribute) as u32), "{attribute:?}");
        }
    }

    #[test]
    fn pool_attributes_and_flags_are_those_of_the_generated_bindings() {
        use MemPoolAttribute as Ours;
        use sys::CUmemPool_attribute as Theirs;

        for (ours, theirs) in [
            (Ours::ReuseFollowEventDependencies, Theirs::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES),
            (Ours::ReuseAllowOpportunistic, Theirs::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC),
            (Ours::ReuseAllowInternalDependencies, Theirs::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES),
            (Ours::ReleaseThreshold, Theirs::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD),
            (Ours::ReservedMemCurrent, Theirs::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
            (Ours::ReservedMemHigh, Theirs::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
            (Ours::UsedMemCurrent, Theirs::CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
            (Ours::UsedMemHigh, Theirs::CU_MEMPOOL_ATTR_USED_MEM_HIGH),
        ] {
            assert_eq!(pool_attribute(ours), Some(theirs as u32), "{ours:?}");
        }
        let all = HostFlags::default().portable(true).mapped(true).write_combined(true);
        assert_eq!(
            host_flags(all),
            sys::CU_MEMHOSTALLOC_PORTABLE
                | sys::CU_MEMHOSTALLOC_DEVICEMAP
                | sys::CU_MEMHOSTALLOC_WRITECOMBINED
        );
        assert_eq!(event_flags(EventFlags::default()), sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32);
        assert_eq!(
            access_flags(AccessFlags::ReadWrite),
            sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32
        );
        for (ours, theirs) in [
            (CaptureMode::Global, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL),
            (CaptureMode::ThreadLocal, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
            (CaptureMode::Relaxed, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED),
        ] {
            assert_eq!((capture_mode(ours), capture_mode_from(theirs as u32)), (theirs as u32, ours));
        }
        assert_eq!(
            GRAPH_NODES_OF_MEMORY,
            [
                sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC as u32,
                sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE as u32
            ]
        );
        assert_eq!(CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER as u32);
        assert_eq!(
            CU_POINTER_ATTRIBUTE_IS_MANAGED,
            sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as u32
        );
        assert_eq!(
            CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
            sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as u32
        );
    }

    /// Compares the attributes and places that the bindings name since CUDA 13.
    #[cfg(feature = "cuda-13040")]
    #[test]
    fn what_pools_have_since_cuda_13_is_that_of_the_generated_bindings() {
        use MemPoolAttribute as Ours;
        use millpond_core::driver::MemAllocationType;
        use sys::{CUmemAllocationType, CUmemLocationType, CUmemPool_attribute as Theirs};

        for (ours, theirs) in [
            (Ours::AllocationType, Theirs::CU_MEMPOOL_ATTR_ALLOCATION_TYPE),
            (Ours::ExportHandleTypes, Theirs::CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES),
            (Ours::LocationId, Theirs::CU_MEMPOOL_ATTR_LOCATION_ID),
            (Ours::LocationType, Theirs::CU_MEMPOOL_ATTR_LOCATION_TYPE),
            (Ours::MaxPoolSize, Theirs::CU_MEMPOOL_ATTR_MAX_POOL_SIZE),
            (Ours::HwDecompressEnabled, Theirs::CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED),
        ] {
            assert_eq!(pool_attribute(ours), Some(theirs as u32), "{ours:?}");
        }
        for (ours, theirs) in [
            (MemLocation::Device, CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE),
            (MemLocation::Host, CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST),
            (MemLocation::HostNuma(0), CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA),
            (MemLocation::HostNumaCurrent, CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT),
        ] {
            assert_eq!(ours.cuda_type(), theirs as u32, "{ours:?}");
        }
        for (ours, theirs) in [
            (MemAllocationType::Pinned, CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED),
            (MemAllocationType::Managed, CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED),
        ] {
            assert_eq!(ours.cuda_number(), theirs as u32, "{ours:?}");
        }
        assert_eq!(
            u32::from(CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS),
            sys::CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS
        );
    }

    #[test]
    fn handle_types_are_those_of_the_generated_bindings() {
        use millpond_core::driver::HandleTypes as Ours;
        use sys::CUmemAllocationHandleType as Theirs;

        assert_eq!(Ours::NONE.bits(), 0);
        assert_eq!(Ours::POSIX_FD.bits(), Theirs::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0);
        assert_eq!(Ours::WIN32.bits(), Theirs::CU_MEM_HANDLE_TYPE_WIN32.0);
        assert_eq!(Ours::WIN32_KMT.bits(), Theirs::CU_MEM_HANDLE_TYPE_WIN32_KMT.0);
        #[cfg(any(feature = "cuda-12080", feature = "cuda-13000", feature = "cuda-13040"))]
        assert_eq!(Ours::FABRIC.bits(), Theirs::CU_MEM_HANDLE_TYPE_FABRIC.0);
    }

    #[test]
    fn constants_are_those_of_the_generated_bindings() {
        macro_rules! same {
            ($($ours:ident = $theirs:ident;)*) => {$(
                assert_eq!($ours, sys::$theirs::$ours as u32, stringify!($ours));
            )*};
        }
        same! {
            CU_MEM_ATTACH_GLOBAL = CUmemAttach_flags;
            CU_STREAM_NON_BLOCKING = CUstream_flags;
            CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = CUipcMem_flags;
            CU_MEM_ALLOC_GRANULARITY_MINIMUM = CUmemAllocationGranularity_flags;
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE = CUpointer_attribute;
            CU_MEMORYTYPE_HOST = CUmemorytype;
            CU_MEM_ADVISE_SET_READ_MOSTLY = CUmem_advise;
            CU_MEM_ADVISE_SET_PREFERRED_LOCATION = CUmem_advise;
            CU_MEM_ADVISE_SET_ACCESSED_BY = CUmem_advise;
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = CUjit_option;
            CU_MEM_LOCATION_TYPE_DEVICE = CUmemLocationType;
            CU_MEM_ALLOCATION_TYPE_PINNED = CUmemAllocationType;
            CU_EVENT_BLOCKING_SYNC = CUevent_flags;
        }
        let descriptor = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        assert_eq!(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, descriptor.0);
    }
}
