//! The C ABI of millpond: `libmillpond.so`, the one owner of all pools of a process.
//!
//! | module | functions |
//! |---|---|
//! | `status` | errors of the last call |
//! | `device` | devices, their streams, copies |
//! | `oracle` | the checks of a simulated device, for the tests of the Python package |
//! | `order` | the order of streams around a use of memory |
//! | `resource` | stacks of resources: build, allocate, give back, ask |
//! | `layers` | what single layers offer beyond their text |
//! | `registry` | the default resource of each device |
//! | `callback` | resources and failure handlers that are functions of the program |
//! | `manager` | the memory-manager plug-in interface (NBEP 7) |
//! | `framework` | `malloc` and `free` as PyTorch and CuPy call them, over the defaults |
//! | `graph_pools` | the pools of PyTorch's captured graphs |
//! | `cached` | blocks from the calling thread's cache alone, for callers that hold a lock |
//! | `debug_log` | lines of text about the library's work |
//! | `throwing` | the same two, with C++ exceptions for errors |
//!
//! # Rules
//! - A function that can fail returns a [`Status`](status::Status), and writes its result through its last
//!   arguments, only if it succeeds. The text of an error belongs to the thread, until its next failing call.
//! - Handles are pointers to opaque types. Each that is returned is owned by the caller, who ends it with the
//!   `_free` function of its type; a null handle is refused, and `_free` ignores it.
//! - A `stream` is a `cudaStream_t` or `CUstream`; null is the legacy default stream. It is alive during the
//!   call, and belongs to the device.
//! - All functions may be called on any thread. None unwinds, but those that say so.

mod block;
pub mod cached;
pub mod callback;
pub mod debug_log;
pub mod device;
mod exception;
mod first_call;
pub mod framework;
pub mod graph_pools;
pub mod layers;
pub mod manager;
pub mod oracle;
pub mod order;
mod parked;
mod process;
mod refused;
pub mod registry;
pub mod resource;
pub mod status;
pub mod throwing;
