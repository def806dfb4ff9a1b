//! The bound of a resource that threads share.

/// A type that threads may share. Every type that is [`Send`] and [`Sync`] implements it, and no other.
///
/// Use it as a bound instead of `Send + Sync`. The compiler's error message then says what to do.
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
