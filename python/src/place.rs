//! The state of a buffer, which the collector may end together with the buffer's resource.

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::handle::Collected;
use crate::view::View;

/// The current state of a buffer; `None` once the collector has ended it.
pub(crate) type Now = Mutex<Option<View>>;

/// The owner of a buffer's state.
#[derive(Debug)]
pub(crate) enum Place {
    Own(Now),
    /// Shared with the resource. If the collector ends both, the resource may be first.
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
        let ended = self.lock().take();
        // Not under the lock: its end may wait.
        drop(ended);
    }
}

impl Place {
    /// Makes the state of a new buffer. `keeps_resource` says whether the buffer keeps its resource's Python
    /// object.
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

/// Makes the exception for a use of a buffer that the collector has ended.
pub(crate) fn was_collected() -> PyErr {
    PyValueError::new_err("Python has collected this buffer together with its resource; its memory is freed")
}
