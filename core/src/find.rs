//! Walks the layers of a stack, and finds one by a trait that it provides.

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
    /// Each layer that [provides](DeviceMemoryResource::provide) this trait, outermost first;
    /// [`find_trait`](crate::find_trait) returns the first of them.
    pub fn with<T: ?Sized + 'static>(self) -> impl Iterator<Item = &'a T> {
        self.filter_map(as_trait)
    }
}

pub(crate) fn stack_of(resource: &dyn DeviceMemoryResource) -> Stack<'_> {
    Stack { next: Some(peel(resource)) }
}

/// The outermost resource of a stack that [provides](DeviceMemoryResource::provide) this trait, looking
/// through handles. The types above and below it do not matter.
///
/// All layers of a stack that have a trait are `stack.stack().with::<dyn Nameable>()`, outermost first. The
/// [other ways](crate#looking-into-a-stack) to look into a stack walk it and report its memory.
///
/// Nothing is found below a `thread_safe` layer over a resource that threads may not share
/// ([`is_shareable`](crate::is_shareable)): its lock lends nothing. A trait is found as the type that the
/// layer names: `dyn Nameable + Send + Sync` is another type, and finds nothing.
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
