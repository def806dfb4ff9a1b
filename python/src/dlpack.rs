//! Buffers for other libraries, through DLPack.

use std::ffi::{CStr, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::arguments::DL_STREAM;
use crate::block::{Block, Consumer, Hidden};
use crate::error::Failure;
use crate::gil;
use crate::tensor::{
    CUDA, CUDA_HOST, CUDA_MANAGED, DlDevice, DlTensor, DlType, EXTENSION, Foreign, Managed, ManagedVersioned,
};
use crate::view::View;

const CPU: i32 = 1;
pub(crate) const MAJOR: u32 = 1;
pub(crate) const MINOR: u32 = 1;
const FLAG_COPIED: u64 = 2;
pub(crate) const PLAIN: &CStr = c"dltensor";
pub(crate) const VERSIONED: &CStr = c"dltensor_versioned";

/// An exported tensor, with everything that it points to and keeps alive.
struct Export<T> {
    managed: T,
    shape: [i64; 1],
    strides: [i64; 1],
    view: View,
    consumer: Consumer,
    /// Dropped after `view`.
    _hidden: Hidden,
}

impl<T> Export<T> {
    /// Ends an export that a consumer took. The block is freed after the consumer's work.
    fn end(self: Box<Self>) {
        gil::released(|| {
            self.view.block.follow(self.consumer);
            drop(self);
        });
    }
}

/// Returns the block of a tensor that this module exported.
pub(crate) fn lender_of(tensor: &Foreign) -> Option<Arc<Block>> {
    // SAFETY: the tensor lives. If it has this module's deleter, its context is an export.
    unsafe {
        if tensor.is_versioned {
            let managed = &*tensor.managed.cast::<ManagedVersioned>().as_ptr();
            let is_ours =
                managed.deleter.is_some_and(|it| it as usize == end_versioned as *const () as usize);
            is_ours.then(|| (*managed.context.cast::<Export<ManagedVersioned>>()).view.block.clone())
        } else {
            let managed = &*tensor.managed.cast::<Managed>().as_ptr();
            let is_ours = managed.deleter.is_some_and(|it| it as usize == end_plain as *const () as usize);
            is_ours.then(|| (*managed.context.cast::<Export<Managed>>()).view.block.clone())
        }
    }
}

/// Returns the kind of a view's memory, and its device's number.
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

/// Returns the stream that a consumer names, if it names one.
fn consumer_of(stream: Option<i64>) -> PyResult<Option<usize>> {
    match stream {
        None => Ok(Some(1)),
        Some(-1) => Ok(None),
        Some(0) => Err(PyValueError::new_err(
            "`stream` 0 is ambiguous: use 1 for the legacy default stream, or 2 for the per-thread default \
             stream",
        )),
        Some(stream) if stream < -1 => {
            Err(PyValueError::new_err(format!("`stream` must be {DL_STREAM}, not {stream}")))
        }
        Some(stream) => Ok(Some(stream as usize)),
    }
}

/// Makes a capsule over a view.
pub(crate) fn export<'py>(
    py: Python<'py>,
    view: View,
    stream: Option<i64>,
    max_version: Option<(u32, u32)>,
    dl_device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let device = py.detach(|| device_of(&view))?;
    if let Some(wanted) = dl_device.filter(|wanted| *wanted != device) {
        return Err(PyBufferError::new_err(format!(
            "`dl_device` must be the buffer's device {device:?}, not {wanted:?}; to copy the buffer to the \
             host, call copy_to_host"
        )));
    }
    let stream = consumer_of(stream)?;
    let is_copied = copy == Some(true);
    let (view, consumer) = py.detach(|| {
        let view = if is_copied { view.duplicate(&view.stream)? } else { view };
        let consumer = match stream {
            Some(stream) => view.block.lend(stream)?,
            None => Consumer::Unknown,
        };
        Ok::<_, Failure>((view, consumer))
    })?;
    // With the GIL, so that a collection does not see the change halfway.
    let _hidden = view.block.hide();
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
        let export = Box::into_raw(Box::new(Export { managed, shape, strides, view, consumer, _hidden }));
        // SAFETY: the export is new, and stays where it is.
        unsafe {
            (*export).managed.context = export.cast();
            (*export).managed.tensor.shape = (&raw mut (*export).shape).cast();
            (*export).managed.tensor.strides = (&raw mut (*export).strides).cast();
            capsule(py, (&raw mut (*export).managed).cast(), VERSIONED, drop_versioned)
        }
    } else {
        let managed = Managed { tensor, context: null_mut(), deleter: Some(end_plain) };
        let export = Box::into_raw(Box::new(Export { managed, shape, strides, view, consumer, _hidden }));
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
/// `value` has the type that `name` stands for, and has no other owner.
unsafe fn capsule<'py>(
    py: Python<'py>,
    value: *mut c_void,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the value is not null, and the name lives on.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(value, name.as_ptr(), Some(destructor))) }
}

/// Ends an export. Any thread may call it, with or without the GIL.
unsafe extern "C" fn end_plain(managed: *mut Managed) {
    // SAFETY: the context is the export, which ends here.
    unsafe { Box::from_raw((*managed).context.cast::<Export<Managed>>()) }.end();
}

/// Ends an export with a version, as `end_plain` does.
unsafe extern "C" fn end_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: the context is the export, which ends here.
    unsafe { Box::from_raw((*managed).context.cast::<Export<ManagedVersioned>>()) }.end();
}

/// Ends an export whose capsule had no consumer, so that no work used the export.
unsafe extern "C" fn drop_plain(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with a capsule of ours; a consumer has changed its name.
    unsafe { drop_unused::<Managed>(capsule, PLAIN, |managed| (*managed).context) }
}

/// Ends an export with a version, as `drop_plain` does.
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe { drop_unused::<ManagedVersioned>(capsule, VERSIONED, |managed| (*managed).context) }
}

/// # Safety
/// `export` made the capsule, which holds a `T` if it has this name. Python calls it with the GIL.
unsafe fn drop_unused<T>(
    capsule: *mut ffi::PyObject,
    name: &CStr,
    context: unsafe fn(*mut T) -> *mut c_void,
) {
    // SAFETY: the caller's promise; the context is the export, which ends here.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) != 0 {
            let managed = ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast::<T>();
            let export = Box::from_raw(context(managed).cast::<Export<T>>());
            gil::released(|| drop(export));
        }
    }
}
