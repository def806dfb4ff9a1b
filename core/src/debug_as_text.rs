//! The text that `{:?}` prints for a resource.

/// Implements `Debug` for a resource. `{:?}` then prints one line: the resource's type, and the text of its
/// stack as in `Display`. The line does not show the fields, because they may be long and may be behind
/// locks.
///
/// ```
/// use std::fmt;
///
/// struct Counted<R> {
///     upstream: R,
/// }
///
/// impl<R: fmt::Display> fmt::Display for Counted<R> {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         write!(f, "{}+counted", self.upstream)
///     }
/// }
///
/// millpond_core::debug_as_text!(Counted<R: fmt::Display>);
///
/// assert_eq!(format!("{:?}", Counted { upstream: "cuda" }), "Counted(cuda+counted)");
/// ```
#[macro_export]
macro_rules! debug_as_text {
    ($name:ident $(<$($parameter:ident $(: $bound:path)?),+>)?) => {
        impl $(<$($parameter $(: $bound)?),+>)? ::std::fmt::Debug for $name $(<$($parameter),+>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::write!(f, ::std::concat!(::std::stringify!($name), "({})"), self)
            }
        }
    };
}
