//! The library's handle of a resource, and who keeps it.

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
    /// The buffers that keep one of those objects, if the collector has to know of them.
    buffers: Mutex<Vec<Weak<dyn Collected>>>,
}

/// What the collector reads of a resource. Reading keeps no resource, as the collector may end none: an end
/// runs code of the program's.
#[derive(Debug)]
struct Links {
    raw: Raw,
    /// The Python objects that keep the handle.
    objects: AtomicUsize,
    /// The blocks that are kept by Python objects alone, each of which keeps one of those objects.
    seen_blocks: AtomicUsize,
    /// The resources on this one. Each takes itself out before its own handle of the library's ends.
    above: Mutex<Vec<(Weak<ResourceHandle>, Arc<Self>)>>,
}

// SAFETY: as for the handle.
unsafe impl Send for Links {}
// SAFETY: as above.
unsafe impl Sync for Links {}

impl Links {
    /// Whether one Python object alone keeps the resource, with buffers that keep the object, and with
    /// resources on it of which the same holds. `handles` counts the owners of the handle, which is live.
    fn is_seen(&self, handles: usize) -> bool {
        // Another thread may hold it for a moment; then the resource is in use.
        let Some(above) = self.above.try_lock() else { return false };
        // SAFETY: the handle is live.
        let owners = unsafe { (api().resource_owners)(self.raw) };
        self.objects.load(Ordering::Relaxed) == 1
            && handles == 1 + self.seen_blocks.load(Ordering::Relaxed) + above.len()
            && owners == 1 + above.len()
            // What is in the list is live while it is locked.
            && above.iter().all(|(handle, links)| links.is_seen(handle.strong_count()))
    }
}

/// An object that the collector ends with the resource that it keeps.
pub(crate) trait Collected: fmt::Debug + Send + Sync {
    /// Gives the memory back, unless something that the collector does not see keeps it.
    fn end(&self);
}

/// What a resource is built on.
#[derive(Debug, Default)]
pub(crate) struct Below {
    pub(crate) resources: Vec<Arc<ResourceHandle>>,
    /// The program's functions, which the resource keeps: a context of `context_of`.
    pub(crate) functions: Option<Raw>,
}

// SAFETY: as for the handle.
unsafe impl Send for Below {}
// SAFETY: as above.
unsafe impl Sync for Below {}

impl Below {
    /// The program's functions of this resource.
    fn functions(&self) -> &[Py<PyAny>] {
        match self.functions {
            // SAFETY: the functions live as long as the resource.
            Some(functions) => unsafe { context(functions) },
            None => &[],
        }
    }

    fn has_functions(&self) -> bool {
        self.functions.is_some() || self.resources.iter().any(|it| it.below.has_functions())
    }
}

// SAFETY: the library's functions may be called on any thread.
unsafe impl Send for ResourceHandle {}
// SAFETY: as above.
unsafe impl Sync for ResourceHandle {}

impl Drop for ResourceHandle {
    fn drop(&mut self) {
        // A forked child leaves its parent's memory alone.
        if self.made_in == generation() {
            for resource in &self.below.resources {
                resource.links.above.lock().retain(|(_, links)| !Arc::ptr_eq(links, &self.links));
            }
            // A pool that ends reaches the driver, and may wait for a function of the program's.
            // SAFETY: the handle is this value's own.
            gil::released(|| unsafe { (api().resource_free)(self.raw) });
        }
    }
}

impl ResourceHandle {
    /// The resource that `make` writes.
    pub(crate) fn from_call(make: impl FnOnce(*mut Raw) -> i32) -> Result<Arc<Self>, Failure> {
        Self::on(Below::default(), make)
    }

    /// The resource that `make` writes, which is built on these.
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

    /// A handle of the library's that is this value's own; none for null.
    pub(crate) fn owned(raw: Raw) -> Option<Arc<Self>> {
        let take = |place: *mut Raw| {
            // SAFETY: `on` passes a place of its own, which may be written.
            unsafe { *place = raw };
            0
        };
        if raw.is_null() { None } else { Self::from_call(take).ok() }
    }

    /// The program's functions, if the collector sees all that keeps the resource.
    pub(crate) fn seen_functions(self: &Arc<Self>) -> &[Py<PyAny>] {
        let functions = self.below.functions();
        if functions.is_empty() || !self.links.is_seen(Arc::strong_count(self)) { &[] } else { functions }
    }

    /// Whether the collector has to know of the blocks: functions of the program's may keep them.
    pub(crate) fn counts_blocks(&self) -> bool {
        self.below.has_functions()
    }

    /// Notes a buffer that keeps a Python object of this resource.
    pub(crate) fn add_buffer(&self, buffer: Weak<dyn Collected>) {
        let mut buffers = self.buffers.lock();
        if buffers.len() == buffers.capacity() {
            buffers.retain(|it| it.strong_count() > 0);
        }
        buffers.push(buffer);
    }

    /// Ends the buffers of a resource whose last Python object ends. Each of them keeps that object, so the
    /// collector ends them all, and the functions that take their blocks back are whole now, and not later.
    pub(crate) fn end_buffers(&self) {
        if self.links.objects.load(Ordering::Relaxed) != 1 {
            return;
        }
        let buffers = std::mem::take(&mut *self.buffers.lock());
        // Not under the lock: a function of the program's may make a buffer.
        for buffer in buffers.iter().filter_map(Weak::upgrade) {
            buffer.end();
        }
    }

    /// Counts a block that Python objects alone keep, or one less.
    pub(crate) fn count_block(&self, is_more: bool) {
        if is_more {
            self.links.seen_blocks.fetch_add(1, Ordering::Relaxed);
        } else {
            self.links.seen_blocks.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The default resource of the current device. Called without the GIL, as it may end the one that was
    /// the default before.
    pub(crate) fn current() -> Result<Arc<Self>, Failure> {
        ensure_default();
        // SAFETY: the result may be written.
        let current = Self::from_call(|resource| unsafe { (api().get_current_device_resource)(resource) })?;
        let before = RECENT.get().lock().replace(current.clone());
        // Not under the lock: its end may wait for the GIL, whose holder may wait for the lock.
        drop(before);
        Ok(current)
    }

    /// The default resource of a device.
    pub(crate) fn of_device(device: &DeviceHandle) -> Result<Arc<Self>, Failure> {
        // SAFETY: the device's handle is live, and the result may be written.
        Self::from_call(|resource| unsafe { (api().get_per_device_resource)(device.0, resource) })
    }

    /// What was last found to be a default resource; it may be none any more.
    pub(crate) fn recent_default() -> Option<Arc<Self>> {
        RECENT.get().lock().as_ref().filter(|recent| recent.made_in == generation()).cloned()
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
static RECENT: PerProcess<Mutex<Option<Arc<ResourceHandle>>>> = PerProcess([const { Mutex::new(None) }; 8]);

/// Takes it, so that a default resource that was replaced ends with its last buffer.
pub(crate) fn take_recent_default() -> Option<Arc<ResourceHandle>> {
    RECENT.get().lock().take()
}

/// The handle of a Python object, by which the collector sees the resource.
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
