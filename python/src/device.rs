//! Devices and streams.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::api::{Raw, api, c_text, generation, take_text};
use crate::arguments::{device_name, flags, instance, ordinal, refused, wrong};
use crate::error::{Failure, check};
use crate::gil;

/// The library's handle of a device, with its number and kind once they are known.
#[derive(Debug)]
pub(crate) struct DeviceHandle(pub(crate) Raw, OnceLock<(i32, bool)>);

// SAFETY: the library's functions may be called on any thread.
unsafe impl Send for DeviceHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceHandle {}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle.
        gil::released(|| unsafe { (api().device_free)(self.0) });
    }
}

impl DeviceHandle {
    /// Wraps the device that `open` writes.
    pub(crate) fn from_call(open: impl FnOnce(*mut Raw) -> i32) -> Result<Arc<Self>, Failure> {
        let mut device = null_mut();
        check(open(&raw mut device))?;
        Ok(Arc::new(Self(device, OnceLock::new())))
    }

    /// Returns the calling thread's current device: the device of CUDA's current context, or else the default
    /// device.
    pub(crate) fn current() -> Result<Arc<Self>, Failure> {
        ensure_default();
        // SAFETY: the result may be written.
        Self::from_call(|device| unsafe { (api().device_current)(device) })
    }

    /// Returns the process's default device, which `millpond_device_open` selects. If the device is
    /// simulated, the first call opens it.
    fn default_one() -> Result<Arc<Self>, Failure> {
        // SAFETY: a null name is allowed, and the result may be written.
        Self::from_call(|device| unsafe { (api().device_open)(null(), device) })
    }

    fn id(&self) -> (i32, bool) {
        // SAFETY: the handle is live.
        *self
            .1
            .get_or_init(|| unsafe { ((api().device_ordinal)(self.0), (api().device_is_simulated)(self.0)) })
    }

    pub(crate) fn ordinal(&self) -> i32 {
        self.id().0
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.id().1
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl fmt::Display for DeviceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", if self.is_simulated() { "sim" } else { "cuda" }, self.ordinal())
    }
}

/// If the default device is simulated, opens it, and makes it the current device. The library keeps it open.
///
/// If the environment names a device that cannot be opened, the next call that needs the current device
/// reports the error.
pub(crate) fn ensure_default() {
    static IS_THERE: AtomicBool = AtomicBool::new(false);
    if !IS_THERE.load(Ordering::Relaxed) {
        IS_THERE.store(DeviceHandle::default_one().is_ok(), Ordering::Relaxed);
    }
}

/// A CUDA device or a simulated one. The object itself uses no memory of the device.
///
/// Without a name, this is the calling thread's current device: the device of CUDA's current context. If
/// there is no such context, this is the default device. MILLPOND_DEVICE names the default device. If this
/// variable is not set and several devices are visible, LOCAL_RANK selects the default device. Otherwise the
/// default device is cuda:0 or, on a machine without a GPU, a simulated H200.
///
/// Args:
///     name: The device as text: "cuda:1" is a CUDA device, and "sim:8GiB" makes a simulated one. None means
///         the current device.
///
/// Raises:
///     NoDeviceError: There is no such device.
///     InvalidArgumentError: `name` is malformed.
///     TypeError: `name` is not text. `Device.find` takes a device's number.
///
/// Example:
///     >>> import millpond
///     >>> device = millpond.Device("sim:8GiB")
///     >>> device.memory_info()[1] == 8 << 30
///     True
#[pyclass(frozen, module = "millpond")]
#[derive(Debug)]
pub(crate) struct Device(pub(crate) Arc<DeviceHandle>);

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (name=None))]
    fn new(py: Python<'_>, #[pyo3(from_py_with = device_name)] name: Option<String>) -> PyResult<Self> {
        py.detach(|| {
            let Some(name) = name else { return DeviceHandle::current() };
            let name = c_text(&name);
            // A simulated default device gets number 0, whichever device the program names first.
            ensure_default();
            // SAFETY: the name is a string, and the result may be written.
            DeviceHandle::from_call(|device| unsafe { (api().device_open)(name.as_ptr(), device) })
        })
        .map(Self)
        .map_err(PyErr::from)
    }

    /// Return the device with a number. The call creates no CUDA context.
    ///
    /// Args:
    ///     ordinal: The number of a CUDA device or, if the default device is simulated, of an open simulated
    ///         device.
    ///
    /// Raises:
    ///     NoDeviceError: There is no such device.
    ///     OverflowError: `ordinal` is negative or too large.
    ///     TypeError: `ordinal` is not a number.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.Device.find(0).ordinal
    ///     0
    #[staticmethod]
    fn find(py: Python<'_>, #[pyo3(from_py_with = ordinal)] ordinal: u32) -> PyResult<Self> {
        py.detach(|| {
            let is_simulated = DeviceHandle::default_one().is_ok_and(|device| device.is_simulated());
            // SAFETY: the result may be written.
            DeviceHandle::from_call(|device| unsafe { (api().device_find)(ordinal, is_simulated, device) })
        })
        .map(Self)
        .map_err(PyErr::from)
    }

    /// The device's number, from 0.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.Device().ordinal
    ///     0
    #[getter]
    fn ordinal(&self) -> i32 {
        self.0.ordinal()
    }

    /// Whether the device is simulated. A simulated device uses host memory as its device memory.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.Device("sim:8GiB").is_simulated
    ///     True
    #[getter]
    fn is_simulated(&self) -> bool {
        self.0.is_simulated()
    }

    /// The device's name, for example "NVIDIA H200".
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> isinstance(millpond.Device().name, str)
    ///     True
    #[getter]
    fn name(&self) -> PyResult<String> {
        let mut name = null_mut();
        // SAFETY: the handle is live, and the result may be written.
        check(unsafe { (api().device_name)(self.0.0, &raw mut name) })?;
        Ok(take_text(name))
    }

    /// Return the device's free and total memory in bytes.
    ///
    /// Raises:
    ///     DriverError: The driver could not answer.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> free, total = millpond.Device().memory_info()
    ///     >>> 0 < free <= total
    ///     True
    fn memory_info(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the handle is live, and the results may be written.
        check(py.detach(|| unsafe { (api().device_memory_info)(self.0.0, &raw mut free, &raw mut total) }))?;
        Ok((free, total))
    }

    /// Wait for all work on the device.
    ///
    /// Raises:
    ///     DriverError: Earlier work on the device failed.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.Device().synchronize()
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle is live.
        Ok(check(py.detach(|| unsafe { (api().device_synchronize)(self.0.0) }))?)
    }

    fn __repr__(&self) -> String {
        format!("<Device {}>", self.0)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| self.0.is_same(&other.get().0))
    }

    fn __hash__(&self) -> u64 {
        self.ordinal() as u64 * 2 + u64::from(self.is_simulated())
    }
}

/// A stream, with the object that keeps it alive.
#[derive(Debug)]
pub(crate) struct StreamHandle {
    pub(crate) raw: usize,
    /// The device that made the stream, and the generation of the process. Set only if this value owns the
    /// stream.
    made_on: Option<(Arc<DeviceHandle>, usize)>,
    /// The object of another library that the stream came from.
    _owner: Option<Py<PyAny>>,
}

impl StreamHandle {
    pub(crate) fn foreign(raw: usize, owner: Option<Py<PyAny>>) -> Arc<Self> {
        Arc::new(Self { raw, made_on: None, _owner: owner })
    }

    pub(crate) fn ptr(&self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.raw)
    }

    /// Refuses a stream whose device is known, and is not the device of the memory.
    pub(crate) fn check_on(&self, device: &DeviceHandle) -> Result<(), Failure> {
        match &self.made_on {
            Some((own, _)) if !own.is_same(device) => Err(Failure::refused(format!(
                "the stream belongs to {own}, but the memory belongs to {device}: use a stream of the \
                 memory's device"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the stream's device or, for a default stream, the current device.
    pub(crate) fn device(&self) -> Result<Arc<DeviceHandle>, Failure> {
        if let Some((device, _)) = &self.made_on {
            return Ok(device.clone());
        }
        ensure_default();
        // SAFETY: the stream is alive, as its user promises, and the result may be written.
        DeviceHandle::from_call(|device| unsafe { (api().stream_device)(self.ptr(), device) })
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        if let Some((device, made_in)) = &self.made_on
            && *made_in == generation()
        {
            // SAFETY: this device made the stream, which ends here.
            gil::released(|| unsafe {
                (api().stream_destroy)(device.0, self.ptr());
            });
        }
    }
}

/// A stream of a device. Memory is allocated, used and freed in the order of a stream.
///
/// Args:
///     obj: A stream of another library: an object with `__cuda_stream__`, a stream of CuPy, PyTorch or
///         Numba, or a handle (`cudaStream_t`) as a number. None makes a new stream.
///     flags: The flags of a new stream, as in `CudaStreamFlags`; None means `SYNC_DEFAULT`.
///     device: The device of a new stream; None means the current device.
///
/// Raises:
///     TypeError: `obj` is not a stream, or `device` is not a `Device`.
///     ValueError: `flags` is unknown, or `flags` or `device` is given together with `obj`.
///     DriverError: The driver could not make a stream.
///
/// Example:
///     >>> import millpond
///     >>> stream = millpond.Stream()
///     >>> millpond.Stream(stream.ptr) == stream
///     True
#[pyclass(frozen, module = "millpond", weakref)]
#[derive(Debug)]
pub(crate) struct Stream(pub(crate) Arc<StreamHandle>);

/// Reads an attribute that an object may lack. If the attribute is a property that raises another exception,
/// such as Ctrl-C, the exception is passed on.
pub(crate) fn attribute<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    match object.getattr(name) {
        Err(error) if error.is_instance_of::<PyAttributeError>(object.py()) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Describes the values of an argument for a stream.
const STREAM: &str = "a stream of millpond or another library, or a handle from 0 to 2**64 - 1";

/// If the object is a number, such as an `int`, returns the number.
fn number_of(object: &Bound<'_, PyAny>, name: &dyn fmt::Display) -> PyResult<Option<usize>> {
    match object.extract::<usize>() {
        Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => Ok(None),
        answer => answer.map(Some).map_err(|error| refused(error, object, &name.to_string(), STREAM)),
    }
}

/// Returns the stream of the argument `name`.
pub(crate) fn stream_of(argument: &Bound<'_, PyAny>, name: &str) -> PyResult<Arc<StreamHandle>> {
    if let Ok(stream) = argument.cast::<Stream>() {
        return Ok(stream.get().0.clone());
    }
    let owner = || Some(argument.clone().unbind());
    if argument.is_none() {
        // RMM's text, with a remedy.
        return Err(PyTypeError::new_err(format!(
            "`{name}` must be a stream: the stream argument cannot be None; leave it out, or pass \
             DEFAULT_STREAM"
        )));
    }
    if let Some(raw) = number_of(argument, &name)? {
        return Ok(StreamHandle::foreign(raw, None));
    }
    if let Some(protocol) = attribute(argument, "__cuda_stream__")? {
        let answer = if protocol.is_callable() { protocol.call0()? } else { protocol };
        let (version, raw): (u32, usize) = answer.extract().map_err(|error| {
            let allowed = "a pair of numbers: the version 0, and the handle";
            refused(error, &answer, &format!("{name}.__cuda_stream__"), allowed)
        })?;
        if version != 0 {
            let why = format!("`__cuda_stream__` has version: '{version}'; millpond reads version 0");
            return Err(Failure::unsupported(why).into());
        }
        return Ok(StreamHandle::foreign(raw, owner()));
    }
    // CuPy, PyTorch, Numba.
    for attribute_name in ["ptr", "cuda_stream", "handle"] {
        let Some(handle) = attribute(argument, attribute_name)? else { continue };
        let handle = attribute(&handle, "value")?.unwrap_or(handle);
        if handle.is_none() {
            return Ok(StreamHandle::foreign(0, owner()));
        }
        if let Some(raw) = number_of(&handle, &format_args!("{name}.{attribute_name}"))? {
            return Ok(StreamHandle::foreign(raw, owner()));
        }
    }
    Err(wrong::<PyTypeError>(argument, name, STREAM))
}

/// A stream argument. If the caller leaves it out, the default stream or the buffer's own stream is meant.
/// None is refused.
pub(crate) struct StreamArgument<'py>(pub(crate) Option<Bound<'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for StreamArgument<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(object.to_owned())))
    }
}

impl StreamArgument<'_> {
    /// Returns the stream, or the default stream if the argument was left out.
    pub(crate) fn resolve(self) -> PyResult<Arc<StreamHandle>> {
        static DEFAULT: OnceLock<Arc<StreamHandle>> = OnceLock::new();
        match self.0 {
            Some(argument) => stream_of(&argument, "stream"),
            None => Ok(DEFAULT.get_or_init(|| StreamHandle::foreign(0, None)).clone()),
        }
    }

    /// Returns the stream, or `None` if the argument was left out.
    pub(crate) fn resolve_if_given(self) -> PyResult<Option<Arc<StreamHandle>>> {
        self.0.as_ref().map(|argument| stream_of(argument, "stream")).transpose()
    }
}

/// Returns the stream of an argument `stream`, for Python code of the package.
#[pyfunction]
pub(crate) fn as_stream(stream: StreamArgument<'_>) -> PyResult<Stream> {
    stream.resolve().map(Stream)
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (obj=None, flags=None, *, device=None))]
    fn new(
        py: Python<'_>,
        obj: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = flags)] flags: Option<u32>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        if let Some(obj) = obj {
            if flags.is_some() || device.is_some() {
                return Err(PyValueError::new_err(
                    "`flags` and `device` are for a new stream; omit them if you pass `obj`",
                ));
            }
            return Ok(Self(stream_of(obj, "obj")?));
        }
        let is_non_blocking = match flags.unwrap_or(0) {
            0 => false,
            1 => true,
            other => {
                let why = format!("`flags` must be 0 (SYNC_DEFAULT) or 1 (NON_BLOCKING), not {other}");
                return Err(PyValueError::new_err(why));
            }
        };
        let device = match device {
            Some(device) => {
                let allowed = "a millpond.Device, or None";
                Some(instance::<Device>(device, "device", allowed)?.get().0.clone())
            }
            None => None,
        };
        let made = py.detach(|| {
            let device = device.map_or_else(DeviceHandle::current, Ok)?;
            let mut stream = null_mut();
            // SAFETY: the handle is live, and the result may be written.
            check(unsafe { (api().stream_create)(device.0, is_non_blocking, &raw mut stream) })?;
            let raw = stream.addr();
            Ok::<_, Failure>(StreamHandle { raw, made_on: Some((device, generation())), _owner: None })
        })?;
        Ok(Self(Arc::new(made)))
    }

    /// Return the pair that CUDA's stream protocol requires: its version, 0, and the handle as a number.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.DEFAULT_STREAM.__cuda_stream__()
    ///     (0, 0)
    fn __cuda_stream__(&self) -> (u32, usize) {
        (0, self.0.raw)
    }

    /// The handle (`cudaStream_t`) as a number.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.LEGACY_DEFAULT_STREAM.ptr
    ///     1
    #[getter]
    fn ptr(&self) -> usize {
        self.0.raw
    }

    /// Wait for the stream's work.
    ///
    /// Raises:
    ///     DriverError: Earlier work on the device failed.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.Stream().synchronize()
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| {
            let device = self.device()?;
            // SAFETY: the device's handle is live, and so is the stream.
            check(unsafe { (api().stream_synchronize)(device.0, self.0.ptr()) })
        })?)
    }

    /// Return whether the stream's work is done.
    ///
    /// Raises:
    ///     DriverError: Earlier work on the device failed.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> stream = millpond.Stream()
    ///     >>> stream.synchronize()
    ///     >>> stream.query()
    ///     True
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        let mut is_done = false;
        py.detach(|| {
            let device = self.device()?;
            // SAFETY: as above, and the result may be written.
            check(unsafe { (api().stream_query)(device.0, self.0.ptr(), &raw mut is_done) })
        })?;
        Ok(is_done)
    }

    /// Make later work on this stream wait for the earlier work on another one. The host does not wait.
    ///
    /// Args:
    ///     other: The other stream, of millpond or of another library.
    ///
    /// Raises:
    ///     TypeError: `other` is not a stream.
    ///     DriverError: The driver refused the operation.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> first, second = millpond.Stream(), millpond.Stream()
    ///     >>> second.wait(first)
    fn wait(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        let other = stream_of(other, "other")?;
        Ok(py.detach(|| {
            let device = self.device()?;
            // SAFETY: the device's handle is live, and so are the streams.
            check(unsafe { (api().stream_wait)(device.0, self.0.ptr(), other.ptr()) })
        })?)
    }

    /// Return whether this is the legacy default stream.
    ///
    /// Example:
    ///     >>> import millpond
    ///     >>> millpond.DEFAULT_STREAM.is_default(), millpond.Stream().is_default()
    ///     (True, False)
    fn is_default(&self) -> bool {
        self.0.raw <= 1
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| self.__hash__() == other.get().__hash__())
    }

    fn __hash__(&self) -> usize {
        // 0 and 1 are both the legacy default stream.
        self.0.raw.max(1)
    }

    fn __repr__(&self) -> String {
        format!("<Stream {:#x}>", self.0.raw)
    }
}

impl Stream {
    fn device(&self) -> Result<Arc<DeviceHandle>, Failure> {
        self.0.device()
    }
}
