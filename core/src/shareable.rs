//! The bound of a resource that threads share.

/// A bound for types that threads may share. Exactly the types that are [`Send`] and [`Sync`] implement this
/// trait.
///
/// Use the trait as a bound instead of `Send + Sync`. If a resource does not meet the bound, the compiler's
/// error message then says how to make the resource shareable.
#[diagnostic::on_unimplemented(
    message = "threads cannot share `{Self}`; put the layer `ThreadSafeLayer` on top, and share that",
    label = "only one thread can use this resource",
    note = "`resource.layer(ThreadSafeLayer::new())?` lets one thread at a time into a resource that is \
            `Send`"
)]
pub trait Shareable: Send + Sync {}

// Otherwise the message would be about a field of the type.
#[diagnostic::do_not_recommend]
impl<T: Send + Sync + ?Sized> Shareable for T {}
