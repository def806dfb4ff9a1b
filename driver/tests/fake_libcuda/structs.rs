//! CUDA's structures that both stand-ins read.

use std::ffi::c_void;

#[repr(C)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

#[repr(C)]
pub struct Access {
    pub location: Location,
    pub flags: u32,
}

#[repr(C)]
pub struct PoolProps {
    pub kind: u32,
    pub handle_types: u32,
    pub location: Location,
    pub win32: *mut c_void,
    pub max_size: u64,
    pub usage: u16,
    pub reserved: [u8; 54],
}
