//! The methods of `DeviceBuffer`, and `to_device`, as Python sees them.

use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::arguments::{
    buffer_size, copy, destination, dl_device, dl_stream, max_version, new_capacity, new_size, protocol, ptr,
    value,
};
use crate::block::Hidden;
use crate::buffer::{DeviceBuffer, fits};
use crate::device::{Stream, StreamArgument};
use crate::dlpack;
use crate::error::raise_interrupt;
use crate::host::HostBytes;
use crate::view::View;

#[pymethods]
impl DeviceBuffer {
    #[new]
    #[pyo3(signature = (*, ptr=0, size=0, stream=StreamArgument(None), mr=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = ptr)] ptr: usize,
        #[pyo3(from_py_with = buffer_size)] size: u64,
        stream: StreamArgument<'_>,
        mr: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Self::make(py, ptr, size, stream, mr)
    }

    /// The address of the bytes on the device, as a number; 0 for an empty buffer.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.DeviceBuffer(size=1000).ptr % 256
    ///     0
    #[getter]
    fn ptr(&self) -> usize {
        self.view.lock().as_ref().map_or(0, View::address)
    }

    /// The size in bytes.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.DeviceBuffer(size=1000).size
    ///     1000
    #[getter]
    fn size(&self) -> u64 {
        self.view.lock().as_ref().map_or(0, |view| view.size)
    }

    /// The size in bytes, under NumPy's name.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.DeviceBuffer(size=1000).nbytes
    ///     1000
    #[getter]
    fn nbytes(&self) -> u64 {
        self.size()
    }

    fn __len__(&self) -> usize {
        self.size() as usize
    }

    fn __sizeof__(&self) -> u64 {
        self.size()
    }

    /// Return the size in bytes that the buffer can grow to without an allocation.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> buffer = millpond.DeviceBuffer(size=1000)
    ///     >>> buffer.reserve(2000)
    ///     >>> buffer.size, buffer.capacity()
    ///     (1000, 2000)
    fn capacity(&self) -> u64 {
        self.view.lock().as_ref().map_or(0, View::capacity)
    }

    /// The stream in whose order the bytes are used and freed.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> stream = millpond.Stream()
    ///     >>> millpond.DeviceBuffer(size=1000, stream=stream).stream == stream
    ///     True
    #[getter]
    fn stream(&self) -> PyResult<Stream> {
        Ok(Stream(self.view()?.stream))
    }

    /// The resource that the memory came from; None for memory of another library.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.DeviceBuffer(size=1000).mr
    ///     <CudaMemoryResource `cuda`>
    #[getter]
    fn mr(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.resource(py)
    }

    /// Copy the bytes to the host, and wait for the copy.
    ///
    /// Args:
    ///     stream: The stream of the copy. The default is the buffer's stream.
    ///
    /// Returns:
    ///     The bytes.
    ///
    /// Raises:
    ///     DriverError: The copy failed.
    ///     TypeError: `stream` is not a stream.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.to_device(b"abc").tobytes()
    ///     b'abc'
    #[pyo3(signature = (stream=StreamArgument(None)))]
    fn tobytes<'py>(&self, py: Python<'py>, stream: StreamArgument<'_>) -> PyResult<Bound<'py, PyBytes>> {
        self.read(py, stream)
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.read(py, StreamArgument(None))
    }

    /// Copy the bytes to a host array, and wait for the copy.
    ///
    /// Args:
    ///     ary: A contiguous, writable object with the buffer protocol, at least as large as the buffer.
    ///         With None, the method makes a NumPy array, or a bytearray if NumPy is not installed.
    ///     stream: The stream of the copy. The default is the buffer's stream.
    ///
    /// Returns:
    ///     The array.
    ///
    /// Raises:
    ///     ValueError: The array is smaller than the buffer, not contiguous, or read-only.
    ///     TypeError: `ary` does not support the buffer protocol.
    ///     DriverError: The copy failed.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.to_device(b"abc").copy_to_host(bytearray(3))
    ///     bytearray(b'abc')
    #[pyo3(signature = (ary=None, stream=StreamArgument(None)))]
    fn copy_to_host<'py>(
        &self,
        py: Python<'py>,
        ary: Option<Bound<'py, PyAny>>,
        stream: StreamArgument<'_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.write_host(py, ary, stream)
    }

    /// Copy from host memory to the start of the buffer, and wait for the copy.
    ///
    /// Args:
    ///     ary: A contiguous object with the buffer protocol, not larger than the buffer.
    ///     stream: The stream of the copy. The default is the buffer's stream.
    ///
    /// Raises:
    ///     ValueError: The object is larger than the buffer, or not contiguous.
    ///     TypeError: `ary` does not support the buffer protocol.
    ///     DriverError: The copy failed.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> buffer = millpond.to_device(b"abc")
    ///     >>> buffer.copy_from_host(b"xy")
    ///     >>> buffer.tobytes()
    ///     b'xyc'
    #[pyo3(signature = (ary, stream=StreamArgument(None)))]
    fn copy_from_host(
        &self,
        py: Python<'_>,
        ary: &Bound<'_, PyAny>,
        stream: StreamArgument<'_>,
    ) -> PyResult<()> {
        let (view, stream) = self.view_on(stream)?;
        let host = HostBytes::readable(ary, "ary")?;
        fits(host.bytes as u64, &view, "ary")?;
        // SAFETY: the array is held by `host`, and holds as many.
        Ok(py.detach(|| unsafe { view.write(host.address(), host.bytes as u64, &stream) })?)
    }

    /// Copy from device memory to the start of the buffer, in stream order.
    ///
    /// If the source names a stream, the copy waits for the work on that stream. That stream then waits for
    /// the copy, so you may free the source at once. If the source names no stream, the call itself waits
    /// until the copy is done.
    ///
    /// Args:
    ///     cuda_ary: A buffer, or a contiguous, one-dimensional object with `__cuda_array_interface__`, not
    ///         larger than the buffer.
    ///     stream: The stream of the copy. The default is the buffer's stream.
    ///
    /// Raises:
    ///     ValueError: The source is not device memory, larger than the buffer, or not contiguous.
    ///     DriverError: The copy failed.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> buffer = millpond.DeviceBuffer(size=3)
    ///     >>> buffer.copy_from_device(millpond.to_device(b"abc"))
    ///     >>> buffer.tobytes()
    ///     b'abc'
    #[pyo3(signature = (cuda_ary, stream=StreamArgument(None)))]
    fn copy_from_device(
        &self,
        py: Python<'_>,
        cuda_ary: &Bound<'_, PyAny>,
        stream: StreamArgument<'_>,
    ) -> PyResult<()> {
        self.read_device(py, cuda_ary, stream)
    }

    /// Set each byte to a value, in stream order.
    ///
    /// Args:
    ///     value: The value, from 0 to 255.
    ///     stream: The stream of the work. The default is the buffer's stream.
    ///
    /// Raises:
    ///     OverflowError: `value` is not from 0 to 255.
    ///     TypeError: `value` is not a number, or `stream` is not a stream.
    ///     DriverError: The driver refused the operation.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> buffer = millpond.DeviceBuffer(size=3)
    ///     >>> buffer.fill(65)
    ///     >>> buffer.tobytes()
    ///     b'AAA'
    #[pyo3(signature = (value, stream=StreamArgument(None)))]
    fn fill(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = value)] value: u8,
        stream: StreamArgument<'_>,
    ) -> PyResult<()> {
        let (view, stream) = self.view_on(stream)?;
        Ok(py.detach(|| view.fill(value, &stream))?)
    }

    /// Copy the buffer to new memory of the same resource, in the order of the buffer's stream.
    ///
    /// Raises:
    ///     OutOfMemoryError: The resource is out of memory.
    ///     DriverError: The copy failed.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.to_device(b"abc").copy().tobytes()
    ///     b'abc'
    fn copy(&self, py: Python<'_>) -> PyResult<Self> {
        let view = self.view()?;
        let copy = py.detach(|| view.duplicate(&view.stream))?;
        raise_interrupt(py)?;
        Ok(Self::of(copy, self.given_mr(py)))
    }

    fn __copy__(&self, py: Python<'_>) -> PyResult<Self> {
        self.copy(py)
    }

    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.copy(py)
    }

    /// Make room, so that a later `resize` allocates nothing.
    ///
    /// If the buffer moves to new memory, its slices, and other libraries that share it, keep the old memory.
    ///
    /// Args:
    ///     new_capacity: The size in bytes to make room for. A size below the capacity changes nothing.
    ///     stream: The stream of the copy to new memory. The default is the buffer's stream.
    ///
    /// Raises:
    ///     OutOfMemoryError: The resource is out of memory.
    ///     BufferError: The memory belongs to another library.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> buffer = millpond.to_device(b"abc")
    ///     >>> buffer.reserve(1000)
    ///     >>> buffer.capacity(), buffer.tobytes()
    ///     (1000, b'abc')
    #[pyo3(signature = (new_capacity, stream=StreamArgument(None)))]
    fn reserve(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = new_capacity)] new_capacity: u64,
        stream: StreamArgument<'_>,
    ) -> PyResult<()> {
        let (_, stream) = self.view_on(stream)?;
        self.change(py, &stream, |view| (view.size, Some(new_capacity).filter(|it| *it > view.capacity())))
    }

    /// Change the size. The contents of added bytes are undefined.
    ///
    /// If the buffer moves to new memory, its slices, and other libraries that share it, keep the old memory.
    ///
    /// Args:
    ///     new_size: The new size in bytes. If it exceeds the capacity, the buffer moves to new memory.
    ///     stream: The stream of the copy to new memory. The default is the buffer's stream.
    ///
    /// Raises:
    ///     OutOfMemoryError: The resource is out of memory.
    ///     BufferError: The memory belongs to another library, and `new_size` exceeds its size.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> buffer = millpond.to_device(b"abc")
    ///     >>> buffer.resize(2)
    ///     >>> buffer.tobytes()
    ///     b'ab'
    #[pyo3(signature = (new_size, stream=StreamArgument(None)))]
    fn resize(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = new_size)] new_size: u64,
        stream: StreamArgument<'_>,
    ) -> PyResult<()> {
        let (_, stream) = self.view_on(stream)?;
        self.change(py, &stream, |view| (new_size, Some(new_size).filter(|it| *it > view.capacity())))
    }

    /// If the buffer's capacity exceeds its size, move the bytes to a new block of exactly this size. The
    /// larger block is freed.
    ///
    /// Args:
    ///     stream: The stream of the copy. The default is the buffer's stream.
    ///
    /// Raises:
    ///     OutOfMemoryError: The resource has too little memory for the smaller block.
    ///     BufferError: The memory belongs to another library.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> buffer = millpond.DeviceBuffer(size=1000)
    ///     >>> buffer.resize(10)
    ///     >>> buffer.shrink_to_fit()
    ///     >>> buffer.capacity()
    ///     10
    #[pyo3(signature = (stream=StreamArgument(None)))]
    fn shrink_to_fit(&self, py: Python<'_>, stream: StreamArgument<'_>) -> PyResult<()> {
        let (_, stream) = self.view_on(stream)?;
        self.change(py, &stream, |view| (view.size, Some(view.size).filter(|it| *it < view.capacity())))
    }

    /// Move managed memory to the device or to the host, in stream order. Other memory does not move.
    ///
    /// Args:
    ///     device: The number of the memory's own device, or -1 for the host. None means the memory's own
    ///         device.
    ///     stream: The stream of the work. The default, also for None, is the buffer's stream.
    ///
    /// Raises:
    ///     ValueError: `device` is the number of another device.
    ///     TypeError: `device` is not a number, or `stream` is not a stream.
    ///     DriverError: The driver refused the operation.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> buffer = millpond.DeviceBuffer(size=1000, mr=millpond.mr.ManagedMemoryResource())
    ///     >>> buffer.prefetch()
    #[pyo3(signature = (device=None, stream=None))]
    fn prefetch(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = destination)] device: Option<i32>,
        stream: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.migrate(py, device, StreamArgument(stream))
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Py<PyAny>> {
        self.item(py, index)
    }

    /// Version 3 of the CUDA array interface. Its entry `stream` is the stream that a consumer must wait for.
    ///
    /// A consumer is another library that uses the memory. With this interface, it does not name the stream
    /// that it works on, so the free waits for all work on the device. With DLPack, the consumer names its
    /// stream, and the free waits only for the work on this stream.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let view = self.view()?;
        view.block.use_anywhere();
        let interface = PyDict::new(py);
        interface.set_item("shape", (view.size,))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (view.address(), false))?;
        interface.set_item("version", 3)?;
        interface.set_item("stream", view.block.ordered_stream())?;
        Ok(interface)
    }

    /// DLPack's description of the device: the kind of memory, and the device's number.
    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        let view = self.view()?;
        Ok(py.detach(|| dlpack::device_of(&view))?)
    }

    /// Returns a DLPack capsule. Its deleter needs no GIL. Unless `stream` is -1, the stream `stream` waits
    /// for the buffer's stream.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = dl_stream)] stream: Option<i64>,
        #[pyo3(from_py_with = max_version)] max_version: Option<(u32, u32)>,
        #[pyo3(from_py_with = dl_device)] dl_device: Option<(i32, i32)>,
        #[pyo3(from_py_with = copy)] copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        dlpack::export(py, self.view()?, stream, max_version, dl_device, copy)
    }

    fn __reduce_ex__<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = protocol)] protocol: i32,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let to_device = py.import("millpond")?.getattr("to_device")?;
        let bytes = self.read(py, StreamArgument(None))?.into_any();
        let host = if protocol >= 5 {
            py.import("pickle")?.getattr("PickleBuffer")?.call1((bytes,))?
        } else {
            bytes
        };
        (to_device, (host,)).into_pyobject(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Another thread may hold the lock for a moment; the collector then finds the object in use.
        match self.mr.try_lock() {
            Some(mr) => visit.call(mr.as_ref()),
            None => Ok(()),
        }
    }

    fn __clear__(&self) {
        let mr = self.mr.lock().take();
        drop(mr);
    }

    fn __repr__(&self) -> String {
        match self.view() {
            Ok(view) => format!("<DeviceBuffer of {} bytes at {:#x}>", view.size, view.address()),
            Err(_) => "<DeviceBuffer, collected>".to_owned(),
        }
    }

    /// Offers the bytes to the host: in place if the host can access them, or else as a read-only copy.
    ///
    /// # Safety
    /// Python calls this function with a buffer to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, buffer: *mut ffi::Py_buffer, flags: i32) -> PyResult<()> {
        // SAFETY: the caller's promise.
        unsafe { Self::export(&slf, buffer, flags) }
    }

    /// # Safety
    /// Python calls this function with a buffer that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, buffer: *mut ffi::Py_buffer) {
        // SAFETY: the value came from `__getbuffer__`, and ends here.
        drop(unsafe { Box::from_raw((*buffer).internal.cast::<(View, Hidden)>()) });
    }
}

/// Copy host bytes to a new buffer, and wait for the copy.
///
/// Args:
///     b: A contiguous object with the buffer protocol, such as bytes or a NumPy array.
///     stream: The stream of the buffer. If you leave it out, the default stream is used.
///     mr: The resource; None means the current device's default resource.
///
/// Returns:
///     The buffer.
///
/// Raises:
///     OutOfMemoryError: The resource is out of memory.
///     TypeError: `b` does not support the buffer protocol.
///     ValueError: `b` is not contiguous.
///
/// Example:
///     >>> import millpond
///     >>> millpond.to_device(b"abc").size
///     3
#[pyfunction]
#[pyo3(signature = (b, stream=StreamArgument(None), *, mr=None))]
pub(crate) fn to_device(
    py: Python<'_>,
    b: &Bound<'_, PyAny>,
    stream: StreamArgument<'_>,
    mr: Option<Bound<'_, PyAny>>,
) -> PyResult<DeviceBuffer> {
    let host = HostBytes::readable(b, "b")?;
    let made = DeviceBuffer::make(py, 0, host.bytes as u64, stream, mr)?;
    let view = made.view()?;
    // SAFETY: the bytes are held by `host`.
    py.detach(|| unsafe { view.write(host.address(), host.bytes as u64, &view.stream) })?;
    Ok(made)
}
