//! Allocates host memory. One group of resources uses the system's allocator. [`HostResource`] makes an
//! allocator for host code from any resource whose memory the host can access.
//!
//! | item | purpose |
//! |---|---|
//! | [`PageableHostMemoryResource`] | memory of the system's allocator, for the host only |
//! | [`SystemMemoryResource`] | memory of the system's allocator, on a device that can access it |
//! | [`SamHeadroomMemoryResource`] | the same memory, but a part of the device stays free |
//! | [`HostMemoryResource`] | the trait of allocators for the host; their calls name no stream |
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
