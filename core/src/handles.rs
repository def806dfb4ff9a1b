//! Forwards the trait through `Arc` and `Box`.

use std::any::Any;
use std::sync::Arc;

use crate::driver::{DriverHandle, MemoryInfo};
use crate::{
    Accessibility, AnyResource, DeviceMemoryResource, DevicePtr, Layout, ResourceStatistics, Result,
    StreamRef, Traits,
};

macro_rules! forward {
    ($($pointer:tt)*) => {
        // SAFETY: every call goes to the same resource with the same arguments, so its contract holds.
        #[deny(clippy::missing_trait_methods)]
        unsafe impl<R: DeviceMemoryResource + ?Sized> DeviceMemoryResource for $($pointer)*<R>
        where
            Self: Any,
        {
            #[inline]
            fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
                (**self).allocate(layout, stream)
            }

            #[inline]
            unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
                // SAFETY: the caller's promises are about the same resource.
                unsafe { (**self).deallocate(ptr, layout, stream) }
            }

            fn driver(&self) -> &DriverHandle {
                (**self).driver()
            }

            fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
                (**self).upstream()
            }

            fn memory_info(&self) -> Result<MemoryInfo> {
                (**self).memory_info()
            }

            fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
                (**self).is_equal(peel(other))
            }

            fn is_stream_ordered(&self) -> bool {
                (**self).is_stream_ordered()
            }

            fn accessibility(&self) -> Accessibility {
                (**self).accessibility()
            }

            fn statistics(&self) -> Option<ResourceStatistics> {
                (**self).statistics()
            }

            fn trim(&self, keep_bytes: u64) -> Result<u64> {
                (**self).trim(keep_bytes)
            }

            fn provide(&self, traits: &mut Traits) {
                (**self).provide(traits);
            }
        }
    };
}

forward!(Arc);
forward!(Box);

/// Looks through the erased handles.
pub(crate) fn peel(mut resource: &dyn DeviceMemoryResource) -> &dyn DeviceMemoryResource {
    loop {
        let any: &dyn Any = resource;
        if let Some(inner) = any.downcast_ref::<AnyResource>() {
            resource = &**inner;
        } else if let Some(inner) = any.downcast_ref::<Arc<dyn DeviceMemoryResource>>() {
            resource = &**inner;
        } else if let Some(inner) = any.downcast_ref::<Box<dyn DeviceMemoryResource>>() {
            resource = &**inner;
        } else {
            return resource;
        }
    }
}

/// The resource as exactly this type, looking through handles (`Arc`, `Box`) but not at what is below.
pub fn downcast<T: DeviceMemoryResource>(resource: &dyn DeviceMemoryResource) -> Option<&T> {
    let any: &dyn Any = peel(resource);
    any.downcast_ref::<T>()
        .or_else(|| any.downcast_ref::<Arc<T>>().map(|handle| &**handle))
        .or_else(|| any.downcast_ref::<Box<T>>().map(|handle| &**handle))
}

/// Whether both are the same object, looking through handles: what
/// [`is_equal`](DeviceMemoryResource::is_equal) means for a resource that keeps blocks.
pub fn is_same<T: DeviceMemoryResource>(one: &T, other: &dyn DeviceMemoryResource) -> bool {
    downcast::<T>(other).is_some_and(|other| std::ptr::eq(one, other))
}
