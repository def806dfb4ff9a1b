//! The structures of DLPack, and tensors of other libraries.

use std::ffi::c_void;
use std::ptr::NonNull;

/// Plain CUDA memory.
pub(crate) const CUDA: i32 = 2;
pub(crate) const CUDA_HOST: i32 = 3;
/// Memory of a simulated device. No other library mistakes it for real memory.
pub(crate) const EXTENSION: i32 = 12;
pub(crate) const CUDA_MANAGED: i32 = 13;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DlDevice {
    pub(crate) kind: i32,
    pub(crate) number: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DlType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct DlTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: DlDevice,
    pub(crate) dimensions: i32,
    pub(crate) kind: DlType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

#[repr(C)]
pub(crate) struct Managed {
    pub(crate) tensor: DlTensor,
    pub(crate) context: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
pub(crate) struct ManagedVersioned {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) context: *mut c_void,
    pub(crate) deleter: Option<unsafe extern "C" fn(*mut Self)>,
    pub(crate) flags: u64,
    pub(crate) tensor: DlTensor,
}

/// A tensor of another library, freed by its deleter.
#[derive(Debug)]
pub(crate) struct Foreign {
    pub(crate) managed: NonNull<c_void>,
    pub(crate) is_versioned: bool,
}

// SAFETY: DLPack allows any thread to call the deleter.
unsafe impl Send for Foreign {}
// SAFETY: the tensor does not change before its end.
unsafe impl Sync for Foreign {}

impl Foreign {
    fn tensor(&self) -> &DlTensor {
        // SAFETY: the tensor lives until this value ends.
        unsafe {
            if self.is_versioned {
                &(*self.managed.cast::<ManagedVersioned>().as_ptr()).tensor
            } else {
                &(*self.managed.cast::<Managed>().as_ptr()).tensor
            }
        }
    }

    pub(crate) fn device_type(&self) -> i32 {
        self.tensor().device.kind
    }

    pub(crate) fn address(&self) -> usize {
        self.tensor().data.addr() + self.tensor().byte_offset as usize
    }

    fn shape(&self) -> &[i64] {
        let tensor = self.tensor();
        if tensor.dimensions <= 0 {
            return &[];
        }
        // SAFETY: a tensor has as many extents as dimensions.
        unsafe { std::slice::from_raw_parts(tensor.shape, tensor.dimensions as usize) }
    }

    /// `None` if the number of bytes overflows.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let kind = self.tensor().kind;
        let item = (u64::from(kind.bits) * u64::from(kind.lanes)).div_ceil(8);
        let extents = self.shape().iter().map(|extent| u64::try_from(*extent).ok());
        if self.shape().contains(&0) {
            return Some(0);
        }
        let bytes = extents.into_iter().try_fold(item, |bytes, extent| bytes.checked_mul(extent?));
        bytes.filter(|bytes| i64::try_from(*bytes).is_ok())
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        let strides = self.tensor().strides;
        if strides.is_null() || self.shape().contains(&0) {
            return true;
        }
        let mut wanted = 1_i64;
        for (dimension, extent) in self.shape().iter().enumerate().rev() {
            // SAFETY: a tensor has as many strides as dimensions.
            if *extent != 1 && unsafe { *strides.add(dimension) } != wanted {
                return false;
            }
            wanted = wanted.saturating_mul(*extent);
        }
        true
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: the tensor was taken over, and its deleter is called once.
        unsafe {
            if self.is_versioned {
                let managed = self.managed.cast::<ManagedVersioned>().as_ptr();
                if let Some(deleter) = (*managed).deleter {
                    deleter(managed);
                }
            } else {
                let managed = self.managed.cast::<Managed>().as_ptr();
                if let Some(deleter) = (*managed).deleter {
                    deleter(managed);
                }
            }
        }
    }
}
