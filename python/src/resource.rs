//! Memory resources: stacks from the library, as the base class of Python's resource classes.

use std::ptr::null_mut;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::api::{Counters, Raw, Statistics, api, c_argument, take_text};
use crate::arguments::{RESOURCE, alignment, instance, keep_bytes, nbytes, ptr};
use crate::device::{Device, DeviceHandle, StreamArgument, StreamHandle};
use crate::error::{Failure, check, raise_interrupt};
use crate::functions::{call_allocate, call_deallocate, call_failure, context_of, end_functions};
use crate::handle::{Below, Owned, ResourceHandle, take_recent_default};

/// A memory resource: a stack of layers over the memory of one device.
///
/// `millpond.stack` builds a resource from text. Each class of `millpond.mr` is a layer. To write your own
/// class, derive it from one of these classes.
///
/// Example:
///     >>> import millpond
///     >>> resource = millpond.stack("cuda+statistics")
///     >>> ptr = resource.allocate(1000)
///     >>> resource.deallocate(ptr, 1000)
#[pyclass(frozen, subclass, weakref, module = "millpond")]
#[derive(Debug, Default)]
pub(crate) struct Resource(Mutex<Option<Owned>>);

impl Resource {
    /// Returns the handle of a resource that was built.
    pub(crate) fn handle(&self) -> PyResult<Arc<ResourceHandle>> {
        self.0.lock().as_ref().map(|owned| owned.handle().clone()).ok_or_else(|| {
            PyTypeError::new_err("this resource was not built: its class must call `super().__init__`")
        })
    }

    /// Replaces the handle. Blocks of the earlier resource keep that resource.
    fn set(&self, py: Python<'_>, handle: Arc<ResourceHandle>) {
        let before = self.0.lock().replace(Owned::new(handle));
        // Not under the lock: its end may wait.
        py.detach(|| drop(before));
    }

    /// Makes a Python object over a handle.
    pub(crate) fn of(handle: Arc<ResourceHandle>) -> Self {
        Self(Mutex::new(Some(Owned::new(handle))))
    }

    /// Calls the library without the GIL.
    fn call(&self, py: Python<'_>, call: impl FnOnce(&ResourceHandle) -> i32 + Send) -> PyResult<()> {
        let handle = self.handle()?;
        py.detach(|| check(call(&handle)))?;
        raise_interrupt(py)
    }

    fn check_stream(&self, py: Python<'_>, stream: &StreamHandle) -> PyResult<()> {
        let handle = self.handle()?;
        Ok(py.detach(|| stream.check_on(handle.device()?))?)
    }

    pub(crate) fn build(
        &self,
        py: Python<'_>,
        below: Below,
        make: impl FnOnce(*mut Raw) -> i32 + Send,
    ) -> PyResult<()> {
        let made = py.detach(|| ResourceHandle::on(below, make))?;
        self.set(py, made);
        Ok(())
    }
}

/// Describes a resource that is built on one other resource.
pub(crate) fn on(upstream: &Arc<ResourceHandle>) -> Below {
    Below { resources: vec![upstream.clone()], functions: None }
}

/// A handle that a closure without the GIL uses.
pub(crate) struct Sendable<T>(pub(crate) T);
// SAFETY: it wraps handles and pointers that the caller keeps alive; the library is thread-safe.
unsafe impl<T> Send for Sendable<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Sendable<T> {}

impl<T> Sendable<Vec<T>> {
    fn as_slice(&self) -> &[T] {
        &self.0
    }
}

impl<T: Copy> Sendable<T> {
    pub(crate) fn get(&self) -> T {
        self.0
    }
}

#[pymethods]
impl Resource {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self::default()
    }

    /// Builds this object from the text of a stack, on a device.
    #[pyo3(signature = (text, device=None))]
    fn _build(&self, py: Python<'_>, text: &str, device: Option<&Device>) -> PyResult<()> {
        let (text, device) = (c_argument(text)?, device.map(|device| device.0.clone()));
        let device = match device {
            Some(device) => device,
            None => py.detach(DeviceHandle::current)?,
        };
        // SAFETY: the device's handle is live, the text is a string, and the result may be written.
        self.build(py, Below::default(), |made| unsafe {
            (api().resource_new)(device.0, text.as_ptr(), made)
        })
    }

    /// Builds this object from the text of layers, on top of a resource.
    fn _layer(&self, py: Python<'_>, upstream: &Self, text: &str) -> PyResult<()> {
        let (text, upstream) = (c_argument(text)?, upstream.handle()?);
        // SAFETY: the handle is live, the text is a string, and the result may be written.
        self.build(py, on(&upstream), |made| unsafe {
            (api().resource_layer)(upstream.raw, text.as_ptr(), made)
        })
    }

    /// Builds a layer that adds the checks of a simulated device to a resource, for tests.
    fn _watch(&self, py: Python<'_>, upstream: &Self) -> PyResult<()> {
        let upstream = upstream.handle()?;
        // SAFETY: the handle is live, and the result may be written.
        self.build(py, on(&upstream), |made| unsafe { (api().oracle_watch)(upstream.raw, made) })
    }

    /// Makes this object another handle of the same resource.
    fn _share(&self, py: Python<'_>, other: &Self) -> PyResult<()> {
        self.set(py, other.handle()?);
        Ok(())
    }

    /// Builds bins on top of a resource, from pairs of a size and a resource. If a pair has None for the
    /// resource, the bin makes its own blocks.
    fn _binning(
        &self,
        py: Python<'_>,
        upstream: &Self,
        bins: Vec<(u64, Option<Bound<'_, PyAny>>)>,
    ) -> PyResult<()> {
        let upstream = upstream.handle()?;
        let sizes: Vec<u64> = bins.iter().map(|bin| bin.0).collect();
        let mut handles = Vec::new();
        for (_, resource) in &bins {
            handles.push(match resource {
                Some(resource) => Some(resource.cast::<Self>()?.get().handle()?),
                None => None,
            });
        }
        let raw =
            |handle: &Option<Arc<ResourceHandle>>| handle.as_ref().map_or(null_mut(), |handle| handle.raw);
        let raws = Sendable(handles.iter().map(raw).collect::<Vec<Raw>>());
        let resources = handles.iter().flatten().chain([&upstream]).cloned().collect();
        self.build(py, Below { resources, functions: None }, |made| {
            let first = raws.as_slice().as_ptr();
            // SAFETY: `handles` keeps the handles alive; both arrays have this length; the result may be
            // written.
            unsafe { (api().resource_binning)(upstream.raw, sizes.as_ptr(), first, sizes.len(), made) }
        })
    }

    /// Builds a view of one of the driver's own pools.
    #[pyo3(signature = (pool, device=None))]
    fn _view(&self, py: Python<'_>, pool: usize, device: Option<&Device>) -> PyResult<()> {
        let device = match device {
            Some(device) => device.0.clone(),
            None => py.detach(DeviceHandle::current)?,
        };
        let pool = Sendable(std::ptr::without_provenance_mut(pool));
        // SAFETY: the device's handle is live; the caller vouches for the pool; the result may be written.
        self.build(py, Below::default(), |made| unsafe {
            (api().resource_async_view)(device.0, pool.get(), made)
        })
    }

    /// Builds a resource over two Python functions.
    #[pyo3(signature = (allocate, deallocate, device=None))]
    fn _callback(
        &self,
        py: Python<'_>,
        allocate: Py<PyAny>,
        deallocate: Py<PyAny>,
        device: Option<&Device>,
    ) -> PyResult<()> {
        let device = match device {
            Some(device) => device.0.clone(),
            None => py.detach(DeviceHandle::current)?,
        };
        let context = Sendable(context_of([allocate, deallocate]));
        let below = Below { resources: Vec::new(), functions: Some(context.get()) };
        // SAFETY: the device's handle is live, and the functions have these types. The library calls
        // `end_functions` last; the result may be written.
        self.build(py, below, |made| unsafe {
            (api().resource_callback)(
                device.0,
                call_allocate,
                call_deallocate,
                context.get(),
                end_functions,
                made,
            )
        })
    }

    /// Builds a layer that calls `handle` when a resource is out of memory.
    fn _failure_callback(&self, py: Python<'_>, upstream: &Self, handle: Py<PyAny>) -> PyResult<()> {
        let upstream = upstream.handle()?;
        let context = Sendable(context_of([handle]));
        let below = Below { functions: Some(context.get()), ..on(&upstream) };
        // SAFETY: as above.
        self.build(py, below, |made| unsafe {
            (api().resource_failure_callback)(upstream.raw, call_failure, context.get(), end_functions, made)
        })
    }

    /// Allocate memory for use on a stream.
    ///
    /// Args:
    ///     nbytes: The size in bytes.
    ///     stream: The stream. If you leave it out, the default stream is used.
    ///     alignment: The alignment of the address in bytes, a power of 2; 0 means the default of 256.
    ///
    /// Returns:
    ///     The address as a number.
    ///
    /// Raises:
    ///     OutOfMemoryError: The resource is out of memory. This error is a `MemoryError`.
    ///     OverflowError: `nbytes` is negative.
    ///     InvalidArgumentError: `alignment` is invalid, or the stream belongs to another device.
    ///     TypeError: `stream` is not a stream.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> resource = millpond.mr.CudaMemoryResource()
    ///     >>> ptr = resource.allocate(1000)
    ///     >>> resource.deallocate(ptr, 1000)
    #[pyo3(signature = (nbytes, stream=StreamArgument(None), *, alignment=0))]
    fn allocate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = nbytes)] nbytes: u64,
        stream: StreamArgument<'_>,
        #[pyo3(from_py_with = alignment)] alignment: u64,
    ) -> PyResult<usize> {
        let stream = stream.resolve()?;
        let mut block = Sendable(null_mut());
        let place = Sendable(&raw mut block.0);
        self.check_stream(py, &stream)?;
        let called = self.call(py, |handle| {
            // SAFETY: the handle and the stream are live; the result may be written.
            unsafe { (api().allocate)(handle.raw, nbytes, alignment, stream.ptr(), place.get()) }
        });
        if called.is_err() && !block.0.is_null() {
            // The call was interrupted but still succeeded.
            let block = Sendable(block.0);
            self.call(py, |handle| {
                // SAFETY: the block is new, and no other code knows it.
                unsafe { (api().deallocate)(handle.raw, block.get(), nbytes, alignment, stream.ptr()) }
            })?;
        }
        called.map(|()| block.0.addr())
    }

    /// Free memory in the order of a stream: after the stream's earlier work.
    ///
    /// Args:
    ///     ptr: The address that `allocate` returned.
    ///     nbytes: The size that was passed to `allocate`, in bytes.
    ///     stream: The stream. If you leave it out, the default stream is used.
    ///     alignment: The alignment that was passed to `allocate`, in bytes.
    ///
    /// Raises:
    ///     InvalidArgumentError: The resource has no such live block, or the stream belongs to another
    ///         device.
    ///     TypeError: `stream` is not a stream.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> resource, stream = millpond.mr.CudaMemoryResource(), millpond.Stream()
    ///     >>> ptr = resource.allocate(1000, stream)
    ///     >>> resource.deallocate(ptr, 1000, stream)
    #[pyo3(signature = (ptr, nbytes, stream=StreamArgument(None), *, alignment=0))]
    fn deallocate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = ptr)] ptr: usize,
        #[pyo3(from_py_with = nbytes)] nbytes: u64,
        stream: StreamArgument<'_>,
        #[pyo3(from_py_with = alignment)] alignment: u64,
    ) -> PyResult<()> {
        let stream = stream.resolve()?;
        self.check_stream(py, &stream)?;
        self.call(py, |handle| {
            let ptr = std::ptr::without_provenance_mut(ptr);
            // SAFETY: the handle and the stream are live; the caller vouches for the rest.
            unsafe { (api().deallocate)(handle.raw, ptr, nbytes, alignment, stream.ptr()) }
        })
    }

    /// The device of the memory.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.stack("cuda").device == millpond.Device()
    ///     True
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<Device> {
        let handle = self.handle()?;
        Ok(Device(py.detach(|| handle.device().cloned())?))
    }

    /// The text of the stack, base first. `millpond.stack` builds an equal stack from this text.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.stack("cuda+statistics").text
    ///     'cuda+statistics'
    #[getter]
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let handle = self.handle()?;
        Ok(py.detach(|| handle.text())?)
    }

    /// Whether the device can access the memory.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.stack("cuda").is_device_accessible
    ///     True
    #[getter]
    fn is_device_accessible(&self, py: Python<'_>) -> PyResult<bool> {
        let handle = self.handle()?;
        Ok(py.detach(|| handle.accessibility())?.0)
    }

    /// Whether the host can access the memory.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.stack("cuda").is_host_accessible, millpond.stack("managed").is_host_accessible
    ///     (False, True)
    #[getter]
    fn is_host_accessible(&self, py: Python<'_>) -> PyResult<bool> {
        let handle = self.handle()?;
        Ok(py.detach(|| handle.accessibility())?.1)
    }

    /// Return the free and the total memory in bytes. The free memory includes free blocks of the resource.
    ///
    /// Raises:
    ///     DriverError: The driver could not answer.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> free, total = millpond.stack("cuda+pool:initial=1MiB").memory_info()
    ///     >>> 0 < free <= total
    ///     True
    fn memory_info(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the handle is live, and the results may be written.
        self.call(py, |handle| unsafe {
            (api().resource_memory_info)(handle.raw, &raw mut free, &raw mut total)
        })?;
        Ok((free, total))
    }

    /// Return free memory to the layer below.
    ///
    /// Args:
    ///     keep_bytes: The resource returns memory until it holds at most this many bytes, in use or free.
    ///
    /// Returns:
    ///     The number of bytes that the resource returned.
    ///
    /// Raises:
    ///     OverflowError: `keep_bytes` is negative.
    ///     DriverError: The driver reported an error.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> pool = millpond.stack("cuda+pool:initial=64MiB")
    ///     >>> pool.trim()
    ///     67108864
    #[pyo3(signature = (keep_bytes=0))]
    fn trim(&self, py: Python<'_>, #[pyo3(from_py_with = keep_bytes)] keep_bytes: u64) -> PyResult<u64> {
        let mut freed = 0;
        // SAFETY: the handle is live, and the result may be written.
        self.call(py, |handle| unsafe { (api().resource_trim)(handle.raw, keep_bytes, &raw mut freed) })?;
        Ok(freed)
    }

    /// Return the counters of the outermost layer that has counters.
    ///
    /// Returns:
    ///     A dict. These entries are sizes in bytes: `bytes_in_use`, `bytes_requested`, `peak_bytes_in_use`,
    ///     `bytes_reserved`, `peak_bytes_reserved`, `largest_free_block`. These are counts: `blocks_in_use`,
    ///     `blocks_free`, `allocations`, `deallocations`, and `misuses`, the frees that were refused.
    ///
    /// Raises:
    ///     UnsupportedError: No layer has counters.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> pool = millpond.stack("cuda+pool:initial=64MiB")
    ///     >>> pool.counts()["bytes_reserved"]
    ///     67108864
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut counted = Statistics::default();
        // SAFETY: the handle is live, and the result may be written.
        self.call(py, |handle| unsafe { (api().resource_statistics)(handle.raw, &raw mut counted) })?;
        let answer = PyDict::new(py);
        for (name, value) in [
            ("bytes_in_use", counted.bytes_in_use),
            ("bytes_requested", counted.bytes_requested),
            ("peak_bytes_in_use", counted.peak_bytes_in_use),
            ("bytes_reserved", counted.bytes_reserved),
            ("peak_bytes_reserved", counted.peak_bytes_reserved),
            ("largest_free_block", counted.largest_free_block),
            ("blocks_in_use", counted.blocks_in_use),
            ("blocks_free", counted.blocks_free),
            ("allocations", counted.allocations),
            ("deallocations", counted.deallocations),
            ("misuses", counted.misuses),
        ] {
            answer.set_item(name, value)?;
        }
        Ok(answer)
    }

    /// Returns the report of the stack's memory as text and as JSON.
    fn _report(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let handle = self.handle()?;
        Ok(py.detach(|| {
            let ask = |as_json| {
                let mut text = null_mut();
                // SAFETY: the handle is live, and the result may be written.
                check(unsafe { (api().resource_memory_report)(handle.raw, as_json, &raw mut text) })?;
                Ok::<_, Failure>(take_text(text))
            };
            Ok::<_, Failure>((ask(false)?, ask(true)?))
        })?)
    }

    /// Returns the layers' data about the live block at the address `ptr`, as JSON, or None.
    fn _block_at(&self, py: Python<'_>, ptr: usize) -> PyResult<Option<String>> {
        let handle = self.handle()?;
        Ok(py.detach(|| {
            let (mut text, ptr) = (null_mut(), std::ptr::without_provenance_mut(ptr));
            // SAFETY: the handle is live, and the result may be written.
            check(unsafe { (api().resource_block_at)(handle.raw, ptr, &raw mut text) })?;
            Ok::<_, Failure>((!text.is_null()).then(|| take_text(text)))
        })?)
    }

    /// Set the peaks and totals of all layers to the memory that is in use now.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> resource = millpond.stack("cuda+statistics")
    ///     >>> resource.deallocate(resource.allocate(1000), 1000)
    ///     >>> resource.clear_counters()
    ///     >>> resource.allocation_counts.total_bytes
    ///     0
    fn clear_counters(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle is live.
        self.call(py, |handle| unsafe { (api().resource_clear_counters)(handle.raw) })
    }

    /// Returns the counters of a level: current, peak and total bytes, and then the same for allocations.
    /// `step` is 1 to start a level, -1 to end one, and otherwise 0.
    fn _counters(&self, py: Python<'_>, step: i32) -> PyResult<(i64, i64, i64, i64, i64, i64)> {
        let mut c = Counters::default();
        let ask = match step {
            0 => api().statistics_counters,
            1 => api().statistics_push,
            _ => api().statistics_pop,
        };
        // SAFETY: the handle is live, and the result may be written.
        self.call(py, |handle| unsafe { ask(handle.raw, &raw mut c) })?;
        Ok((c.current_bytes, c.peak_bytes, c.total_bytes, c.current_count, c.peak_count, c.total_count))
    }

    /// Returns the bytes in use under a limit, and the limit.
    fn _limits(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let (mut allocated, mut limit) = (0, 0);
        // SAFETY: the handle is live, and the results may be written.
        self.call(py, |handle| unsafe {
            (api().limiting_counts)(handle.raw, &raw mut allocated, &raw mut limit)
        })?;
        Ok((allocated, limit))
    }

    /// Returns the bytes of the live allocations, and these allocations as text.
    fn _outstanding(&self, py: Python<'_>) -> PyResult<(u64, String)> {
        let handle = self.handle()?;
        Ok(py.detach(|| {
            let (mut bytes, mut text) = (0, null_mut());
            // SAFETY: the handle is live, and the results may be written.
            check(unsafe { (api().tracking_outstanding)(handle.raw, &raw mut bytes, &raw mut text) })?;
            Ok::<_, Failure>((bytes, take_text(text)))
        })?)
    }

    /// Writes the buffered rows of a log.
    fn _flush(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle is live.
        self.call(py, |handle| unsafe { (api().logging_flush)(handle.raw) })
    }

    /// Returns the driver's pool (`CUmemoryPool`) as a number.
    fn _async_pool(&self, py: Python<'_>) -> PyResult<usize> {
        let mut pool = Sendable(null_mut());
        let place = Sendable(&raw mut pool.0);
        // SAFETY: the handle is live, and the result may be written.
        self.call(py, |handle| unsafe { (api().async_pool)(handle.raw, place.get()) })?;
        Ok(pool.0.addr())
    }

    /// Makes this the default resource of its device. Returns the replaced resources, which the caller drops.
    fn _make_default(&self, py: Python<'_>) -> PyResult<Vec<Self>> {
        let (handle, mut raw) = (self.handle()?, Sendable(null_mut()));
        let place = Sendable(&raw mut raw.0);
        // SAFETY: the handle is live, and the result may be written.
        check(py.detach(|| unsafe { (api().set_per_device_resource)(handle.raw, place.get()) }))?;
        let before = [ResourceHandle::owned(raw.0), take_recent_default()];
        Ok(before.into_iter().flatten().map(Self::of).collect())
    }

    /// Return whether this resource and another one can free each other's blocks.
    ///
    /// Args:
    ///     other: The other resource.
    ///
    /// Raises:
    ///     TypeError: `other` is not a resource.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.stack("cuda").is_equal(millpond.stack("cuda"))
    ///     True
    fn is_equal(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let other = instance::<Self>(other, "other", RESOURCE)?;
        let (handle, other) = (self.handle()?, other.get().handle()?);
        // SAFETY: both handles are live.
        Ok(py.detach(|| unsafe { (api().resource_is_equal)(handle.raw, other.raw) }))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Another thread may hold the lock for a moment; the collector then finds the functions in use.
        let Some(handle) = self.0.try_lock() else { return Ok(()) };
        let functions = handle.as_ref().map_or(&[][..], |owned| owned.handle().seen_functions());
        functions.iter().try_for_each(|function| visit.call(function))
    }

    fn __clear__(&self) {
        self._end();
    }

    /// Ends the resource's buffers and, if the resource's end calls the program's functions, the resource. A
    /// finaliser calls this while the functions still work. The functions may use other resources, so this
    /// method does not end other resources.
    fn _finalise(&self) {
        match self.handle() {
            Ok(handle) if handle.has_functions_below() => self._end(),
            Ok(handle) => handle.end_buffers(),
            Err(_) => {}
        }
    }

    /// Ends this object's use of the resource.
    fn _end(&self) {
        let before = self.0.lock().take();
        // Not under the lock: its end may wait.
        if let Some(owned) = &before {
            owned.handle().end_buffers();
        }
        drop(before);
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().qualname()?;
        Ok(match slf.get().handle().ok() {
            Some(handle) => format!("<{name} `{}`>", slf.py().detach(|| handle.text())?),
            None => format!("<{name}, not built>"),
        })
    }
}
