//! Memory of the host: pageable memory as a resource, and allocators for the host over any resource with host
//! memory.
//!
//! | item | purpose |
//! |---|---|
//! | [`PageableHostMemoryResource`] | memory of the system's allocator, for the host only |
//! | [`SystemMemoryResource`] | the same memory, on a device that can access it |
//! | [`SamHeadroomMemoryResource`] | the same, but keeps a part of the device free |
//! | [`HostMemoryResource`] | the trait of allocators for the host, which take no stream |
//! | [`HostResource`] | makes such an allocator from any stack whose memory the host can access |
//!
//! The driver's pinned memory is a separate resource:
//! [`PinnedHostMemoryResource`](crate::PinnedHostMemoryResource).

mod headroom;
mod pageable;
mod resource;

pub(crate) use headroom::ENTRY as SAM_HEADROOM;
pub use headroom::SamHeadroomMemoryResource;
pub(crate) use pageable::{HOST, SYSTEM};
pub use pageable::{PageableHostMemoryResource, SystemMemoryResource};
pub use resource::{AnyHostResource, HostMemoryResource, HostResource};
