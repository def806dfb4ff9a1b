//! The text that `{:?}` prints of a resource.

/// Implements `Debug` for a resource as one line, with the text of its stack: its contents may be long, and
/// its fields are locks.
macro_rules! debug_as_text {
    ($name:ident $(<$($parameter:ident: $bound:path),+>)?) => {
        impl $(<$($parameter: $bound),+>)? ::std::fmt::Debug for $name $(<$($parameter),+>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

pub(crate) use debug_as_text;
