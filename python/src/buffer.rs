//! `DeviceBuffer`: bytes from a resource, which are freed when their last view ends.

use std::ptr::without_provenance_mut;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::{PyBufferError, PyIndexError, PyOverflowError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PySlice};

use crate::arguments::{DESTINATION, RESOURCE, instance, refused, wrong};
use crate::block::{Block, Source};
use crate::device::{DeviceHandle, StreamArgument, StreamHandle};
use crate::error::{Failure, raise_interrupt};
use crate::handle::ResourceHandle;
use crate::host::HostBytes;
use crate::interface::CudaArray;
use crate::place::{Place, was_collected};
use crate::resource::Resource;
use crate::tensor::Foreign;
use crate::view::View;

/// Bytes of device memory, allocated and freed in the order of a stream.
///
/// `buffer[i]` reads a byte, and `buffer[i:j]` is a slice that shares the memory. Objects of other libraries
/// can share the memory through DLPack or the buffer protocol. The memory is freed when the buffer and all
/// objects that share the memory are gone.
///
/// Args:
///     ptr: The address of memory to copy from, on the host or the device, as a number. 0 copies nothing, so
///         the bytes are undefined.
///     size: The size in bytes.
///     stream: The stream, of millpond or another library. If you leave it out, the default stream is used.
///     mr: The resource; None means the current device's default resource.
///
/// Raises:
///     OutOfMemoryError: The resource is out of memory. This error is a `MemoryError`.
///     OverflowError: `size` is negative.
///     TypeError: `stream` is not a stream, or `mr` is not a resource.
///     InvalidArgumentError: The stream and the memory belong to different devices.
///
/// Example:
///     >>> import millpond
///     >>> buffer = millpond.DeviceBuffer(size=3, stream=millpond.Stream())
///     >>> buffer.copy_from_host(b"abc")
///     >>> buffer[0], bytes(buffer[1:])
///     (97, b'bc')
#[pyclass(frozen, weakref, subclass, module = "millpond")]
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    pub(crate) view: Place,
    /// The resource's Python object, if the caller gave one.
    pub(crate) mr: Mutex<Option<Py<PyAny>>>,
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let Some(View { block, stream, .. }) = self.view.lock().take() else { return };
        let mut last = Arc::into_inner(block);
        Python::try_attach(|py| {
            drop(stream); // the block or another object still keeps it
            if let Some(block) = last.take() {
                block.end(py);
            }
        });
        // At the interpreter's end the block is freed without it.
        drop(last);
    }
}

impl DeviceBuffer {
    pub(crate) fn view(&self) -> PyResult<View> {
        self.view.lock().clone().ok_or_else(was_collected)
    }

    /// Returns the current view, and a stream: the argument's stream or, if the argument was left out, the
    /// buffer's stream.
    pub(crate) fn view_on(&self, stream: StreamArgument<'_>) -> PyResult<(View, Arc<StreamHandle>)> {
        // The argument is resolved before the view is read, because it may run Python code that changes the
        // buffer.
        let stream = stream.resolve_if_given()?;
        let view = self.view()?;
        let stream = stream.unwrap_or_else(|| view.stream.clone());
        Ok((view, stream))
    }

    pub(crate) fn of(view: View, mr: Option<Py<PyAny>>) -> Self {
        let view = Place::new(view, mr.is_some());
        Self { view, mr: Mutex::new(mr) }
    }

    /// Makes a buffer over memory of another library, or over a block of this module.
    pub(crate) fn foreign(
        foreign: Foreign,
        bytes: u64,
        device: Arc<DeviceHandle>,
        lender: Option<Arc<Block>>,
        stream: Arc<StreamHandle>,
    ) -> Self {
        let block = Block::foreign(foreign, bytes, device, lender, stream.clone());
        Self::of(View { block, offset: 0, size: bytes, stream }, None)
    }

    /// Returns the resource's object, if the caller gave one.
    pub(crate) fn given_mr(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.mr.lock().as_ref().map(|mr| mr.clone_ref(py))
    }

    /// Changes the size, and the block if `wanted` asks for another block. `wanted` gets the view. It returns
    /// the new size and, for another block, the block's capacity.
    ///
    /// The size and the block change together. If another thread changes one of them before that, `wanted` is
    /// called again.
    pub(crate) fn change(
        &self,
        py: Python<'_>,
        stream: &Arc<StreamHandle>,
        wanted: impl Fn(&View) -> (u64, Option<u64>),
    ) -> PyResult<()> {
        loop {
            let (view, size, capacity) = {
                let mut now = self.view.lock();
                let now = now.as_mut().ok_or_else(was_collected)?;
                match wanted(now) {
                    (size, None) => {
                        now.size = size;
                        return Ok(());
                    }
                    (size, Some(capacity)) => (now.clone(), size, capacity),
                }
            };
            let Source::Resource(resource) = &*view.block.source else {
                return Err(PyBufferError::new_err(
                    "the buffer's memory belongs to another library, so its size is fixed",
                ));
            };
            let made = py.detach(|| {
                let block = Block::new(resource.clone(), capacity, stream.clone())?;
                let made = View { block, offset: 0, size, stream: stream.clone() };
                made.copy_from_view(&view, view.size.min(size), stream)?;
                Ok::<_, Failure>(made)
            })?;
            if self.mr.lock().is_some() {
                made.block.show();
            }
            let (is_changed, other) = {
                let mut now = self.view.lock();
                let now = now.as_mut().ok_or_else(was_collected)?;
                let is_as_seen = Arc::ptr_eq(&now.block, &view.block)
                    && (now.offset, now.size) == (view.offset, view.size);
                (is_as_seen, if is_as_seen { std::mem::replace(now, made) } else { made })
            };
            py.detach(|| drop((other, view)));
            raise_interrupt(py)?;
            if is_changed {
                return Ok(());
            }
        }
    }
}

/// The methods' bodies that Python calls.
impl DeviceBuffer {
    /// Makes a buffer. It holds a copy of the bytes at `ptr`, unless `ptr` is 0.
    pub(crate) fn make(
        py: Python<'_>,
        ptr: usize,
        size: u64,
        stream: StreamArgument<'_>,
        mr: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let stream = stream.resolve()?;
        let given = match &mr {
            Some(mr) => Some(instance::<Resource>(mr, "mr", RESOURCE)?.get().handle()?),
            None => None,
        };
        let is_default = given.is_none();
        let mut known = given.or_else(ResourceHandle::recent_default);
        if ptr == 0
            && size != 0
            && let Some(resource) = known.take()
        {
            match Block::new_cached(resource, is_default, size, &stream) {
                Ok(block) => {
                    return Ok(Self::of(View { block, offset: 0, size, stream }, mr.map(Bound::unbind)));
                }
                Err(resource) => known = Some(resource),
            }
        }
        let view = py.detach(|| {
            let resource = match known {
                Some(given) if !is_default => given,
                _ => ResourceHandle::current()?,
            };
            let block = Block::new(resource, size, stream.clone())?;
            let view = View { block, offset: 0, size, stream };
            if ptr != 0 {
                // SAFETY: the caller promises that `ptr` points to `size` bytes, and keeps them as long.
                unsafe { view.copy_from_anywhere(ptr, &view.stream)? };
                if view.stream.raw <= 2 {
                    view.synchronize(&view.stream)?;
                }
            }
            Ok::<_, Failure>(view)
        })?;
        raise_interrupt(py)?;
        Ok(Self::of(view, mr.map(Bound::unbind)))
    }

    /// Returns the Python object of the memory's resource, or `None` for memory of another library.
    pub(crate) fn resource(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if let Some(mr) = self.given_mr(py) {
            return Ok(Some(mr));
        }
        match &*self.view()?.block.source {
            Source::Resource(resource) => {
                let wrapped = Bound::new(py, Resource::of(resource.clone()))?;
                Ok(Some(py.import("millpond.mr")?.getattr("_known")?.call1((wrapped,))?.unbind()))
            }
            Source::Foreign { .. } => Ok(None),
        }
    }

    /// Copies the bytes to the host.
    pub(crate) fn read<'py>(
        &self,
        py: Python<'py>,
        stream: StreamArgument<'_>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (view, stream) = self.view_on(stream)?;
        PyBytes::new_with(py, view.size as usize, |target| {
            let target = target.as_mut_ptr().addr();
            // SAFETY: the new bytes belong to this function, and there are as many.
            Ok(py.detach(|| unsafe { view.read(std::ptr::with_exposed_provenance_mut(target), &stream) })?)
        })
    }

    /// Copies to `ary` or, if it is `None`, to a new host array.
    pub(crate) fn write_host<'py>(
        &self,
        py: Python<'py>,
        ary: Option<Bound<'py, PyAny>>,
        stream: StreamArgument<'_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (view, stream) = self.view_on(stream)?;
        let ary = ary.map_or_else(|| numpy_empty(py, view.size), Ok)?;
        let host = HostBytes::writable(&ary, "ary")?;
        if (host.bytes as u64) < view.size {
            return Err(PyValueError::new_err(format!(
                "`ary` must have at least the buffer's {} bytes, not {}",
                view.size, host.bytes
            )));
        }
        // SAFETY: `host` holds the array, which has as many bytes.
        py.detach(|| unsafe { view.read(host.address(), &stream) })?;
        Ok(ary)
    }

    /// Copies from a buffer, or from an object with `__cuda_array_interface__`.
    ///
    /// The stream waits for the stream that the object names. The object's stream then waits for the copy, so
    /// the source may end at once. If the object names no stream, the call waits for the copy.
    pub(crate) fn read_device(
        &self,
        py: Python<'_>,
        cuda_ary: &Bound<'_, PyAny>,
        stream: StreamArgument<'_>,
    ) -> PyResult<()> {
        let (view, stream) = self.view_on(stream)?;
        if let Ok(source) = cuda_ary.cast::<Self>() {
            let source = source.get().view()?;
            fits(source.size, &view, "cuda_ary")?;
            return Ok(py.detach(|| {
                view.copy_from_view(&source, source.size, &stream)?;
                if stream.raw <= 2 { view.synchronize(&stream) } else { Ok(()) }
            })?);
        }
        let CudaArray { address: source, bytes, stream: of_source } = CudaArray::of(cuda_ary, "cuda_ary")?;
        fits(bytes, &view, "cuda_ary")?;
        Ok(py.detach(|| {
            let Some(of_source) = of_source else { return view.copy_from_unknown(source, bytes, &stream) };
            view.copy_from_foreign(source, bytes, of_source, &stream)?;
            if stream.raw <= 2 { view.synchronize(&stream) } else { Ok(()) }
        })?)
    }

    /// Moves managed memory to its device, or to the host (-1).
    pub(crate) fn migrate(
        &self,
        py: Python<'_>,
        device: Option<i32>,
        stream: StreamArgument<'_>,
    ) -> PyResult<()> {
        let (view, stream) = self.view_on(stream)?;
        let own = py.detach(|| view.device().map(|device| device.ordinal()))?;
        if let Some(other) = device.filter(|device| *device != -1 && *device != own) {
            return Err(PyValueError::new_err(format!(
                "`device` must be {DESTINATION}: the memory belongs to device {own} and cannot move to \
                 device {other}"
            )));
        }
        Ok(py.detach(|| {
            if view.size == 0 || view.block.accessibility()? != (true, true) {
                return Ok(());
            }
            match view.prefetch(device == Some(-1), &stream) {
                // Pinned memory cannot move, nor can any memory if the device has no page migration. As in
                // RMM, this is not an error.
                Err(failure) if !failure.is_refusal() => Err(failure),
                _ => Ok(()),
            }
        })?)
    }

    /// Returns the byte or the slice at an index.
    pub(crate) fn item<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Py<PyAny>> {
        let mut view = self.view()?;
        if let Ok(slice) = index.cast::<PySlice>() {
            let range = slice.indices(view.size as isize)?;
            if range.step != 1 {
                return Err(wrong::<PyValueError>(index, "index", "a number, or a slice with step 1"));
            }
            view.offset += range.start as u64;
            view.size = range.slicelength as u64;
            let part = Self::of(view, self.given_mr(py));
            return Ok(Bound::new(py, part)?.into_any().unbind());
        }
        let outside = || PyIndexError::new_err("the index is outside the buffer");
        let index: i64 = index.extract().map_err(|error: PyErr| {
            if error.is_instance_of::<PyOverflowError>(py) {
                return outside();
            }
            refused(error, index, "index", "a whole number or a slice")
        })?;
        let index = if index < 0 { index + view.size as i64 } else { index };
        if index < 0 || index >= view.size as i64 {
            return Err(outside());
        }
        view.offset += index as u64;
        view.size = 1;
        let mut byte = [0_u8];
        // SAFETY: one byte may be written.
        py.detach(|| unsafe { view.read(byte.as_mut_ptr(), &view.stream) })?;
        Ok(byte[0].into_pyobject(py)?.into_any().unbind())
    }

    /// Fills a Python buffer. If the host can access the memory, the Python buffer uses the memory itself.
    /// Otherwise it uses a read-only copy.
    ///
    /// # Safety
    /// Python calls this function with a buffer to fill.
    pub(crate) unsafe fn export(
        slf: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: i32,
    ) -> PyResult<()> {
        let (py, view) = (slf.py(), slf.get().view()?);
        let is_reached = py.detach(|| {
            let is_reached = view.block.accessibility()?.1 && !view.device()?.is_simulated();
            if is_reached { view.block.wait().map(|()| true) } else { Ok::<_, Failure>(false) }
        })?;
        if !is_reached {
            if flags & ffi::PyBUF_WRITABLE != 0 {
                return Err(PyBufferError::new_err(
                    "the host cannot access the buffer's memory, so it sees a copy: use copy_from_host to \
                     write",
                ));
            }
            let copy = slf.get().read(py, StreamArgument(None))?;
            // SAFETY: Python's buffer may be filled; it keeps the bytes.
            let filled = unsafe { ffi::PyObject_GetBuffer(copy.as_ptr(), buffer, flags) };
            return if filled == 0 { Ok(()) } else { Err(PyErr::fetch(py)) };
        }
        let hidden = view.block.hide();
        let (start, size) = (without_provenance_mut(view.address()), view.size as isize);
        // SAFETY: Python's buffer may be filled; the view keeps the memory until Python releases it.
        unsafe {
            if ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), start, size, 0, flags) != 0 {
                return Err(PyErr::fetch(py));
            }
            (*buffer).internal = Box::into_raw(Box::new((view, hidden))).cast();
        }
        Ok(())
    }
}

fn numpy_empty(py: Python<'_>, size: u64) -> PyResult<Bound<'_, PyAny>> {
    match py.import("numpy") {
        Ok(numpy) => numpy.call_method1("empty", (size, "u1")),
        Err(_) => Ok(PyByteArray::new_with(py, size as usize, |_| Ok(()))?.into_any()),
    }
}

/// Refuses an argument with more bytes than a view has.
pub(crate) fn fits(bytes: u64, view: &View, name: &str) -> PyResult<()> {
    if bytes > view.size {
        return Err(PyValueError::new_err(format!(
            "`{name}` must have at most the buffer's {} bytes; its {bytes} bytes do not fit",
            view.size
        )));
    }
    Ok(())
}
