//! Collections whose memory a kernel can read: hashbrown's map and allocator-api2's vector over millpond's
//! [`HostAllocator`].

use hashbrown::DefaultHashBuilder;
use millpond::containers::HostAllocator;
use millpond::stack::StackSpec;
use millpond::{DriverHandle, Result};

/// A hash map in the memory of a stack.
pub type Map<K, V> = hashbrown::HashMap<K, V, DefaultHashBuilder, HostAllocator>;

/// A vector in the memory of a stack.
pub type Vector<T> = allocator_api2::vec::Vec<T, HostAllocator>;

/// Builds an allocator from the text of a stack, such as `managed+pool`.
///
/// # Errors
/// The errors of parsing and building the stack. Also
/// [`InvalidArgument`](millpond::ErrorKind::InvalidArgument) if the host cannot access the stack's memory, as
/// for `cuda`.
pub fn allocator(stack: &str, device: &DriverHandle) -> Result<HostAllocator> {
    HostAllocator::new(stack.parse::<StackSpec>()?.build(&millpond::layers(), device)?)
}
