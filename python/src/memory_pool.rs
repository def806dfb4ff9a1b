//! The driver's pools, and blocks of other processes' pools: the handles behind `millpond.memory_pool`.

use std::borrow::Cow;
use std::ptr::{null_mut, without_provenance_mut};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::api::{Properties, Raw, api, generation};
use crate::device::{Device, DeviceHandle, StreamArgument};
use crate::error::{Failure, check};
use crate::gil;
use crate::handle::Below;
use crate::resource::Resource;

/// A handle of the library, with the process that owns it.
#[derive(Debug)]
struct Owned {
    raw: Raw,
    made_in: usize,
    free: unsafe extern "C" fn(Raw),
}

// SAFETY: the library's functions may be called on any thread.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    fn from_call(
        free: unsafe extern "C" fn(Raw),
        make: impl FnOnce(*mut Raw) -> i32,
    ) -> Result<Self, Failure> {
        let mut raw = null_mut();
        check(make(&raw mut raw))?;
        Ok(Self { raw, made_in: generation(), free })
    }

    fn raw(&self) -> Raw {
        self.raw
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A forked child does not free its parent's memory.
        if self.made_in == generation() {
            // SAFETY: this value owns the handle. The end of a pool may wait for the device.
            gil::released(|| unsafe { (self.free)(self.raw) });
        }
    }
}

/// A pool of the driver.
#[pyclass(frozen, module = "millpond._native")]
#[derive(Debug)]
pub(crate) struct PoolHandle(Owned);

impl PoolHandle {
    fn made(py: Python<'_>, make: impl FnOnce(*mut Raw) -> i32 + Send) -> PyResult<Self> {
        Ok(Self(py.detach(|| Owned::from_call(api().memory_pool_free, make))?))
    }

    /// Calls the library without the GIL.
    fn call<T: Default + Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(Raw, *mut T) -> i32 + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| {
            let mut result = T::default();
            check(call(self.0.raw, &raw mut result)).map(|()| result)
        })?)
    }
}

#[pymethods]
impl PoolHandle {
    /// Makes a pool from CUDA's numbers.
    #[staticmethod]
    fn new(
        py: Python<'_>,
        device: &Device,
        location: (u32, i32),
        handle_types: u32,
        max_bytes: u64,
        is_managed: bool,
        hw_decompress: bool,
    ) -> PyResult<Self> {
        let (location_type, location_id) = location;
        let properties =
            Properties { location_type, location_id, handle_types, is_managed, hw_decompress, max_bytes };
        // SAFETY: the device's handle is live, and the result may be written.
        Self::made(py, |pool| unsafe { (api().memory_pool_new)(device.0.0, &raw const properties, pool) })
    }

    #[staticmethod]
    fn current(py: Python<'_>, device: &Device) -> PyResult<Self> {
        // SAFETY: the device's handle is live, and the result may be written.
        Self::made(py, |pool| unsafe { (api().memory_pool_current)(device.0.0, pool) })
    }

    #[staticmethod]
    fn default(py: Python<'_>, device: &Device, location: (u32, i32), is_managed: bool) -> PyResult<Self> {
        let (kind, id) = location;
        // SAFETY: the device's handle is live, and the result may be written.
        Self::made(py, |pool| unsafe {
            (api().memory_pool_default_for)(device.0.0, kind, id, is_managed, pool)
        })
    }

    #[staticmethod]
    fn from_raw(py: Python<'_>, device: &Device, raw: usize) -> PyResult<Self> {
        // SAFETY: the device's handle is live; the caller vouches for the pool; the result may be written.
        Self::made(py, |pool| unsafe {
            (api().memory_pool_from_raw)(device.0.0, without_provenance_mut(raw), pool)
        })
    }

    /// Returns the pool at the base of a stack.
    #[staticmethod]
    fn of_resource(py: Python<'_>, resource: &Resource) -> PyResult<Self> {
        let handle = resource.handle()?;
        // SAFETY: the handle is live, and the result may be written.
        Self::made(py, |pool| unsafe { (api().memory_pool_of_resource)(handle.raw, pool) })
    }

    #[staticmethod]
    fn import_fd(py: Python<'_>, device: &Device, fd: i32) -> PyResult<Self> {
        // SAFETY: the device's handle is live; the caller vouches for the descriptor; the result may be
        // written.
        Self::made(py, |pool| unsafe { (api().memory_pool_import_fd)(device.0.0, fd, pool) })
    }

    #[staticmethod]
    fn import_fabric(py: Python<'_>, device: &Device, handle: [u8; 64]) -> PyResult<Self> {
        // SAFETY: the device's handle is live; 64 bytes may be read; the result may be written.
        Self::made(py, |pool| unsafe { (api().memory_pool_import_fabric)(device.0.0, handle.as_ptr(), pool) })
    }

    /// Builds `made` as a resource over the pool.
    fn build(&self, py: Python<'_>, made: &Resource) -> PyResult<()> {
        // SAFETY: the handle is live, and the result may be written.
        made.build(py, Below::default(), |made| unsafe { (api().memory_pool_resource)(self.0.raw, made) })
    }

    fn set_current(&self, py: Python<'_>) -> PyResult<()> {
        // SAFETY: the handle is live.
        self.call(py, |pool, _: *mut ()| unsafe { (api().memory_pool_set_current)(pool) })
    }

    fn raw(&self, py: Python<'_>) -> PyResult<usize> {
        self.call(py, |pool, raw: *mut usize| {
            // SAFETY: the handle is live, and a pointer has the size of the result.
            unsafe { (api().memory_pool_raw)(pool, raw.cast()) }
        })
    }

    fn device(&self, py: Python<'_>) -> PyResult<Device> {
        let device = py.detach(|| {
            // SAFETY: the handle is live, and the result may be written.
            DeviceHandle::from_call(|device| unsafe { (api().memory_pool_device)(self.0.raw, device) })
        });
        Ok(Device(device?))
    }

    fn is_imported(&self) -> bool {
        // SAFETY: the handle is live.
        unsafe { (api().memory_pool_is_imported)(self.0.raw) }
    }

    /// Returns the location's type and id, the types of handles, the most bytes, and two flags: managed
    /// memory and the decompression engine.
    #[expect(clippy::type_complexity, reason = "one caller takes it apart")]
    fn properties(&self, py: Python<'_>) -> PyResult<((u32, i32), u32, u64, bool, bool)> {
        let found: Properties = self.call(py, |pool, properties| {
            // SAFETY: the handle is live, and the result may be written.
            unsafe { (api().memory_pool_get_properties)(pool, properties) }
        })?;
        let location = (found.location_type, found.location_id);
        Ok((location, found.handle_types, found.max_bytes, found.is_managed, found.hw_decompress))
    }

    fn get(&self, py: Python<'_>, attribute: u32) -> PyResult<u64> {
        // SAFETY: the handle is live, and the result may be written.
        self.call(py, |pool, value| unsafe { (api().memory_pool_get_attribute)(pool, attribute, value) })
    }

    fn set(&self, py: Python<'_>, attribute: u32, value: u64) -> PyResult<()> {
        // SAFETY: the handle is live.
        self.call(py, |pool, _: *mut ()| unsafe { (api().memory_pool_set_attribute)(pool, attribute, value) })
    }

    fn trim(&self, py: Python<'_>, keep_bytes: u64) -> PyResult<u64> {
        // SAFETY: the handle is live, and the result may be written.
        self.call(py, |pool, released| unsafe { (api().memory_pool_trim)(pool, keep_bytes, released) })
    }

    fn access(&self, py: Python<'_>, device: &Device) -> PyResult<u32> {
        // SAFETY: both handles are live, and the result may be written.
        self.call(py, |pool, access| unsafe { (api().memory_pool_get_access)(pool, device.0.0, access) })
    }

    fn set_access(&self, py: Python<'_>, device: &Device, access: u32) -> PyResult<()> {
        // SAFETY: both handles are live.
        self.call(py, |pool, _: *mut ()| unsafe { (api().memory_pool_set_access)(pool, device.0.0, access) })
    }

    fn host_access(&self, py: Python<'_>, location: (u32, i32)) -> PyResult<u32> {
        let (kind, id) = location;
        // SAFETY: the handle is live, and the result may be written.
        self.call(py, |pool, access| unsafe { (api().memory_pool_get_host_access)(pool, kind, id, access) })
    }

    fn set_host_access(&self, py: Python<'_>, location: (u32, i32), access: u32) -> PyResult<()> {
        let (kind, id) = location;
        self.call(py, |pool, _: *mut ()| {
            // SAFETY: the handle is live.
            unsafe { (api().memory_pool_set_host_access)(pool, kind, id, access) }
        })
    }

    fn export_fd(&self, py: Python<'_>) -> PyResult<i32> {
        // SAFETY: the handle is live, and the result may be written.
        self.call(py, |pool, fd| unsafe { (api().memory_pool_export_fd)(pool, fd) })
    }

    /// Returns the 64 bytes of a fabric handle.
    fn export_fabric(&self, py: Python<'_>) -> PyResult<Cow<'static, [u8]>> {
        // SAFETY: the handle is live, and 64 bytes may be written.
        exported(py, |handle| unsafe { (api().memory_pool_export_fabric)(self.0.raw, handle) })
    }

    /// Returns the 64 bytes that describe a block.
    fn export_pointer(&self, py: Python<'_>, ptr: usize) -> PyResult<Cow<'static, [u8]>> {
        exported(py, |data| {
            // SAFETY: the handle is live, and 64 bytes may be written.
            unsafe { (api().memory_pool_export_pointer)(self.0.raw, without_provenance_mut(ptr), data) }
        })
    }

    /// Opens a block from its 64 bytes.
    fn import_pointer(&self, py: Python<'_>, data: [u8; 64]) -> PyResult<ImportedHandle> {
        let made = py.detach(|| {
            let mut address: Raw = null_mut();
            let owned = Owned::from_call(api().imported_allocation_free, |block| {
                let address = &raw mut address;
                // SAFETY: the handle is live, 64 bytes may be read, and the results may be written.
                unsafe { (api().memory_pool_import_pointer)(self.0.raw, data.as_ptr(), block, address) }
            })?;
            Ok::<_, Failure>((Mutex::new(Some(owned)), address.addr()))
        })?;
        Ok(ImportedHandle { block: made.0, address: made.1 })
    }
}

/// Returns the 64 bytes that a call writes.
fn exported(py: Python<'_>, call: impl FnOnce(*mut u8) -> i32 + Send) -> PyResult<Cow<'static, [u8]>> {
    let mut bytes = vec![0; 64];
    let place = bytes.as_mut_slice();
    py.detach(|| check(call(place.as_mut_ptr())))?;
    Ok(bytes.into())
}

/// A block of another process.
#[pyclass(frozen, module = "millpond._native")]
#[derive(Debug)]
pub(crate) struct ImportedHandle {
    /// `None` once it was freed.
    block: Mutex<Option<Owned>>,
    address: usize,
}

#[pymethods]
impl ImportedHandle {
    /// Returns the address, or 0 once the block was freed.
    fn address(&self) -> usize {
        if self.block.lock().is_some() { self.address } else { 0 }
    }

    /// Frees the block: in stream order, or after a wait for the device if no stream is given.
    #[pyo3(signature = (stream=StreamArgument(None)))]
    fn free(&self, py: Python<'_>, stream: StreamArgument<'_>) -> PyResult<()> {
        let stream = stream.resolve_if_given()?;
        let block = self.block.lock().take();
        let Some(block) = block.filter(|block| block.made_in == generation()) else { return Ok(()) };
        let Some(stream) = stream else {
            drop(block);
            return Ok(());
        };
        // SAFETY: only this call has the handle, and the stream is alive.
        let freed =
            py.detach(|| check(unsafe { (api().imported_allocation_free_on)(block.raw(), stream.ptr()) }));
        Ok(freed?)
    }
}

/// Returns the counts of the memory that graphs allocate: used and its high, reserved and its high.
#[pyfunction]
pub(crate) fn graph_memory(py: Python<'_>, device: &Device) -> PyResult<[u64; 4]> {
    Ok(py.detach(|| {
        let mut counts = [0; 4];
        // SAFETY: the device's handle is live; the counts are laid out as `millpond_graph_memory_counts`.
        check(unsafe { (api().graph_memory)(device.0.0, &raw mut counts) }).map(|()| counts)
    })?)
}

#[pyfunction]
pub(crate) fn graph_memory_reset_highs(py: Python<'_>, device: &Device) -> PyResult<()> {
    // SAFETY: the device's handle is live.
    Ok(py.detach(|| check(unsafe { (api().graph_memory_reset_highs)(device.0.0) }))?)
}

#[pyfunction]
pub(crate) fn graph_memory_trim(py: Python<'_>, device: &Device) -> PyResult<()> {
    // SAFETY: the device's handle is live.
    Ok(py.detach(|| check(unsafe { (api().graph_memory_trim)(device.0.0) }))?)
}
