//! Tests of the texts of errors.

use std::error::Error as _;
use std::io;

use super::*;

/// An error that names its cause only by `source`, as the standard library asks for.
#[derive(Debug)]
struct Step(&'static str, Option<Box<Self>>);

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Step {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.1.as_deref().map(|step| step as _)
    }
}

#[test]
fn debug_adds_the_kind_and_all_causes() {
    let steps = Step("the log was closed", Some(Box::new(Step("the disk is full", None))));
    let error = Error::new(ErrorKind::Io, "writing rows").caused_by(steps);
    assert_eq!(error.to_string(), "input/output error: writing rows: the log was closed");
    assert_eq!(format!("{error:?}"), format!("{error} [Io]\n  caused by: the disk is full"));
    assert_eq!(
        error.source().and_then(|step| step.source()).map(ToString::to_string),
        Some("the disk is full".into())
    );
}

#[test]
fn debug_says_nothing_twice() {
    let driver = DriverError::new(DriverError::OUT_OF_MEMORY, "cuMemAlloc");
    let inner = Error::from(driver).in_stack("cuda");
    let error = Error::out_of_memory(Layout::new(1 << 20), StreamRef::LEGACY).caused_by(inner);
    assert_eq!(format!("{error:?}"), format!("{error} [OutOfMemory]"));
    let bare = Error::from(io::Error::other("no such file"));
    assert_eq!(format!("{bare:?}"), "input/output error: no such file [Io]");
}

#[test]
fn a_request_without_a_stream_names_none() {
    let error = Error::new(ErrorKind::OutOfMemory, "a pin").for_layout(Layout::new(4096));
    assert_eq!((error.to_string().as_str(), error.stream()), ("out of memory for 4KiB: a pin", None));
    assert_eq!(error.requested_bytes(), Some(4096));
}
