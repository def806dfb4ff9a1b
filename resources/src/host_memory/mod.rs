//! Memory of the host: pageable memory as a resource, and any resource whose memory the host reaches as an
//! allocator for the host.
//!
//! | here | what it is |
//! |---|---|
//! | [`PageableHostMemoryResource`] | memory of the system's allocator for the host alone |
//! | [`SystemMemoryResource`] | the same memory where the device reaches it |
//! | [`SamHeadroomMemoryResource`] | the same, of which a part stays off the device |
//! | [`HostMemoryResource`] | the trait of allocators for the host, which take no stream |
//! | [`HostResource`] | any stack whose memory the host reaches, as such an allocator |
//!
//! Pinned memory is a resource of its driver: [`PinnedHostMemoryResource`](crate::PinnedHostMemoryResource).

mod headroom;
mod pageable;
mod resource;

pub(crate) use headroom::ENTRY as SAM_HEADROOM;
pub use headroom::SamHeadroomMemoryResource;
pub(crate) use pageable::{HOST, SYSTEM};
pub use pageable::{PageableHostMemoryResource, SystemMemoryResource};
pub use resource::{AnyHostResource, HostMemoryResource, HostResource};
