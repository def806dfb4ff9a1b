//! Finds a layer by a trait that it provides.

use std::any::TypeId;

use crate::find::stack_of;
use crate::handles::downcast;
use crate::{DeviceMemoryResource, Traits};

/// A resource as something else.
type Cast<T> = Box<dyn for<'a> Fn(&'a dyn DeviceMemoryResource) -> Option<&'a T>>;

impl Traits {
    /// Says that the resource, which is an `R`, is a `T`, too; `cast` is `|it| it`.
    pub fn add<R: DeviceMemoryResource, T: ?Sized + 'static>(&mut self, cast: fn(&R) -> &T) -> &mut Self {
        if self.wanted == TypeId::of::<T>() {
            let cast: Cast<T> = Box::new(move |resource| downcast::<R>(resource).map(cast));
            self.cast = Some(Box::new(cast));
        }
        self
    }
}

/// The resource as this trait, if it [has](DeviceMemoryResource::provide) it, looking through handles (`Arc`,
/// `Box`) but not at what is below.
pub fn as_trait<T: ?Sized + 'static>(resource: &dyn DeviceMemoryResource) -> Option<&T> {
    let mut traits = Traits { wanted: TypeId::of::<T>(), cast: None };
    resource.provide(&mut traits);
    let cast = traits.cast?.downcast::<Cast<T>>().ok()?;
    cast(resource)
}

/// The outermost resource of a stack that [provides](DeviceMemoryResource::provide) this trait, looking
/// through handles. The types above and below it do not matter.
///
/// [`find`](crate::find) asks for a type, and [`find_layer`](crate::find_layer) for a name. All layers of a
/// stack that have a trait are `stack.stack().filter_map(as_trait::<dyn Nameable>)`, outermost first.
///
/// Nothing is found below a `thread_safe` layer over a typed resource, which lends nothing from behind its
/// lock. A trait is found as the type that the layer names: `dyn Nameable + Send + Sync` is another type, and
/// finds nothing.
///
/// ```
/// use millpond_core::{AnyResource, find_trait};
///
/// /// What layers of some program can do: they say `traits.add::<Self, dyn Nameable>(|it| it)`.
/// trait Nameable {
///     fn name(&self) -> String;
/// }
///
/// fn name_of(stack: &AnyResource) -> Option<String> {
///     find_trait::<dyn Nameable>(stack).map(Nameable::name)
/// }
/// ```
pub fn find_trait<T: ?Sized + 'static>(resource: &dyn DeviceMemoryResource) -> Option<&T> {
    stack_of(resource).find_map(|layer| as_trait(layer))
}
