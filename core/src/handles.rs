//! Forwards the trait through `Arc` and `Box`.

use std::any::{Any, TypeId};
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
                traits.stands_for(&**self);
            }
        }
    };
}

forward!(Arc);
forward!(Box);

/// Looks through the type-erased handles.
pub(crate) fn peel(mut resource: &dyn DeviceMemoryResource) -> &dyn DeviceMemoryResource {
    loop {
        let any: &dyn Any = resource;
        if let Some(inner) = any.downcast_ref::<AnyResource>() {
            resource = &**inner;
        } else if let Some(inner) = any.downcast_ref::<Arc<AnyResource>>() {
            resource = &***inner;
        } else if let Some(inner) = any.downcast_ref::<Arc<dyn DeviceMemoryResource>>() {
            resource = &**inner;
        } else if let Some(inner) = any.downcast_ref::<Box<dyn DeviceMemoryResource>>() {
            resource = &**inner;
        } else {
            return resource;
        }
    }
}

/// Returns the resource as a `T` if its type is exactly `T`. If the resource is behind a handle (`Arc` or
/// `Box`), the function looks at the resource itself. The function does not look at the resources below.
pub fn downcast<T: DeviceMemoryResource>(resource: &dyn DeviceMemoryResource) -> Option<&T> {
    let any: &dyn Any = peel(resource);
    any.downcast_ref::<T>()
        .or_else(|| any.downcast_ref::<Arc<T>>().map(|handle| &**handle))
        .or_else(|| any.downcast_ref::<Box<T>>().map(|handle| &**handle))
}

/// Returns whether `one` and `other` are the same object. If an argument is a handle (`Arc` or `Box`), the
/// function compares the resource behind the handle. A resource that keeps state about its blocks implements
/// [`is_equal`](DeviceMemoryResource::is_equal) with this function.
pub fn is_same<T: DeviceMemoryResource>(one: &T, other: &dyn DeviceMemoryResource) -> bool {
    ResourceId::of(one) == ResourceId::of(other)
}

/// Identifies an object. The address alone does not: a layer may have its upstream as its first field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ResourceId {
    address: usize,
    type_id: TypeId,
}

impl ResourceId {
    /// Returns the identity of the object behind all handles. It is valid as long as the object lives.
    pub fn of(resource: &dyn DeviceMemoryResource) -> Self {
        let here = Self::here(resource);
        let mut traits = Traits { wanted: TypeId::of::<Self>(), cast: None };
        resource.provide(&mut traits);
        traits.cast.and_then(|found| found.downcast::<Self>().ok()).map_or(here, |found| *found)
    }

    fn here<R: Any + ?Sized>(resource: &R) -> Self {
        Self { address: std::ptr::from_ref(resource).addr(), type_id: resource.type_id() }
    }
}

impl Traits {
    /// Answers with the object that a handle stands for, unless a handle below has answered.
    fn stands_for<R: DeviceMemoryResource + ?Sized>(&mut self, inner: &R) {
        if self.wanted == TypeId::of::<ResourceId>() && self.cast.is_none() {
            self.cast = Some(Box::new(ResourceId::here(inner)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    /// A layer with no fields except its upstream: both have the same address.
    #[derive(Debug)]
    struct Thin<R>(R);

    #[derive(Debug)]
    struct Base(u64);

    impl fmt::Display for Base {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "base:number={}", self.0)
        }
    }

    impl<R: fmt::Display> fmt::Display for Thin<R> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}+thin", self.0)
        }
    }

    macro_rules! stub {
        ($type:ty, $($generics:tt)*) => {
            // SAFETY: it allocates nothing.
            unsafe impl $($generics)* DeviceMemoryResource for $type {
                fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
                    Err(crate::Error::out_of_memory(layout, stream))
                }

                unsafe fn deallocate(&self, _ptr: DevicePtr, _layout: Layout, _stream: StreamRef) {}

                fn driver(&self) -> &DriverHandle {
                    unreachable!("identity needs no driver")
                }

                fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
                    None
                }

                fn memory_info(&self) -> Result<MemoryInfo> {
                    Err(crate::Error::invalid_argument("it has none"))
                }

                fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
                    is_same(self, other)
                }
            }
        };
    }

    stub!(Base,);
    stub!(Thin<R>, <R: DeviceMemoryResource>);

    #[test]
    fn issue_29_handles_of_one_resource_are_the_same_on_both_sides() {
        let typed = Arc::new(Base(1));
        let any: AnyResource = typed.clone();
        let (twice, boxed) = (Arc::new(any.clone()), Box::new(any.clone()));
        let erased: Box<dyn DeviceMemoryResource> = Box::new(any.clone());
        let all: [&dyn DeviceMemoryResource; 6] = [&*typed, &typed, &any, &twice, &boxed, &erased];
        for other in all {
            assert!(is_same(&*typed, other) && is_same(&typed, other) && is_same(&any, other), "{other:?}");
            assert!(is_same(&twice, other) && is_same(&boxed, other) && is_same(&erased, other), "{other:?}");
            assert!(any.is_equal(other) && erased.is_equal(other) && typed.is_equal(other), "{other:?}");
        }
        let stranger: AnyResource = Arc::new(Base(1));
        for mine in all {
            assert!(!is_same(&stranger, mine) && !mine.is_equal(&stranger));
        }
    }

    #[test]
    fn a_layer_is_not_what_it_begins_with() {
        let thin = Thin(Base(1));
        assert_eq!(ResourceId::here(&thin).address, ResourceId::here(&thin.0).address);
        assert!(!is_same(&thin, &thin.0) && !is_same(&thin.0, &thin));
        let layered = Thin(Arc::new(Base(2)));
        assert!(is_same(&layered, &layered) && !is_same(&layered, &layered.0));
    }
}
