//! Tests the reports of a log and their threads, and that neither a subscriber nor a writer can stop a log.

use std::fmt::Debug;

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::super::queue::Queue;
use super::super::sink::Sink;
use super::super::status::Status;
use super::super::text::Text;
use super::super::writers::Writers;
use super::*;

/// Calls a function at each error of a log, with the log's name.
pub(super) struct OnError<F>(pub(super) F);

impl<F: Fn(&str) + Send + Sync + 'static> Subscriber for OnError<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "millpond::logging" && *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        let mut name = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            if field.name() == "log" {
                name = format!("{value:?}").replace('"', "");
            }
        });
        (self.0)(&name);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A queue without threads, whose destination fails.
fn broken_queue(name: &str, log: &Shared) -> Queue {
    log.broken.store(true, Ordering::SeqCst);
    let sink = Sink::new(Box::new(log.clone()), Status::new(name, true), Flush::Async);
    Queue::new(sink, None, |bytes| Text::new(Columns::Rmm, Arc::default(), bytes))
}

fn push(queue: &Queue, bytes: u64) {
    let (ptr, layout) = (DevicePtr::new(256), Layout::new(bytes));
    let action = Action::Allocate;
    queue.push(super::super::record::Entry { action, ptr, layout, stream: S, duration_ns: None, device: 0 });
}

/// Before, the flush waited for the write that made the report.
#[test]
fn a_subscriber_may_flush_the_log_whose_error_it_is_told() {
    let log = Shared::default();
    let queue = Arc::new(broken_queue("flushed", &log));
    let flushed: Arc<Mutex<Vec<io::Result<()>>>> = Arc::default();
    let (same, inner) = (Arc::clone(&queue), Arc::clone(&flushed));
    let subscriber = OnError(move |_: &str| inner.lock().unwrap().push(same.flush()));
    millpond_testkit::events::heard_by(subscriber, || {
        push(&queue, 1);
        assert!(queue.flush().is_err());
    });
    let flushed = flushed.lock().unwrap();
    assert!(matches!(**flushed, [Ok(())]), "{flushed:?}");
}

#[test]
fn a_subscriber_that_panics_does_not_stop_the_log() {
    let log = Shared::default();
    let queue = broken_queue("panics", &log);
    millpond_testkit::events::heard_by(OnError(|_: &str| panic!("on purpose")), || {
        push(&queue, 1);
        queue.flush().expect_err("the writer is broken");
    });
    log.broken.store(false, Ordering::SeqCst);
    push(&queue, 2);
    queue.flush().unwrap();
    assert_eq!((queue.status().rows_written(), log.text().lines().count()), (1, 1));
}

/// A subscriber may wait for the end of the log, or end it: no thread of the log may be inside the
/// subscriber.
#[test]
fn only_calls_of_the_program_report() {
    static REPORTED: Mutex<Vec<(String, Option<String>)>> = Mutex::new(Vec::new());
    let note = |log: &str| {
        let thread = std::thread::current().name().map(ToOwned::to_owned);
        REPORTED.lock().unwrap().push((log.to_owned(), thread));
    };
    tracing::subscriber::set_global_default(OnError(note)).unwrap();
    let reported = |name: &str| {
        let all = REPORTED.lock().unwrap();
        all.iter().filter(|(log, _)| log == name).map(|(_, thread)| thread.clone()).collect::<Vec<_>>()
    };
    let own = [std::thread::current().name().map(ToOwned::to_owned)];

    let (log, name) = (Shared::default(), "written by a thread of the log");
    let writers = Writers::start(broken_queue(name, &log)).unwrap();
    push(writers.queue(), 1);
    while writers.queue().status().write_errors() == 0 {
        std::thread::yield_now();
    }
    push(writers.queue(), 2);
    drop(writers);
    assert_eq!(reported(name), own);

    let (log, name) = (Shared::default(), "written at the end");
    let queue = Arc::new(broken_queue(name, &log));
    push(&queue, 1);
    assert!(queue.end(queue.begin_end()));
    assert_eq!(reported(name), []);
    push(&queue, 2);
    assert_eq!(reported(name), own);
}

/// A writer that fails in ways that its trait does not allow.
#[derive(Clone)]
struct Lies(Shared, fn(usize) -> io::Result<usize>);

impl Write for Lies {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.broken.load(Ordering::SeqCst) { (self.1)(bytes.len()) } else { self.0.write(bytes) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An error whose text panics.
#[derive(Debug)]
struct NoText;

impl std::fmt::Display for NoText {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("on purpose")
    }
}

impl std::error::Error for NoText {}

/// A panic's payload whose drop panics.
struct Stubborn;

impl Drop for Stubborn {
    fn drop(&mut self) {
        panic!("on purpose");
    }
}

#[test]
fn no_writer_can_stop_a_log() {
    let takes_too_much = |bytes| Ok(bytes + 1);
    let has_no_text = |_| Err(io::Error::other(NoText));
    let panics_twice = |_| std::panic::panic_any(Stubborn);
    let ways: [fn(usize) -> io::Result<usize>; 3] = [takes_too_much, has_no_text, panics_twice];
    for (way, flush) in
        (0..3).flat_map(|way| [Flush::EveryRow, Flush::Buffered, Flush::Async].map(|flush| (way, flush)))
    {
        let log = Shared::default();
        let layer = LoggingLayer::new().writer(Lies(log.clone(), ways[way])).flush(flush);
        let resource = layer.layer(mock().0).unwrap();
        log.broken.store(true, Ordering::SeqCst);
        let ptr = resource.allocate_bytes(1, S).unwrap();
        let flushed = resource.flush();
        assert_eq!(flushed.is_err(), flush != Flush::EveryRow, "way {way}: a row's own failure is counted");
        log.broken.store(false, Ordering::SeqCst);
        free(&resource, ptr, 1);
        resource.flush().unwrap();
        assert_eq!(log.rows().len(), 1, "way {way}, {flush}");
        assert_eq!((resource.rows_written(), resource.write_errors()), (1, 1), "way {way}, {flush}");
    }
}
