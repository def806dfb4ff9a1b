//! What a buffer is now, where the collector may end it with its resource.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::handle::Collected;
use crate::view::View;

/// What a buffer is now; `None` once the collector has ended it.
pub(crate) type Now = Mutex<Option<View>>;

/// Where a buffer has it.
#[derive(Debug)]
pub(crate) enum Place {
    Own(Now),
    /// With the resource, whose end may come first if the collector ends both.
    Shared(Arc<Now>),
}

impl Deref for Place {
    type Target = Now;

    fn deref(&self) -> &Now {
        match self {
            Self::Own(now) => now,
            Self::Shared(now) => now,
        }
    }
}

impl Collected for Now {
    fn end(&self) {
        let ended = {
            let mut now = self.lock();
            if now.as_ref().is_some_and(|view| view.block.is_seen()) { now.take() } else { None }
        };
        // Not under the lock: its end may wait.
        drop(ended);
    }
}

impl Place {
    /// A place for a new buffer; `keeps_resource` says whether it keeps the Python object of its resource.
    pub(crate) fn new(view: View, keeps_resource: bool) -> Self {
        let resource = if keeps_resource { view.block.show() } else { None };
        let now = Mutex::new(Some(view));
        let Some(resource) = resource else { return Self::Own(now) };
        let shared = Arc::new(now);
        let weak = Arc::downgrade(&shared);
        resource.add_buffer(weak);
        Self::Shared(shared)
    }
}

/// What a use of a buffer raises that the collector has ended.
pub(crate) fn was_collected() -> PyErr {
    PyValueError::new_err("Python has collected this buffer with its resource, and its memory went back")
}
