//! An allocator that a log is replayed with: a stack, CUDA's own pool, or none.

use std::fmt;
use std::str::FromStr;

use millpond_core::stack::StackSpec;

/// An allocator that a log is replayed with.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Subject {
    /// No allocator: only the kernels run.
    None,
    /// `cuMemAllocAsync`, from the device's default pool.
    Async,
    /// A stack.
    Stack(StackSpec),
}

impl Subject {
    /// The allocators that run if the user names none. [`None`](Self::None) always runs, too.
    pub const DEFAULT: [&str; 3] = ["cuda+pool", "cuda+pool:reuse=own", "async"];

    /// Returns the stack, if the subject is a stack.
    pub const fn stack(&self) -> Option<&StackSpec> {
        match self {
            Self::Stack(spec) => Some(spec),
            Self::None | Self::Async => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Async => f.write_str("async"),
            Self::Stack(spec) => spec.fmt(f),
        }
    }
}

/// Reads `none`, `async`, or the text of a stack.
impl FromStr for Subject {
    type Err = millpond_core::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "none" => Ok(Self::None),
            "async" => Ok(Self::Async),
            stack => stack.parse().map(Self::Stack),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_read_and_printed() {
        for text in Subject::DEFAULT.into_iter().chain(["none"]) {
            assert_eq!(text.parse::<Subject>().unwrap().to_string(), text);
        }
        assert_eq!("async".parse::<Subject>().unwrap(), Subject::Async);
        assert!("cuda++pool".parse::<Subject>().is_err());
    }
}
