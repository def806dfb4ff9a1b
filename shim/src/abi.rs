//! CUDA's structures in the arguments of its functions.

use std::ffi::{c_int, c_uint, c_void};

/// `CUmemLocation`: a device, or a place of the host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CUmemAccessDesc`: a device's access to memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: c_int,
}

/// The first fields of `CUmemAllocationProp`: the properties of physical memory.
#[repr(C)]
#[derive(Debug)]
pub struct PhysicalProp {
    pub(crate) kind: c_int,
    pub(crate) handles: c_int,
    pub(crate) location: Location,
    security: *mut c_void,
    compression: u8,
    pub(crate) rdma: u8,
}

/// The first fields of `CUmemPoolProps`: the properties of a pool.
#[repr(C)]
#[derive(Debug)]
pub struct PoolProps {
    pub(crate) kind: c_int,
    pub(crate) handles: c_int,
    pub(crate) location: Location,
    security: *mut c_void,
    pub(crate) max_bytes: usize,
    pub(crate) usage: u16,
}

/// The first fields of `cudaPointerAttributes`.
#[repr(C)]
#[derive(Debug)]
pub struct PointerAttributes {
    pub(crate) kind: c_int,
    pub(crate) device: c_int,
    pub(crate) device_pointer: *mut c_void,
    pub(crate) host_pointer: *mut c_void,
}

/// `CUipcMemHandle`, `CUmemPoolPtrExportData` and `CUmemFabricHandle`, which only CUDA can read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Opaque(pub(crate) [u8; 64]);

/// `nvmlProcessInfo_v1_t` of NVML: a process that uses a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ProcessInfo {
    pub(crate) pid: c_uint,
    pub(crate) used_bytes: u64,
}

/// The first fields of `nvmlGpuFabricInfoV_t`.
#[repr(C)]
#[derive(Debug)]
pub struct FabricInfo {
    version: c_uint,
    cluster: [u8; 16],
    status: c_int,
    clique: c_uint,
    pub(crate) state: u8,
}

/// `CUhostFn`: a function of the host in the order of a stream.
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// `cudaDeviceProp` of CUDA 13.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceProperties {
    pub(crate) name: [u8; 256],
    pub(crate) uuid: [u8; 16],
    luid: [u8; 8],
    node_mask: u32,
    pub(crate) total_bytes: usize,
    shared_bytes_of_block: usize,
    registers_of_block: c_int,
    warp_size: c_int,
    pitch_bytes: usize,
    threads_of_block: c_int,
    block: [c_int; 3],
    grid: [c_int; 3],
    constant_bytes: usize,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
    texture_alignments: [usize; 2],
    pub(crate) multiprocessors: c_int,
    pub(crate) integrated: c_int,
    pub(crate) can_map_host_memory: c_int,
    rest: [u8; 612],
}

impl DeviceProperties {
    /// The limits that all GPUs since compute capability 5.0 have in common; the rest is 0.
    pub(crate) const OF_EVERY_GPU: Self = Self {
        name: [0; 256],
        uuid: [0; 16],
        luid: [0; 8],
        node_mask: 1,
        total_bytes: 0,
        shared_bytes_of_block: 48 << 10,
        registers_of_block: 64 << 10,
        warp_size: 32,
        pitch_bytes: (1 << 31) - 1,
        threads_of_block: 1024,
        block: [1024, 1024, 64],
        grid: [i32::MAX, 65_535, 65_535],
        constant_bytes: 64 << 10,
        major: 0,
        minor: 0,
        texture_alignments: [512, 32],
        multiprocessors: 0,
        integrated: 0,
        can_map_host_memory: 0,
        rest: [0; 612],
    };
}

/// The size in CUDA's header of version 13.5.
const _: () = assert!(size_of::<DeviceProperties>() == 1008);
