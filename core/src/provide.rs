//! The traits that a resource provides.

use std::any::{Any, TypeId};

use crate::handles::downcast;
use crate::{AnyResource, DeviceMemoryResource, Traits};

/// A cast of a resource to another trait.
type Cast<T> = Box<dyn for<'a> Fn(&'a dyn DeviceMemoryResource) -> Option<&'a T>>;

impl Traits {
    /// Declares that the resource also implements the trait `T`. `R` is the type of the resource. As `cast`,
    /// pass `|it| it`.
    pub fn add<R: DeviceMemoryResource, T: ?Sized + 'static>(&mut self, cast: fn(&R) -> &T) -> &mut Self {
        if self.wanted == TypeId::of::<T>() {
            let cast: Cast<T> = Box::new(move |resource| downcast::<R>(resource).map(cast));
            self.cast = Some(Box::new(cast));
        }
        self
    }
}

/// The answer of a resource that threads may share.
struct Shared;

impl Traits {
    /// Declares that threads may share the resource. `R` is the type of the resource.
    pub fn share<R: DeviceMemoryResource + Send + Sync>(&mut self) -> &mut Self {
        if self.wanted == TypeId::of::<Shared>() {
            self.cast = Some(Box::new(Shared));
        }
        self
    }

    /// Declares that threads may share the resource if they may share all resources in `below`. A layer that
    /// accepts any upstream calls this method. The type of such a layer alone does not tell whether threads
    /// may share the layer.
    ///
    /// # Safety
    /// If all resources in `below` are `Send` and `Sync`, then the resource is `Send` and `Sync`.
    pub unsafe fn share_over(&mut self, below: &[&dyn DeviceMemoryResource]) -> &mut Self {
        if self.wanted == TypeId::of::<Shared>() && below.iter().all(|below| is_shareable(*below)) {
            self.cast = Some(Box::new(Shared));
        }
        self
    }
}

/// Returns whether threads may share the resource. The result is `true` for an
/// [`AnyResource`](crate::AnyResource), and for a resource that declares it with [`Traits::share`] or
/// [`Traits::share_over`]. The layer `thread_safe` lends its upstream to callers only if the result for that
/// upstream is `true`.
pub fn is_shareable(resource: &dyn DeviceMemoryResource) -> bool {
    let any: &dyn Any = resource;
    if any.is::<AnyResource>() {
        return true;
    }
    let mut traits = Traits { wanted: TypeId::of::<Shared>(), cast: None };
    resource.provide(&mut traits);
    traits.cast.is_some_and(|answer| answer.is::<Shared>())
}

/// Returns the resource as this trait, if it [provides](DeviceMemoryResource::provide) it. Looks through
/// handles (`Arc`, `Box`), but not at the resources below.
pub(crate) fn as_trait<T: ?Sized + 'static>(resource: &dyn DeviceMemoryResource) -> Option<&T> {
    let mut traits = Traits { wanted: TypeId::of::<T>(), cast: None };
    resource.provide(&mut traits);
    let cast = traits.cast?.downcast::<Cast<T>>().ok()?;
    cast(resource)
}
