//! Buffers over the memory of other libraries, through DLPack.

use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::api::api;
use crate::arguments::{read, wrong};
use crate::buffer::DeviceBuffer;
use crate::device::{DeviceHandle, StreamArgument, attribute};
use crate::dlpack::{MAJOR, MINOR, PLAIN, VERSIONED, lender_of};
use crate::tensor::{CUDA, CUDA_HOST, CUDA_MANAGED, EXTENSION, Foreign, ManagedVersioned};

/// Make a buffer over the memory of an object with `__dlpack__`, without a copy.
///
/// The buffer keeps the object's memory alive.
///
/// Args:
///     obj: A contiguous tensor on a device of this process.
///     stream: The stream of the buffer. This stream waits for the earlier work on the tensor. If you leave
///         it out, the default stream is used.
///
/// Returns:
///     The buffer. Its `mr` is None.
///
/// Raises:
///     BufferError: The memory is read-only, not contiguous, or plain host memory.
///     TypeError: `obj` has no `__dlpack__`, or `stream` is not a stream.
///
/// Example:
///     >>> import millpond
///     >>> source = millpond.to_device(b"abc")
///     >>> millpond.from_dlpack(source).ptr == source.ptr
///     True
#[pyfunction]
#[pyo3(signature = (obj, stream=StreamArgument(None)))]
pub(crate) fn from_dlpack(
    py: Python<'_>,
    obj: &Bound<'_, PyAny>,
    stream: StreamArgument<'_>,
) -> PyResult<DeviceBuffer> {
    let stream = stream.resolve()?;
    let (Some(device_of), Some(_)) = (attribute(obj, "__dlpack_device__")?, attribute(obj, "__dlpack__")?)
    else {
        return Err(wrong::<PyTypeError>(obj, "obj", "a tensor with `__dlpack__` and `__dlpack_device__`"));
    };
    let allowed = "a pair of numbers: the device's type and its number";
    let (kind, number): (i32, i32) = read(&device_of.call0()?, "obj.__dlpack_device__()", allowed)?;
    if !matches!(kind, CUDA | CUDA_HOST | CUDA_MANAGED | EXTENSION) {
        return Err(PyBufferError::new_err(format!(
            "`obj` is on DLPack's device ({kind}, {number}), which is not a CUDA device; to_device copies \
             host memory"
        )));
    }
    // Checked first: the producer's own error would not say what to do.
    let device = py.detach(|| {
        if kind == CUDA_HOST {
            return stream.device();
        }
        let (number, is_simulated) = (number as u32, kind == EXTENSION);
        // SAFETY: the result may be written.
        let device =
            DeviceHandle::from_call(|device| unsafe { (api().device_find)(number, is_simulated, device) })?;
        stream.check_on(&device).map(|()| device)
    })?;
    let arguments = PyDict::new(py);
    arguments.set_item("stream", stream.raw.max(1))?;
    arguments.set_item("max_version", (MAJOR, MINOR))?;
    let capsule = match obj.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            // A producer that implements a DLPack version before 1 does not know this argument.
            arguments.del_item("max_version")?;
            obj.call_method("__dlpack__", (), Some(&arguments))?
        }
        answer => answer?,
    };
    let foreign = consume(&capsule)?;
    let bytes = foreign.bytes();
    let bytes = bytes.ok_or_else(|| PyBufferError::new_err("the tensor's size in bytes is too large"))?;
    if !foreign.is_contiguous() {
        return Err(PyBufferError::new_err("only contiguous memory can be a buffer"));
    }
    if foreign.is_versioned {
        // SAFETY: the tensor is live.
        let managed = unsafe { &*foreign.managed.cast::<ManagedVersioned>().as_ptr() };
        if managed.major != MAJOR {
            return Err(PyBufferError::new_err(format!("DLPack version {} is unsupported", managed.major)));
        }
        if managed.flags & 1 != 0 {
            return Err(PyBufferError::new_err("the memory is read-only, but a buffer must be writable"));
        }
    }
    let lender = lender_of(&foreign);
    Ok(DeviceBuffer::foreign(foreign, bytes, device, lender, stream))
}

/// Takes the tensor out of a capsule.
fn consume(capsule: &Bound<'_, PyAny>) -> PyResult<Foreign> {
    for (name, used, is_versioned) in
        [(VERSIONED, c"used_dltensor_versioned", true), (PLAIN, c"used_dltensor", false)]
    {
        // SAFETY: the capsule is live, and its name tells its pointer's type. The new name marks it as
        // consumed.
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
    Err(PyBufferError::new_err("`__dlpack__` must return a DLPack capsule that no consumer has used"))
}
