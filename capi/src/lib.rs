//! The C ABI of millpond: `libmillpond.so`, which owns all pools of a process.
//!
//! | module | functions |
//! |---|---|
//! | `status` | the last error of each thread |
//! | `device` | devices, their streams, copies |
//! | `oracle` | the checks of a simulated device, for the tests of the Python package |
//! | `order` | ordering of streams around a use of memory |
//! | `resource` | stacks of resources: build, allocate, free, query |
//! | `layers` | functions of single layers that a stack's text does not offer |
//! | `memory_pool`, `pool_share` | the driver's pools, also between processes |
//! | `registry` | the default resource of each device |
//! | `callback` | resources and failure handlers made from functions of the program |
//! | `manager` | the memory-manager plug-in interface (NBEP 7) |
//! | `framework` | `malloc` and `free` as PyTorch and CuPy call them, on the default resources |
//! | `graph_pools` | the pools of PyTorch's captured graphs |
//! | `history`, `snapshot` | recorded events, and snapshots of memory in PyTorch's format |
//! | `metrics` | metrics for Prometheus and OpenTelemetry |
//! | `cached` | blocks from the calling thread's cache alone, for callers that hold a lock |
//! | `debug_log` | diagnostics as lines of text |
//! | `throwing` | `malloc` functions that throw C++ exceptions |
//!
//! # Rules
//! - A function that can fail returns a [`Status`](status::Status). If it succeeds, it writes its results
//!   through its last arguments. The text of an error is valid on this thread until the thread's next failing
//!   call.
//! - Handles are pointers to opaque types. The caller owns each returned handle, and frees it with the
//!   `_free` function of its type. A `_free` function ignores a null handle. All other functions refuse it.
//! - A `stream` is a `cudaStream_t` or `CUstream`. Null is the legacy default stream. The stream must be
//!   alive during the call and belong to the device.
//! - All functions can be called on any thread. No function unwinds, unless its documentation says so.

mod block;
pub mod cached;
pub mod callback;
pub mod debug_log;
pub mod device;
mod exception;
mod first_call;
pub mod framework;
pub mod graph_pools;
pub mod history;
pub mod layers;
pub mod manager;
pub mod memory_pool;
pub mod metrics;
pub mod oracle;
pub mod order;
mod parked;
#[cfg(unix)]
pub mod pool_share;
mod process;
mod refused;
pub mod registry;
pub mod resource;
pub mod snapshot;
pub mod status;
pub mod throwing;
