//! Iterates over the layers of a stack, and finds a layer by a trait that it provides.

use crate::DeviceMemoryResource;
use crate::handles::peel;
use crate::provide::as_trait;

/// An iterator over the layers of a stack, outermost first.
/// [`DeviceMemoryResourceExt::stack`](crate::DeviceMemoryResourceExt::stack) returns it.
#[derive(Clone, Debug)]
pub struct Stack<'a> {
    next: Option<&'a dyn DeviceMemoryResource>,
}

impl<'a> Iterator for Stack<'a> {
    type Item = &'a dyn DeviceMemoryResource;

    fn next(&mut self) -> Option<Self::Item> {
        let current = self.next?;
        self.next = current.upstream().map(peel);
        Some(current)
    }
}

impl<'a> Stack<'a> {
    /// Returns each layer that [provides](DeviceMemoryResource::provide) the trait `T`, outermost first.
    /// [`find_trait`](crate::find_trait) returns only the outermost of these layers.
    pub fn with<T: ?Sized + 'static>(self) -> impl Iterator<Item = &'a T> {
        self.with_layers().map(|(_, found)| found)
    }

    /// Returns the same as [`with`](Self::with), and the layer itself before each `T`.
    pub fn with_layers<T: ?Sized + 'static>(
        self,
    ) -> impl Iterator<Item = (&'a dyn DeviceMemoryResource, &'a T)> {
        self.filter_map(|layer| Some((layer, as_trait(layer)?)))
    }
}

pub(crate) fn stack_of(resource: &dyn DeviceMemoryResource) -> Stack<'_> {
    Stack { next: Some(peel(resource)) }
}

/// Returns the outermost resource of a stack that [provides](DeviceMemoryResource::provide) the trait `T`.
/// You need not know the types of the layers. If a resource is behind a handle (`Arc` or `Box`), the function
/// looks at the resource itself.
///
/// `stack.stack().with::<dyn Nameable>()` returns every layer with the trait `Nameable`, outermost first.
/// [Looking into a stack](crate#looking-into-a-stack) lists related functions.
///
/// `T` must be exactly the type that the layer lists. For example, `dyn Nameable + Send + Sync` is not the
/// type `dyn Nameable`, so a search for the longer type finds nothing.
///
/// Below a `thread_safe` layer, the search continues only if threads may share the layer's upstream
/// ([`is_shareable`](crate::is_shareable)). Otherwise only the thread that holds the layer's lock may use the
/// upstream, and the search ends.
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
    stack_of(resource).with().next()
}
