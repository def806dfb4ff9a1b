//! Repeats the requests that had failed when the log was written.

use millpond_core::{AnyResource, DriverHandle, OutOfMemoryReport, StreamRef};
use parking_lot::Mutex;
use serde::Serialize;

use crate::program::{Op, Program};
use crate::text::bytes_among;

/// The outcome of the requests that had failed when the log was written.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[non_exhaustive]
pub struct AskedAgain {
    /// The number of requests. All failures before a success of the same size, thread and stream count as one
    /// request.
    pub requests: u64,
    /// The number of served requests.
    pub served: u64,
    /// The first hundred requests that were not served, in the log's order.
    pub unserved: Vec<Unserved>,
}

/// A request that failed again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Unserved {
    /// The line of the request in the log.
    pub line: u64,
    /// The size of the request in bytes.
    pub bytes: u64,
    /// The number of missing bytes, from the resource's report. Without a report, it is the number of
    /// requested bytes beyond the device's free memory. It is 0 if enough memory was free, but the resource
    /// could not use it for this request.
    pub missing_bytes: u64,
    /// The error as text. If it has several lines, the first line is a summary.
    pub error: String,
    /// The stack's out-of-memory report, if the stack made one.
    pub report: Option<Box<OutOfMemoryReport>>,
}

impl Unserved {
    /// Returns the request's size, its line, and the missing bytes as text.
    pub fn in_words(&self) -> String {
        let sizes = [self.bytes, self.missing_bytes];
        let [bytes, missing] = sizes.map(|bytes| bytes_among(bytes, &sizes));
        let missing = match self.missing_bytes {
            0 => "although enough memory was free".to_owned(),
            _ => format!("{missing} more was needed"),
        };
        format!("{bytes} at line {}, {missing}", self.line)
    }
}

/// The most unserved requests that are listed; further requests are only counted.
const MOST_UNSERVED: usize = 100;

/// Repeats the requests that had failed when the log was written.
#[derive(Debug)]
pub(super) struct Again<'a> {
    program: &'a Program,
    /// The device's own driver. Its calls are not counted.
    driver: &'a DriverHandle,
    answers: Mutex<AskedAgain>,
}

impl<'a> Again<'a> {
    pub(super) fn new(program: &'a Program, driver: &'a DriverHandle) -> Self {
        Self { program, driver, answers: Mutex::default() }
    }

    /// Makes one request, and frees the block. Returns the error if the device is lost.
    #[cold]
    pub(super) fn ask(
        &self,
        resource: &AnyResource,
        op: &Op,
        stream: StreamRef,
    ) -> millpond_core::Result<()> {
        if self.program.is_retry(op) {
            return Ok(());
        }
        let layout = op.layout();
        let answer = resource.allocate(layout, stream).map(|ptr| {
            // SAFETY: the block came from this resource with the same layout. It is freed once, and no work
            // uses it.
            unsafe { resource.deallocate(ptr, layout, stream) }
        });
        let mut answers = self.answers.lock();
        answers.requests += 1;
        let Err(error) = answer else {
            answers.served += 1;
            return Ok(());
        };
        if answers.unserved.len() < MOST_UNSERVED {
            let (line, bytes) = (u64::from(op.line), op.bytes);
            let missing_bytes = self.missing(op, &error);
            let report = error.out_of_memory_report().cloned().map(Box::new);
            answers.unserved.push(Unserved { line, bytes, missing_bytes, error: error.to_string(), report });
        }
        if error.is_sticky() { Err(error) } else { Ok(()) }
    }

    fn missing(&self, op: &Op, error: &millpond_core::Error) -> u64 {
        let said = error.out_of_memory_report().and_then(|report| report.short_bytes);
        said.unwrap_or_else(|| {
            let free = self.driver.mem_get_info().map_or(0, |memory| memory.free);
            op.bytes.saturating_sub(free)
        })
    }

    pub(super) fn into_answers(self) -> AskedAgain {
        self.answers.into_inner()
    }
}
