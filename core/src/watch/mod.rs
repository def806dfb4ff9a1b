//! Lets `millpond-replay top` watch the stacks of this process while it runs.
//!
//! If the environment variable `MILLPOND_WATCH` is set when a stack is built, the process starts a thread
//! that listens on a Unix socket. Each connection is a request. The thread writes a `ProgramMemory` as JSON
//! to the connection, and then closes it. The thread reads nothing from the connection.
//!
//! | `MILLPOND_WATCH` | the socket is in |
//! |---|---|
//! | unset, empty or `0` | no folder: there is no thread and no socket |
//! | `1` | `$XDG_RUNTIME_DIR/millpond`, or else `millpond-UID` in the folder for temporary files |
//! | a path with a `/` | that folder |
//!
//! Only the user who runs the process, and root, can connect. The name of the socket is the number of the
//! process, as in `4213.sock`. The socket is removed at the end of the process. A forked child opens its own
//! socket when it builds its first stack.
//!
//! The following stacks are watched:
//! - the default resource of each device;
//! - every stack that is built from text;
//! - every resource of the C library and of the Python package;
//! - each resource that is passed to [`add`].
//!
//! If a watched stack contains another watched stack, only the outer stack is shown.
//!
//! # Cost
//! Without the variable, the only cost is that building a stack reads the environment once. With the
//! variable, allocations and frees cost the same as before. But while the thread makes an answer, the slow
//! path of a pool may have to wait, as for a [`memory_map`](crate::DeviceMemoryResourceExt::memory_map).
//!
//! While the thread makes an answer, the thread keeps the reported stacks alive. If the last owner drops such
//! a stack during that time, the thread drops the stack later.
//!
//! The thread makes driver calls only if a layer needs them for its
//! [`statistics`](crate::DeviceMemoryResource::statistics).

#[cfg(all(unix, feature = "watch"))]
mod folder;
#[cfg(all(unix, feature = "watch"))]
mod forks;
#[cfg(feature = "watch")]
#[cfg_attr(not(unix), allow(dead_code))]
mod memory;
#[cfg(all(unix, feature = "watch"))]
mod server;
mod variable;
#[cfg(all(unix, feature = "watch"))]
mod watched;

use std::ffi::OsString;

use crate::AnyResource;

#[cfg(all(unix, feature = "watch"))]
#[cfg_attr(docsrs, doc(cfg(all(unix, feature = "watch"))))]
pub use folder::{folders, socket_name};
#[cfg(feature = "watch")]
#[cfg_attr(docsrs, doc(cfg(feature = "watch")))]
pub use memory::{FORMAT, Fragmentation, ProgramMemory, SegmentMemory, StackMemory, StreamMemory};
pub use variable::VARIABLE;
#[cfg(all(unix, feature = "watch"))]
#[cfg_attr(docsrs, doc(cfg(all(unix, feature = "watch"))))]
pub use watched::program_memory;

/// Shows a resource to `millpond-replay top` for as long as the resource lives. Does nothing if
/// `MILLPOND_WATCH` is not set, or if the resource is already watched.
///
/// A stack that is built from text is already watched, and so is the default resource of a device. Call this
/// function for a stack that is built in code:
///
/// ```
/// use millpond_core::{AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Shareable, watch};
///
/// fn shared(stack: impl DeviceMemoryResource + Shareable) -> AnyResource {
///     let stack = stack.into_any();
///     watch::add(&stack);
///     stack
/// }
/// ```
pub fn add(resource: &AnyResource) {
    if let Some(value) = variable::value() {
        add_watched(resource, value);
    }
}

#[cfg(all(unix, feature = "watch"))]
fn add_watched(resource: &AnyResource, value: OsString) {
    watched::add(resource, value);
}

#[cfg(not(all(unix, feature = "watch")))]
fn add_watched(_: &AnyResource, _: OsString) {
    use std::sync::atomic::{AtomicBool, Ordering};

    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    if !IS_TOLD.swap(true, Ordering::Relaxed) {
        let why = if cfg!(unix) {
            "this program was built without millpond's feature `watch`"
        } else {
            "watching needs a Unix system"
        };
        tracing::warn!(
            target: "millpond::watch",
            "{VARIABLE} is set, but `millpond-replay top` cannot watch this process: {why}"
        );
    }
}
