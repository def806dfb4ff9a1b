//! Iterates over the layers of a stack, and finds a layer by a trait that it provides.

use crate::DeviceMemoryResource;
use crate::handles::peel;
use crate::provide::as_trait;

/// The layers of a stack, outermost first; see
/// [`DeviceMemoryResourceExt::stack`](crate::DeviceMemoryResourceExt::stack).
#[derive(Debug)]
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
    /// Returns each layer that [provides](DeviceMemoryResource::provide) this trait, outermost first.
    /// [`find_trait`](crate::find_trait) returns the first of them.
    pub fn with<T: ?Sized + 'static>(self) -> impl Iterator<Item = &'a T> {
        self.filter_map(as_trait)
    }
}

pub(crate) fn stack_of(resource: &dyn DeviceMemoryResource) -> Stack<'_> {
    Stack { next: Some(peel(resource)) }
}

/// Returns the outermost resource of a stack that [provides](DeviceMemoryResource::provide) this trait. The
/// types of the layers do not matter. The search looks through handles (`Arc`, `Box`).
///
/// `stack.stack().with::<dyn Nameable>()` returns every layer that has the trait, outermost first. See also
/// the [other ways](crate#looking-into-a-stack) to look into a stack.
///
/// The search ends at a `thread_safe` layer if threads may not share the resource below it
/// ([`is_shareable`](crate::is_shareable)). Only the holder of the layer's lock may use that resource. The
/// trait must be exactly the type that the layer names: `dyn Nameable + Send + Sync` is another type, so the
/// search for it finds nothing.
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
