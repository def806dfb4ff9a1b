//! Finds a layer of a stack by its type or by its name.

use crate::DeviceMemoryResource;
use crate::handles::{downcast, peel};
use crate::stack::StackSpec;

/// The resources of a stack, outermost first; see
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

pub(crate) fn stack_of(resource: &dyn DeviceMemoryResource) -> Stack<'_> {
    Stack { next: Some(peel(resource)) }
}

/// The outermost resource of exactly this type in a stack, looking through handles.
///
/// For stacks that are built from text, every layer's upstream is an [`AnyResource`](crate::AnyResource):
/// look for `LoggingResourceAdaptor<AnyResource>`. [`find_layer`] asks for a name in place of a type, and
/// [`find_trait`](crate::find_trait) for what the layer can do.
pub fn find<T: DeviceMemoryResource>(resource: &dyn DeviceMemoryResource) -> Option<&T> {
    stack_of(resource).find_map(|layer| downcast(layer))
}

/// The outermost resource of a stack that text calls by this name, looking through handles. The types above
/// and below it do not matter.
///
/// It answers what every resource does, as [`statistics`](DeviceMemoryResource::statistics) of a pool alone:
///
/// ```
/// # use millpond_core::{AnyResource, find_layer};
/// fn bytes_held(stack: &AnyResource) -> Option<u64> {
///     Some(find_layer(stack, "pool")?.statistics()?.bytes_reserved)
/// }
/// ```
pub fn find_layer<'a>(
    resource: &'a dyn DeviceMemoryResource,
    name: &str,
) -> Option<&'a dyn DeviceMemoryResource> {
    stack_of(resource).find(|layer| {
        let text = layer.to_string().parse::<StackSpec>();
        text.is_ok_and(|stack| stack.layers().last().is_some_and(|layer| layer.name == name))
    })
}
