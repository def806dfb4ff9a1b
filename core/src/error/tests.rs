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

/// An adaptor that adds its request to a driver's error keeps duty 3 of the contract.
#[test]
fn a_request_that_is_out_of_memory_has_a_report() {
    let (layout, stream) = (Layout::new(1 << 20), StreamRef::PER_THREAD);
    let driver = || Error::from(DriverError::new(DriverError::OUT_OF_MEMORY, "cuMemsetD8Async"));
    for error in [driver().for_request(layout, stream), Error::out_of_memory(layout, stream)] {
        let error = error.in_stack("cuda+arena+zeroing");
        let report = error.out_of_memory_report().expect("it was added");
        assert_eq!((report.requested_bytes, report.stream), (1 << 20, 2));
        assert!(error.to_string().contains(&report.to_string()) && !error.is_impossible(), "{error}");
    }
    assert!(driver().out_of_memory_report().is_none(), "the request is not known");
    let other = Error::invalid_argument("").for_request(layout, stream);
    assert!(other.out_of_memory_report().is_none());
}

#[test]
fn the_first_resource_completes_the_report() {
    let error = Error::out_of_memory(Layout::new(1 << 20), StreamRef::LEGACY);
    let error = error
        .report_if_missing(|report| report.held_bytes = 7)
        .for_request(Layout::new(8), StreamRef::LEGACY);
    let error = error.report_if_missing(|report| report.held_bytes = 9);
    let report = error.out_of_memory_report().expect("it was added");
    assert_eq!((report.held_bytes, report.requested_bytes), (7, 1 << 20));
}

#[test]
fn an_error_names_the_device_after_the_right_word() {
    let device = DeviceId::own(0);
    let (layout, stream) = (Layout::new(4096), StreamRef::LEGACY);
    for (error, text) in [
        (Error::new(ErrorKind::Unsupported, "no pools"), "not supported on own:0: no pools"),
        (Error::new(ErrorKind::NoDevice, "register it"), "no device (own:0): register it"),
        (Error::invalid_argument("no").for_layout(layout), "invalid argument for 4KiB on own:0: no"),
        (
            Error::invalid_argument("no").for_request(layout, stream),
            "invalid argument for 4KiB on stream 0 of own:0: no",
        ),
    ] {
        assert_eq!(error.on_device(device).to_string(), text);
    }
}

#[test]
fn a_request_without_a_stream_names_none() {
    let error = Error::new(ErrorKind::OutOfMemory, "a pin").for_layout(Layout::new(4096));
    assert_eq!((error.to_string().as_str(), error.stream()), ("out of memory for 4KiB: a pin", None));
    assert_eq!(error.requested_bytes(), Some(4096));
}
