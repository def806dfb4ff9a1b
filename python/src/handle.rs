//! The library's handle of a resource, and its owners.

use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::api::{PerProcess, Raw, api, generation, take_text};
use crate::device::{DeviceHandle, ensure_default};
use crate::error::{Failure, check};
use crate::functions::context;
use crate::gil;

/// The library's handle of a resource.
#[derive(Debug)]
pub(crate) struct ResourceHandle {
    pub(crate) raw: Raw,
    made_in: usize,
    device: OnceLock<Arc<DeviceHandle>>,
    below: Below,
    links: Arc<Links>,
    /// The buffers that keep one of the resource's Python objects, if the collector has to know of them.
    buffers: Mutex<Vec<Weak<dyn Collected>>>,
}

/// The data of a resource that the collector reads. Reading must not keep a resource alive, because the
/// reader could then be the last owner, and end the resource. An end runs the program's code, which the
/// collector must not do.
#[derive(Debug)]
pub(crate) struct Links {
    raw: Raw,
    /// The number of Python objects that keep the handle.
    objects: AtomicUsize,
    /// The number of blocks whose owners are all Python objects. Each of these also keeps one of `objects`.
    seen_blocks: AtomicUsize,
    /// The resources built on this one. Before such a resource frees its own handle, it removes its entry.
    above: Mutex<Vec<(Weak<ResourceHandle>, Arc<Self>)>>,
}

// SAFETY: as for the handle.
unsafe impl Send for Links {}
// SAFETY: as above.
unsafe impl Sync for Links {}

impl Links {
    /// Adds one to the number of blocks whose owners are all Python objects, or subtracts one from it. A
    /// thread that reads a larger number also sees that the hidden uses have ended.
    pub(crate) fn count_block(&self, is_more: bool) {
        if is_more {
            self.seen_blocks.fetch_add(1, Ordering::AcqRel);
        } else {
            self.seen_blocks.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Returns whether only one Python object keeps the resource. Two kinds of owners do not count: buffers
    /// that keep this object, and resources on top for which the same condition holds.
    ///
    /// `handles` is the number of owners of the handle, which is live.
    fn is_seen(&self, handles: usize) -> bool {
        // Another thread may hold the lock for a moment. The resource then counts as in use.
        let Some(above) = self.above.try_lock() else { return false };
        // SAFETY: the handle is live.
        let owners = unsafe { (api().resource_owners)(self.raw) };
        self.objects.load(Ordering::Relaxed) == 1
            // The count is less than zero for a moment if an export begins while another one ends.
            && handles == self.seen_blocks.load(Ordering::Acquire).wrapping_add(1 + above.len())
            && owners == 1 + above.len()
            // The resources in the list are live while it is locked.
            && above.iter().all(|(handle, links)| links.is_seen(handle.strong_count()))
    }
}

/// An object that the collector ends together with the resource that it keeps.
pub(crate) trait Collected: fmt::Debug + Send + Sync {
    /// Ends the use of the memory.
    fn end(&self);
}

/// The resources and functions that a resource is built on.
#[derive(Debug, Default)]
pub(crate) struct Below {
    pub(crate) resources: Vec<Arc<ResourceHandle>>,
    /// The program's functions that the resource keeps: a context from `context_of`.
    pub(crate) functions: Option<Raw>,
}

// SAFETY: as for the handle.
unsafe impl Send for Below {}
// SAFETY: as above.
unsafe impl Sync for Below {}

impl Below {
    /// Returns the program's functions of this resource.
    fn functions(&self) -> &[Py<PyAny>] {
        match self.functions {
            // SAFETY: the functions live as long as the resource.
            Some(functions) => unsafe { context(functions) },
            None => &[],
        }
    }
}

// SAFETY: the library's functions may be called on any thread.
unsafe impl Send for ResourceHandle {}
// SAFETY: as above.
unsafe impl Sync for ResourceHandle {}

impl Drop for ResourceHandle {
    fn drop(&mut self) {
        // A forked child does not free its parent's memory.
        if self.made_in == generation() {
            for resource in &self.below.resources {
                resource.links.above.lock().retain(|(_, links)| !Arc::ptr_eq(links, &self.links));
            }
            // Freeing a pool reaches the driver, and may wait for one of the program's functions.
            // SAFETY: this value owns the handle.
            gil::released(|| unsafe { (api().resource_free)(self.raw) });
        }
    }
}

impl ResourceHandle {
    /// Wraps the resource that `make` writes.
    pub(crate) fn from_call(make: impl FnOnce(*mut Raw) -> i32) -> Result<Arc<Self>, Failure> {
        Self::on(Below::default(), make)
    }

    /// Wraps the resource that `make` writes and that is built on `below`.
    pub(crate) fn on(below: Below, make: impl FnOnce(*mut Raw) -> i32) -> Result<Arc<Self>, Failure> {
        let mut raw = null_mut();
        check(make(&raw mut raw))?;
        let made = Arc::new(Self {
            raw,
            made_in: generation(),
            device: OnceLock::new(),
            below,
            links: Arc::new(Links {
                raw,
                objects: AtomicUsize::new(0),
                seen_blocks: AtomicUsize::new(0),
                above: Mutex::new(Vec::new()),
            }),
            buffers: Mutex::new(Vec::new()),
        });
        for resource in &made.below.resources {
            resource.links.above.lock().push((Arc::downgrade(&made), made.links.clone()));
        }
        Ok(made)
    }

    /// Wraps a handle that this value now owns. Returns `None` for null.
    pub(crate) fn owned(raw: Raw) -> Option<Arc<Self>> {
        let take = |place: *mut Raw| {
            // SAFETY: `on` passes a valid place for the result.
            unsafe { *place = raw };
            0
        };
        if raw.is_null() { None } else { Self::from_call(take).ok() }
    }

    /// Returns the program's functions if the collector sees every owner of the resource.
    pub(crate) fn seen_functions(self: &Arc<Self>) -> &[Py<PyAny>] {
        let functions = self.below.functions();
        if functions.is_empty() || !self.links.is_seen(Arc::strong_count(self)) { &[] } else { functions }
    }

    /// Returns whether the collector has to know of the blocks, because the program's functions may keep
    /// them.
    pub(crate) fn counts_blocks(&self) -> bool {
        self.below.functions.is_some() || self.has_functions_below()
    }

    /// Returns whether the resource's end calls the program's functions, as a pool's end does.
    pub(crate) fn has_functions_below(&self) -> bool {
        self.below.resources.iter().any(|it| it.counts_blocks())
    }

    /// Notes a buffer that keeps a Python object of this resource.
    pub(crate) fn add_buffer(&self, buffer: Weak<dyn Collected>) {
        let mut buffers = self.buffers.lock();
        if buffers.len() == buffers.capacity() {
            buffers.retain(|it| it.strong_count() > 0);
        }
        buffers.push(buffer);
    }

    /// Ends the buffers of a resource whose last Python object ends. Each buffer keeps that object, so the
    /// collector ends them all. The buffers must end now, while the functions that free their blocks still
    /// work.
    pub(crate) fn end_buffers(&self) {
        if self.links.objects.load(Ordering::Relaxed) != 1 {
            return;
        }
        let buffers = std::mem::take(&mut *self.buffers.lock());
        // The lock is not held here, because one of the program's functions may make a buffer.
        for buffer in buffers.iter().filter_map(Weak::upgrade) {
            buffer.end();
        }
    }

    pub(crate) fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// Returns the default resource of the current device. This call may end the previous default resource,
    /// so the caller does not hold the GIL.
    pub(crate) fn current() -> Result<Arc<Self>, Failure> {
        ensure_default();
        // SAFETY: the result may be written.
        let current = Self::from_call(|resource| unsafe { (api().get_current_device_resource)(resource) })?;
        let before = RECENT.get().lock().replace(current.clone());
        // The lock is not held here: the end of `before` may wait for the GIL, and the thread that holds the
        // GIL may wait for the lock.
        drop(before);
        Ok(current)
    }

    /// Returns the default resource of a device.
    pub(crate) fn of_device(device: &DeviceHandle) -> Result<Arc<Self>, Failure> {
        // SAFETY: the device's handle is live, and the result may be written.
        Self::from_call(|resource| unsafe { (api().get_per_device_resource)(device.0, resource) })
    }

    /// Returns the default resource that was found last. It may no longer be the default.
    pub(crate) fn recent_default() -> Option<Arc<Self>> {
        RECENT.get().lock().as_ref().filter(|recent| recent.made_in == generation()).cloned()
    }

    /// Returns the resource's device.
    pub(crate) fn device(&self) -> Result<&Arc<DeviceHandle>, Failure> {
        if self.device.get().is_none() {
            // SAFETY: the handle is live, and the result may be written.
            let device =
                DeviceHandle::from_call(|device| unsafe { (api().resource_device)(self.raw, device) })?;
            let _ = self.device.set(device);
        }
        Ok(self.device.get().expect("it was set"))
    }

    /// Returns whether the device and the host can access the resource's memory.
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

/// The default resource that [`ResourceHandle::current`] found last. If this module has set a default since
/// then, there is no entry.
static RECENT: PerProcess<Mutex<Option<Arc<ResourceHandle>>>> = PerProcess([const { Mutex::new(None) }; 8]);

/// Takes the entry, so that a replaced default resource ends when its last buffer ends.
pub(crate) fn take_recent_default() -> Option<Arc<ResourceHandle>> {
    RECENT.get().lock().take()
}

/// The handle of a Python object, through which the collector sees the resource.
#[derive(Debug)]
pub(crate) struct Owned(Arc<ResourceHandle>);

impl Owned {
    pub(crate) fn new(handle: Arc<ResourceHandle>) -> Self {
        handle.links.objects.fetch_add(1, Ordering::Relaxed);
        Self(handle)
    }

    pub(crate) fn handle(&self) -> &Arc<ResourceHandle> {
        &self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.links.objects.fetch_sub(1, Ordering::Relaxed);
    }
}
