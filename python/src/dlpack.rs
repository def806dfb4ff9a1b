//! DLPack in both directions.

use std::ffi::{CStr, c_void};
use std::ptr::{NonNull, null_mut, without_provenance_mut};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::api::api;
use crate::block::View;
use crate::buffer::DeviceBuffer;
use crate::device::{DeviceHandle, StreamArgument};
use crate::error::{Failure, check};

const CPU: i32 = 1;
/// CUDA's plain memory.
pub(crate) const CUDA: i32 = 2;
pub(crate) const CUDA_HOST: i32 = 3;
/// Memory of a simulated device, which no other library takes for real memory.
const EXTENSION: i32 = 12;
const CUDA_MANAGED: i32 = 13;
const MAJOR: u32 = 1;
const MINOR: u32 = 1;
const FLAG_COPIED: u64 = 2;
const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DlDevice {
    kind: i32,
    number: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Debug)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    dimensions: i32,
    kind: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

/// An exported tensor with what it points to and keeps.
struct Export<T> {
    managed: T,
    shape: [i64; 1],
    strides: [i64; 1],
    _view: View,
}

/// The kind of a view's memory, and its device's number.
pub(crate) fn device_of(view: &View) -> Result<(i32, i32), Failure> {
    let device = view.device()?;
    let kind = match view.block.accessibility()? {
        _ if device.is_simulated() => EXTENSION,
        (true, false) => CUDA,
        (false, _) => CPU,
        (true, true) if view.block.is_pinned()? => CUDA_HOST,
        (true, true) => CUDA_MANAGED,
    };
    Ok((kind, if matches!(kind, CPU | CUDA_HOST) { 0 } else { device.ordinal() }))
}

/// A capsule over a view.
pub(crate) fn export<'py>(
    py: Python<'py>,
    view: View,
    stream: Option<i64>,
    max_version: Option<(u32, u32)>,
    dl_device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let device = device_of(&view)?;
    if let Some(wanted) = dl_device.filter(|wanted| *wanted != device) {
        return Err(PyBufferError::new_err(format!(
            "the buffer is on DLPack's device {device:?}, not on {wanted:?}; copy_to_host copies to the host"
        )));
    }
    let consumer = match stream {
        None => 1,
        Some(-1) => -1,
        Some(0) => {
            return Err(PyValueError::new_err(
                "stream 0 is ambiguous: 1 is the legacy default stream, 2 the one of the thread",
            ));
        }
        Some(stream) if stream < -1 => {
            return Err(PyValueError::new_err(format!("{stream} is no stream of DLPack")));
        }
        Some(stream) => stream,
    };
    let is_copied = copy == Some(true);
    let view = py.detach(|| {
        let view = if is_copied { view.duplicate(&view.stream)? } else { view };
        if consumer > 0 && view.stream.raw.max(1) != consumer as usize {
            let consumer = without_provenance_mut(consumer as usize);
            // SAFETY: the device's handle is live, and so are both streams.
            check(unsafe { (api().stream_wait)(view.device()?.0, consumer, view.stream.ptr()) })?;
        }
        Ok::<_, Failure>(view)
    })?;
    let tensor = DlTensor {
        data: without_provenance_mut(view.address()),
        device: DlDevice { kind: device.0, number: device.1 },
        dimensions: 1,
        kind: DlType { code: 1, bits: 8, lanes: 1 },
        shape: null_mut(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let (shape, strides) = ([view.size as i64], [1]);
    if max_version.is_some_and(|version| version.0 >= MAJOR) {
        let flags = if is_copied { FLAG_COPIED } else { 0 };
        let (context, deleter) = (null_mut(), Some(end_versioned as _));
        let managed = ManagedVersioned { major: MAJOR, minor: MINOR, context, deleter, flags, tensor };
        let export = Box::into_raw(Box::new(Export { managed, shape, strides, _view: view }));
        // SAFETY: the export is new, and stays where it is.
        unsafe {
            (*export).managed.context = export.cast();
            (*export).managed.tensor.shape = (&raw mut (*export).shape).cast();
            (*export).managed.tensor.strides = (&raw mut (*export).strides).cast();
            capsule(py, (&raw mut (*export).managed).cast(), VERSIONED, drop_versioned)
        }
    } else {
        let managed = Managed { tensor, context: null_mut(), deleter: Some(end_plain) };
        let export = Box::into_raw(Box::new(Export { managed, shape, strides, _view: view }));
        // SAFETY: as above.
        unsafe {
            (*export).managed.context = export.cast();
            (*export).managed.tensor.shape = (&raw mut (*export).shape).cast();
            (*export).managed.tensor.strides = (&raw mut (*export).strides).cast();
            capsule(py, (&raw mut (*export).managed).cast(), PLAIN, drop_plain)
        }
    }
}

/// # Safety
/// `value` is what the name says, and has no other owner.
unsafe fn capsule<'py>(
    py: Python<'py>,
    value: *mut c_void,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the value is not null, and the name lives on.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(value, name.as_ptr(), Some(destructor))) }
}

/// Ends an export, on any thread, with the GIL or without.
unsafe extern "C" fn end_plain(managed: *mut Managed) {
    // SAFETY: the context is the export, which ends here.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Export<Managed>>()) });
}

/// The same for one with a version.
unsafe extern "C" fn end_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: the context is the export, which ends here.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Export<ManagedVersioned>>()) });
}

/// Ends what is in a capsule without a consumer.
unsafe extern "C" fn drop_plain(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule of ours; a consumer has changed its name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) != 0 {
            end_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        }
    }
}

/// The same for one with a version.
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            end_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// A tensor of another library, ended by its deleter.
#[derive(Debug)]
pub(crate) struct Foreign {
    managed: NonNull<c_void>,
    is_versioned: bool,
}

// SAFETY: by the rules of DLPack the deleter may be called on any thread.
unsafe impl Send for Foreign {}
// SAFETY: nothing is changed before the end.
unsafe impl Sync for Foreign {}

impl Foreign {
    fn tensor(&self) -> &DlTensor {
        // SAFETY: the tensor lives until this ends.
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
        if tensor.dimensions == 0 {
            return &[];
        }
        // SAFETY: a tensor has as many extents as dimensions.
        unsafe { std::slice::from_raw_parts(tensor.shape, tensor.dimensions as usize) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        let kind = self.tensor().kind;
        let item = (u64::from(kind.bits) * u64::from(kind.lanes)).div_ceil(8);
        self.shape().iter().map(|extent| *extent as u64).product::<u64>() * item
    }

    fn is_contiguous(&self) -> bool {
        let strides = self.tensor().strides;
        if strides.is_null() || self.shape().contains(&0) {
            return true;
        }
        let mut wanted = 1;
        for (dimension, extent) in self.shape().iter().enumerate().rev() {
            // SAFETY: a tensor has as many strides as dimensions.
            if *extent != 1 && unsafe { *strides.add(dimension) } != wanted {
                return false;
            }
            wanted *= extent;
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

/// A buffer over the memory of an object with `__dlpack__`, without a copy. The object has to be contiguous,
/// on a device of this process; its memory lives as long as the buffer.
#[pyfunction]
#[pyo3(signature = (obj, stream=StreamArgument(None)))]
pub(crate) fn from_dlpack(
    py: Python<'_>,
    obj: &Bound<'_, PyAny>,
    stream: StreamArgument<'_>,
) -> PyResult<DeviceBuffer> {
    let stream = stream.resolve()?;
    let (kind, number): (i32, i32) = obj.call_method0("__dlpack_device__")?.extract()?;
    if !matches!(kind, CUDA | CUDA_HOST | CUDA_MANAGED | EXTENSION) {
        return Err(PyBufferError::new_err(format!(
            "memory of DLPack's device ({kind}, {number}) is not CUDA's; to_device copies the host's"
        )));
    }
    let arguments = PyDict::new(py);
    arguments.set_item("stream", stream.raw.max(1))?;
    arguments.set_item("max_version", (MAJOR, MINOR))?;
    let capsule = match obj.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            // A producer of before version 1.
            arguments.del_item("max_version")?;
            obj.call_method("__dlpack__", (), Some(&arguments))?
        }
        answer => answer?,
    };
    let foreign = consume(&capsule)?;
    if !foreign.is_contiguous() {
        return Err(PyBufferError::new_err("only contiguous memory can be a buffer"));
    }
    if foreign.is_versioned {
        // SAFETY: the tensor is live.
        let managed = unsafe { &*foreign.managed.cast::<ManagedVersioned>().as_ptr() };
        if managed.major != MAJOR {
            return Err(PyBufferError::new_err(format!("version {} of DLPack is not known", managed.major)));
        }
        if managed.flags & 1 != 0 {
            return Err(PyBufferError::new_err("the memory is read-only, and a buffer can be written"));
        }
    }
    let device = py.detach(|| {
        if kind == CUDA_HOST {
            return DeviceHandle::current();
        }
        let (number, is_simulated) = (number as u32, kind == EXTENSION);
        // SAFETY: the result may be written.
        DeviceHandle::from_call(|device| unsafe { (api().device_find)(number, is_simulated, device) })
    })?;
    Ok(DeviceBuffer::foreign(foreign, device, stream))
}

/// Takes the tensor out of a capsule.
fn consume(capsule: &Bound<'_, PyAny>) -> PyResult<Foreign> {
    for (name, used, is_versioned) in
        [(VERSIONED, c"used_dltensor_versioned", true), (PLAIN, c"used_dltensor", false)]
    {
        // SAFETY: the capsule is live; its pointer is what its name says; the new name marks it as consumed.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
                continue;
            }
            let managed = ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr());
            let managed = NonNull::new(managed).ok_or_else(|| PyErr::fetch(capsule.py()))?;
            if ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) != 0 {
                return Err(PyErr::fetch(capsule.py()));
            }
            return Ok(Foreign { managed, is_versioned });
        }
    }
    Err(PyBufferError::new_err("`__dlpack__` returned no capsule of DLPack, or one that was consumed"))
}
