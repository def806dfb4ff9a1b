//! Runs the programs of the README and of the book as tests.

/// Runs the programs of a document as tests; its links are for the repository.
#[cfg(doctest)]
macro_rules! run_programs_of {
    ($($page:literal)*) => { $(#[doc = include_str!($page)] unsafe extern "C" {})* };
}

#[cfg(doctest)]
run_programs_of! {
    "../README.md"
    "../docs/book/src/from-cudarc.md"
    "../docs/book/src/from-rmm-cpp.md"
    "../docs/book/src/graphs.md"
    "../docs/book/src/library-api.md"
    "../docs/book/src/logs.md"
    "../docs/book/src/metrics.md"
    "../docs/book/src/out-of-memory.md"
    "../docs/book/src/own-adaptor.md"
    "../docs/book/src/own-driver.md"
    "../docs/book/src/own-resource.md"
    "../docs/book/src/plans.md"
    "../docs/book/src/processes.md"
    "../docs/book/src/rust.md"
    "../docs/book/src/tutorial.md"
}
