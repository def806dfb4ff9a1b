//! Memory resources: stacks of the library's, as a class that Python's classes derive from.

use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::api::{Counters, Raw, Statistics, api, c_text, generation, take_text};
use crate::device::{Device, DeviceHandle, StreamArgument, ensure_device};
use crate::error::{Failure, Raised, check, keep_raised};
use crate::size::size;

/// The library's handle of a resource.
#[derive(Debug)]
pub(crate) struct ResourceHandle {
    pub(crate) raw: Raw,
    made_in: usize,
    device: OnceLock<Arc<DeviceHandle>>,
}

// SAFETY: the library's functions may be called on any thread.
unsafe impl Send for ResourceHandle {}
// SAFETY: as above.
unsafe impl Sync for ResourceHandle {}

impl Drop for ResourceHandle {
    fn drop(&mut self) {
        // A forked child leaves its parent's memory alone.
        if self.made_in == generation() {
            // SAFETY: the handle is this value's own.
            unsafe { (api().resource_free)(self.raw) }
        }
    }
}

impl ResourceHandle {
    /// The resource that `make` writes.
    pub(crate) fn from_call(make: impl FnOnce(*mut Raw) -> i32) -> Result<Arc<Self>, Failure> {
        let mut raw = null_mut();
        check(make(&raw mut raw))?;
        Ok(Arc::new(Self { raw, made_in: generation(), device: OnceLock::new() }))
    }

    /// The default resource of the current device. Called without the GIL, as it may end the one that was
    /// the default before.
    pub(crate) fn current() -> Result<Arc<Self>, Failure> {
        ensure_device()?;
        // SAFETY: the result may be written.
        let current = Self::from_call(|resource| unsafe { (api().get_current_device_resource)(resource) })?;
        let before = RECENT_DEFAULT.lock().replace(current.clone());
        // Not under the lock: its end may wait for the GIL, whose holder may wait for the lock.
        drop(before);
        Ok(current)
    }

    /// What was last found to be a default resource; it may be none any more.
    pub(crate) fn recent_default() -> Option<Arc<Self>> {
        RECENT_DEFAULT.lock().as_ref().filter(|recent| recent.made_in == generation()).cloned()
    }

    /// The resource's device.
    pub(crate) fn device(&self) -> Result<&Arc<DeviceHandle>, Failure> {
        if self.device.get().is_none() {
            // SAFETY: the handle is live, and the result may be written.
            let device =
                DeviceHandle::from_call(|device| unsafe { (api().resource_device)(self.raw, device) })?;
            let _ = self.device.set(device);
        }
        Ok(self.device.get().expect("it was set"))
    }

    /// What reaches its memory: the device, and the host.
    pub(crate) fn accessibility(&self) -> Result<(bool, bool), Failure> {
        let (mut device, mut host) = (false, false);
        // SAFETY: the handle is live, and the results may be written.
        check(unsafe { (api().resource_accessibility)(self.raw, &raw mut device, &raw mut host) })?;
        Ok((device, host))
    }

    pub(crate) fn text(&self) -> Result<String, Failure> {
        let mut text = null_mut();
        // SAFETY: the handle is live, and the result may be written.
        check(unsafe { (api().resource_text)(self.raw, &raw mut text) })?;
        Ok(take_text(text))
    }
}

/// The last default resource that [`ResourceHandle::current`] found; none after a default was set here.
static RECENT_DEFAULT: Mutex<Option<Arc<ResourceHandle>>> = Mutex::new(None);

/// Lets a default resource that was replaced end with its last buffer.
fn forget_recent_default() {
    let recent = RECENT_DEFAULT.lock().take();
    drop(recent);
}

/// A memory resource: a stack of layers over one device's memory.
///
/// Build one with `millpond.stack(...)` or with the classes of `millpond.mr`.
#[pyclass(frozen, subclass, weakref, module = "millpond")]
#[derive(Debug, Default)]
pub(crate) struct Resource(Mutex<Option<Arc<ResourceHandle>>>);

impl Drop for Resource {
    fn drop(&mut self) {
        // A pool that ends reaches the driver, and may wait for a function of the program's.
        let handle = self.0.get_mut().take();
        let mut handle = Some(handle);
        let _ = Python::try_attach(|py| py.detach(|| drop(handle.take())));
    }
}

impl Resource {
    /// The handle of a resource that was built.
    pub(crate) fn handle(&self) -> PyResult<Arc<ResourceHandle>> {
        self.0.lock().clone().ok_or_else(|| {
            PyTypeError::new_err("this resource was not built: its class has to call `super().__init__`")
        })
    }

    /// Blocks of a resource that was replaced keep it.
    fn set(&self, py: Python<'_>, handle: Arc<ResourceHandle>) {
        let before = self.0.lock().replace(handle);
        py.detach(|| drop(before));
    }

    /// A Python object over a handle.
    pub(crate) fn of(handle: Arc<ResourceHandle>) -> Self {
        Self(Mutex::new(Some(handle)))
    }

    /// Calls the library with the GIL released.
    fn call(&self, py: Python<'_>, call: impl FnOnce(&ResourceHandle) -> i32 + Send) -> PyResult<()> {
        let handle = self.handle()?;
        Ok(py.detach(|| check(call(&handle)))?)
    }

    fn build(&self, py: Python<'_>, make: impl FnOnce(*mut Raw) -> i32 + Send) -> PyResult<()> {
        self.set(py, py.detach(|| ResourceHandle::from_call(make))?);
        Ok(())
    }
}

/// A handle that crosses into a closure without the GIL.
struct Sendable<T>(T);
// SAFETY: what is wrapped are handles and pointers that the caller keeps alive; the library is thread-safe.
unsafe impl<T> Send for Sendable<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Sendable<T> {}

impl<T> Sendable<Vec<T>> {
    fn as_slice(&self) -> &[T] {
        &self.0
    }
}

impl<T: Copy> Sendable<T> {
    fn get(&self) -> T {
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
        let (text, device) = (c_text(text), device.map(|device| device.0.clone()));
        let device = match device {
            Some(device) => device,
            None => py.detach(DeviceHandle::current)?,
        };
        // SAFETY: the device's handle is live, the text is a string, and the result may be written.
        self.build(py, |made| unsafe { (api().resource_new)(device.0, text.as_ptr(), made) })
    }

    /// Builds this object from the text of layers, on a resource.
    fn _layer(&self, py: Python<'_>, upstream: &Self, text: &str) -> PyResult<()> {
        let (text, upstream) = (c_text(text), upstream.handle()?);
        // SAFETY: the handle is live, the text is a string, and the result may be written.
        self.build(py, |made| unsafe { (api().resource_layer)(upstream.raw, text.as_ptr(), made) })
    }

    /// Makes this object another handle of the same resource.
    fn _share(&self, py: Python<'_>, other: &Self) -> PyResult<()> {
        self.set(py, other.handle()?);
        Ok(())
    }

    /// Builds bins: pairs of a size and a resource or None.
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
        let resources = Sendable(handles.iter().map(raw).collect::<Vec<Raw>>());
        self.build(py, |made| {
            let first = resources.as_slice().as_ptr();
            // SAFETY: the handles are live, as `handles` is; both arrays hold as many; the result may be
            // written.
            unsafe { (api().resource_binning)(upstream.raw, sizes.as_ptr(), first, sizes.len(), made) }
        })
    }

    /// Builds a view of a driver's pool.
    #[pyo3(signature = (pool, device=None))]
    fn _view(&self, py: Python<'_>, pool: usize, device: Option<&Device>) -> PyResult<()> {
        let device = match device {
            Some(device) => device.0.clone(),
            None => py.detach(DeviceHandle::current)?,
        };
        let pool = Sendable(std::ptr::without_provenance_mut(pool));
        // SAFETY: the device's handle is live; the pool is the caller's; the result may be written.
        self.build(py, |made| unsafe { (api().resource_async_view)(device.0, pool.get(), made) })
    }

    /// Builds a resource of two functions.
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
        let context = Sendable(Box::into_raw(Box::new((allocate, deallocate))).cast());
        // SAFETY: the device's handle is live, the functions keep to their types, and the context is ended by
        // the last of them; the result may be written.
        self.build(py, |made| unsafe {
            (api().resource_callback)(
                device.0,
                call_allocate,
                call_deallocate,
                context.get(),
                end_callback,
                made,
            )
        })
    }

    /// Builds a handler of failures on a resource.
    fn _failure_callback(&self, py: Python<'_>, upstream: &Self, handle: Py<PyAny>) -> PyResult<()> {
        let upstream = upstream.handle()?;
        let context = Sendable(Box::into_raw(Box::new(handle)).cast());
        // SAFETY: as above.
        self.build(py, |made| unsafe {
            (api().resource_failure_callback)(upstream.raw, call_failure, context.get(), end_failure, made)
        })
    }

    /// Hands out `nbytes` bytes for use on `stream`, and returns their address.
    #[pyo3(signature = (nbytes, stream=StreamArgument(None), *, alignment=0))]
    fn allocate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = size)] nbytes: u64,
        stream: StreamArgument<'_>,
        alignment: u64,
    ) -> PyResult<usize> {
        let stream = stream.resolve()?;
        let mut block = Sendable(null_mut());
        let place = Sendable(&raw mut block.0);
        self.call(py, |handle| {
            // SAFETY: the handle is live, and so is the stream; the result may be written.
            unsafe { (api().allocate)(handle.raw, nbytes, alignment, stream.ptr(), place.get()) }
        })?;
        Ok(block.0.addr())
    }

    /// Takes a block back, in the order of `stream`.
    #[pyo3(signature = (ptr, nbytes, stream=StreamArgument(None), *, alignment=0))]
    fn deallocate(
        &self,
        py: Python<'_>,
        ptr: usize,
        #[pyo3(from_py_with = size)] nbytes: u64,
        stream: StreamArgument<'_>,
        alignment: u64,
    ) -> PyResult<()> {
        let stream = stream.resolve()?;
        self.call(py, |handle| {
            let ptr = std::ptr::without_provenance_mut(ptr);
            // SAFETY: the handle is live, and so is the stream; the rest is the caller's promise.
            unsafe { (api().deallocate)(handle.raw, ptr, nbytes, alignment, stream.ptr()) }
        })
    }

    /// The resource's device.
    #[getter]
    fn device(&self) -> PyResult<Device> {
        Ok(Device(self.handle()?.device()?.clone()))
    }

    /// The text of the stack, base first, as `cuda+pool+statistics`.
    #[getter]
    fn text(&self) -> PyResult<String> {
        Ok(self.handle()?.text()?)
    }

    /// Whether the device reaches the memory.
    #[getter]
    fn is_device_accessible(&self) -> PyResult<bool> {
        Ok(self.handle()?.accessibility()?.0)
    }

    /// Whether the host reaches the memory.
    #[getter]
    fn is_host_accessible(&self) -> PyResult<bool> {
        Ok(self.handle()?.accessibility()?.1)
    }

    /// The free bytes, with what the resource could hand out again, and the total bytes.
    fn memory_info(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the handle is live, and the results may be written.
        self.call(py, |handle| unsafe {
            (api().resource_memory_info)(handle.raw, &raw mut free, &raw mut total)
        })?;
        Ok((free, total))
    }

    /// Gives free memory back until at most `keep_bytes` are held, and returns the bytes given back.
    #[pyo3(signature = (keep_bytes=0))]
    fn trim(&self, py: Python<'_>, #[pyo3(from_py_with = size)] keep_bytes: u64) -> PyResult<u64> {
        let mut freed = 0;
        // SAFETY: the handle is live, and the result may be written.
        self.call(py, |handle| unsafe { (api().resource_trim)(handle.raw, keep_bytes, &raw mut freed) })?;
        Ok(freed)
    }

    /// What the nearest layer counts that keeps counts, as a dict; sizes in bytes.
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

    /// The report of the stack's memory as text and as JSON.
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

    /// What the layers know of the block in use that starts at `ptr`, as JSON, or None.
    fn _block_at(&self, py: Python<'_>, ptr: usize) -> PyResult<Option<String>> {
        let handle = self.handle()?;
        Ok(py.detach(|| {
            let (mut text, ptr) = (null_mut(), std::ptr::without_provenance_mut(ptr));
            // SAFETY: the handle is live, and the result may be written.
            check(unsafe { (api().resource_block_at)(handle.raw, ptr, &raw mut text) })?;
            Ok::<_, Failure>((!text.is_null()).then(|| take_text(text)))
        })?)
    }

    /// Begins the peaks and totals of all layers anew.
    fn clear_counters(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle is live.
        self.call(py, |handle| unsafe { (api().resource_clear_counters)(handle.raw) })
    }

    /// The counters of a level: current, peak and total bytes, then counts. `step` is 1 to start a level, -1
    /// to end one.
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

    /// The bytes that a limit has handed out, and the limit.
    fn _limits(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let (mut allocated, mut limit) = (0, 0);
        // SAFETY: the handle is live, and the results may be written.
        self.call(py, |handle| unsafe {
            (api().limiting_counts)(handle.raw, &raw mut allocated, &raw mut limit)
        })?;
        Ok((allocated, limit))
    }

    /// The bytes that were not given back, and the allocations as text.
    fn _outstanding(&self, py: Python<'_>) -> PyResult<(u64, String)> {
        let handle = self.handle()?;
        Ok(py.detach(|| {
            let (mut bytes, mut text) = (0, null_mut());
            // SAFETY: the handle is live, and the results may be written.
            check(unsafe { (api().tracking_outstanding)(handle.raw, &raw mut bytes, &raw mut text) })?;
            Ok::<_, Failure>((bytes, take_text(text)))
        })?)
    }

    /// Writes the rows that a log holds.
    fn _flush(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle is live.
        self.call(py, |handle| unsafe { (api().logging_flush)(handle.raw) })
    }

    /// The driver's pool (`CUmemoryPool`) as a number.
    fn _async_pool(&self, py: Python<'_>) -> PyResult<usize> {
        let mut pool = Sendable(null_mut());
        let place = Sendable(&raw mut pool.0);
        // SAFETY: the handle is live, and the result may be written.
        self.call(py, |handle| unsafe { (api().async_pool)(handle.raw, place.get()) })?;
        Ok(pool.0.addr())
    }

    /// Makes this the default resource of its device.
    fn _make_default(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle is live; the resource before is not wanted.
        self.call(py, |handle| unsafe {
            let set = (api().set_per_device_resource)(handle.raw, null_mut());
            forget_recent_default();
            set
        })
    }

    /// Whether blocks of one may be given back to the other.
    fn is_equal(&self, other: &Self) -> PyResult<bool> {
        // SAFETY: both handles are live.
        Ok(unsafe { (api().resource_is_equal)(self.handle()?.raw, other.handle()?.raw) })
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().qualname()?;
        Ok(match slf.get().handle().ok() {
            Some(handle) => format!("<{name} `{}`>", handle.text()?),
            None => format!("<{name}, not built>"),
        })
    }
}

/// The default resource of a device, else of the current one.
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn default_resource(py: Python<'_>, device: Option<&Device>) -> PyResult<Resource> {
    let device = device.map(|device| device.0.clone());
    let handle = py.detach(|| match device {
        // SAFETY: the device's handle is live, and the result may be written.
        Some(device) => ResourceHandle::from_call(|resource| unsafe {
            (api().get_per_device_resource)(device.0, resource)
        }),
        None => ResourceHandle::current(),
    })?;
    Ok(Resource::of(handle))
}

/// Restores the initial default of a device.
#[pyfunction]
pub(crate) fn reset_default_resource(py: Python<'_>, device: &Device) -> PyResult<()> {
    let reset = py.detach(|| {
        // SAFETY: the device's handle is live.
        let reset = check(unsafe { (api().reset_per_device_resource)(device.0.0) });
        forget_recent_default();
        reset
    });
    Ok(reset?)
}

// --- Functions of the program ---

type Functions = (Py<PyAny>, Py<PyAny>);

/// The program's functions behind a context.
///
/// # Safety
/// The context is a `T` that was not ended.
unsafe fn context<'a, T>(context: Raw) -> &'a T {
    // SAFETY: the caller's promise.
    unsafe { &*context.cast::<T>() }
}

fn stream_object(py: Python<'_>, stream: Raw) -> PyResult<Bound<'_, crate::device::Stream>> {
    Bound::new(py, crate::device::Stream(crate::device::StreamHandle::foreign(stream.addr(), None)))
}

extern "C" fn call_allocate(functions: Raw, bytes: u64, _alignment: u64, stream: Raw) -> Raw {
    let call = |py: Python<'_>| -> PyResult<usize> {
        // SAFETY: the context is that of `_callback`.
        let functions: &Functions = unsafe { context(functions) };
        functions.0.call1(py, (bytes, stream_object(py, stream)?))?.extract(py)
    };
    // Null where the interpreter is at its end.
    let answer = Python::try_attach(|py| {
        call(py).unwrap_or_else(|error| {
            keep_raised(Raised::by_allocate(py, error));
            0
        })
    });
    std::ptr::without_provenance_mut(answer.unwrap_or(0))
}

extern "C" fn call_deallocate(functions: Raw, ptr: Raw, bytes: u64, _alignment: u64, stream: Raw) {
    Python::try_attach(|py| {
        // SAFETY: the context is that of `_callback`.
        let functions: &Functions = unsafe { context(functions) };
        let call = || -> PyResult<()> {
            functions.1.call1(py, (ptr.addr(), bytes, stream_object(py, stream)?)).map(drop)
        };
        if let Err(error) = call() {
            // A free cannot fail: as in a finaliser, Python's hook is told.
            error.write_unraisable(py, Some(functions.1.bind(py)));
        }
    });
}

extern "C" fn call_failure(handle: Raw, bytes: u64) -> bool {
    let answer = Python::try_attach(|py| {
        // SAFETY: the context is that of `_failure_callback`.
        let handle: &Py<PyAny> = unsafe { context(handle) };
        handle.call1(py, (bytes,)).and_then(|answer| answer.bind(py).is_truthy()).unwrap_or_else(|error| {
            keep_raised(Raised::Cause(error));
            false
        })
    });
    answer.unwrap_or(false)
}

extern "C" fn end_callback(functions: Raw) {
    end::<Functions>(functions);
}

extern "C" fn end_failure(handle: Raw) {
    end::<Py<PyAny>>(handle);
}

/// Ends the program's functions; where the interpreter is at its end, they stay.
fn end<T>(functions: Raw) {
    Python::try_attach(|_| {
        // SAFETY: the context is a boxed `T`, and ends here.
        drop(unsafe { Box::from_raw(functions.cast::<T>()) });
    });
}
