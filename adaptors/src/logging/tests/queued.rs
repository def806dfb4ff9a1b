//! Tests `flush=async` in one process: order, room, and errors.

use std::sync::Condvar;

use super::super::ending::PATIENCE;
use super::super::queue::{BATCHES, LANE_ROWS, Queue};
use super::super::record::Entry;
use super::super::sink::Sink;
use super::super::status::Status;
use super::super::text::Text;
use super::*;

const ROWS: u64 = LANE_ROWS as u64;

/// A queue without threads, so that only the test writes.
fn queue(log: &Shared) -> Queue {
    let sink = Sink::new(Box::new(log.clone()), Status::new("test", true), Flush::Async);
    Queue::new(sink, None, |bytes| Text::new(Columns::Rmm, Arc::default(), bytes))
}

fn push(queue: &Queue, sizes: std::ops::Range<u64>) {
    for bytes in sizes {
        let (ptr, layout) = (DevicePtr::new(256), Layout::new(bytes));
        queue.push(Entry { action: Action::Allocate, ptr, layout, stream: S, duration_ns: None, device: 0 });
    }
}

/// Returns the sizes of the rows written, which are the numbers of their calls.
fn sizes(log: &Shared) -> Vec<u64> {
    rows(&format!("{}\n{}", HEADER.join(","), log.text())).iter().map(|row| row.size).collect()
}

#[test]
fn texts_that_are_ready_out_of_order_are_written_in_order() {
    let log = Shared::default();
    let queue = queue(&log);
    push(&queue, 0..ROWS + 1);
    let first = queue.take(1).unwrap();
    let second = queue.take(1).unwrap();
    assert!(queue.take(1).is_none(), "all is taken");
    push(&queue, ROWS + 1..ROWS + 3);
    let third = queue.take(1).unwrap();
    queue.finish(third, BATCHES);
    queue.finish(second, BATCHES);
    assert_eq!(log.text(), "", "no row is due and ready");
    queue.finish(first, BATCHES);
    assert!(sizes(&log).into_iter().eq(0..ROWS + 3));
}

#[test]
fn a_caller_that_needs_room_writes_a_share_and_the_rest_is_not_forgotten() {
    let log = Shared::default();
    let queue = queue(&log);
    push(&queue, 0..3 * ROWS);
    let batches: Vec<_> = std::iter::from_fn(|| queue.take(1)).collect();
    assert_eq!(batches.len(), 3);
    for batch in batches.into_iter().rev() {
        queue.finish(batch, 1);
    }
    assert_eq!(sizes(&log).len() as u64, ROWS);
    queue.flush().unwrap();
    assert!(sizes(&log).into_iter().eq(0..3 * ROWS));
}

#[test]
fn callers_write_where_there_is_no_thread() {
    let log = Shared::default();
    let queue = queue(&log);
    let rows = 3 * BATCHES as u64 * ROWS;
    push(&queue, 0..rows);
    let written = sizes(&log).len() as u64;
    assert!((1..rows).contains(&written), "{written} of {rows}: there was room for some only");
    queue.flush().unwrap();
    assert!(sizes(&log).into_iter().eq(0..rows));
}

#[test]
fn rows_after_the_end_of_the_process_began_are_written_at_once() {
    let log = Shared::default();
    let queue = Arc::new(queue(&log));
    push(&queue, 0..3);
    assert_eq!(log.text(), "");
    assert!(queue.end(queue.begin_end()));
    assert_eq!(sizes(&log), [0, 1, 2]);
    push(&queue, 3..4);
    assert_eq!(sizes(&log), [0, 1, 2, 3]);
}

/// A writer that takes nothing until the test opens it.
#[derive(Clone, Default)]
struct Gate {
    log: Shared,
    open: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    fn set_open(&self, open: bool) {
        *self.open.0.lock().unwrap() = open;
        self.open.1.notify_all();
    }
}

impl Write for Gate {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        drop(self.open.1.wait_while(self.open.0.lock().unwrap(), |open| !*open).unwrap());
        self.log.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_queue_waits_for_room_and_drops_nothing() {
    const CALLERS: u64 = 3;
    /// A batch holds at most all lanes, and one full lane unless the log's thread gathers it.
    const MOST: u64 = (BATCHES as u64 + 1) * CALLERS * ROWS;
    const LEAST: u64 = (BATCHES as u64 - 1) * ROWS;
    let gate = Gate::default();
    gate.set_open(true);
    let layer = LoggingLayer::new().writer(gate.clone()).flush(Flush::Async);
    let resource = layer.layer(mock().0).unwrap();
    gate.set_open(false);
    let accepted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (resource, accepted) = (&resource, &accepted);
            scope.spawn(move || {
                for number in 0..MOST {
                    resource.allocate_bytes(1 + caller * MOST + number, S).unwrap();
                    accepted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        while accepted.load(Ordering::SeqCst) <= LEAST {
            std::thread::yield_now();
        }
        for _ in 0..1000 {
            assert!(accepted.load(Ordering::SeqCst) <= MOST, "there is room for no more");
            std::thread::yield_now();
        }
        gate.set_open(true);
    });
    drop(resource);
    let rows = gate.log.rows();
    assert_eq!(rows.len() as u64, CALLERS * MOST);
    for caller in 0..CALLERS {
        let numbers = 1 + caller * MOST..1 + (caller + 1) * MOST;
        let of_caller = rows.iter().map(|row| row.size).filter(|size| numbers.contains(size));
        assert!(of_caller.eq(numbers.clone()), "each caller's rows are there, in order");
    }
}

#[test]
fn a_row_is_written_soon_also_after_the_thread_went_to_sleep() {
    let log = Shared::default();
    let layer = LoggingLayer::new().writer(log.clone()).flush(Flush::Async);
    let resource = layer.layer(mock().0).unwrap();
    for rows in 1..=3 {
        resource.allocate_bytes(1, S).unwrap();
        while log.rows().len() < rows {
            std::thread::yield_now();
        }
        while rows < 3 && !resource.journal.queue().unwrap().is_asleep() {
            std::thread::yield_now();
        }
    }
}

/// A writer that takes a piece of the log now and then.
struct Slow(Shared);

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        std::thread::sleep(PATIENCE / 8);
        assert!(bytes.ends_with(b"\n"), "whole rows");
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn issue_9_a_destination_that_is_only_slow_gets_every_row() {
    let log = Shared::default();
    let queue = Arc::new(Queue::new(
        Sink::new(Box::new(Slow(log.clone())), Status::new("slow", true), Flush::Async),
        None,
        |bytes| Text::new(Columns::Rmm, Arc::default(), bytes),
    ));
    let rows = 4 * ROWS;
    push(&queue, 0..rows);
    assert!(queue.end(queue.begin_end()));
    assert!(log.text().len() > 9 * 64 * 1024, "it took longer than the patience with one that hangs");
    assert!(sizes(&log).into_iter().eq(0..rows));
}

#[test]
fn issue_9_a_destination_that_hangs_is_given_up_and_no_caller_waits_for_it() {
    let gate = Gate::default();
    let sink = Sink::new(Box::new(gate.clone()), Status::new("gate", true), Flush::Async);
    let text = |bytes| Text::new(Columns::Rmm, Arc::default(), bytes);
    let queue = Arc::new(Queue::new(sink, None, text));
    push(&queue, 0..3);
    assert!(!queue.end(queue.begin_end()));
    // More than the queue holds, by callers that would wait for room or write themselves.
    push(&queue, 3..(BATCHES as u64 + 2) * ROWS);
    gate.set_open(true);
}

#[test]
fn issue_9_a_buffer_whose_destination_hangs_is_given_up() {
    let gate = Gate::default();
    gate.set_open(true);
    let layer = LoggingLayer::new().writer(gate.clone()).flush(Flush::Buffered);
    let resource = layer.layer(mock().0).unwrap();
    resource.allocate_bytes(1, S).unwrap();
    gate.set_open(false);
    drop(resource);
    assert_eq!(gate.log.rows().len(), 0);
    gate.set_open(true);
}

#[test]
fn an_error_of_any_thread_reaches_flush_once() {
    let log = Shared::default();
    let layer = LoggingLayer::new().writer(log.clone()).flush(Flush::Async);
    let resource = layer.layer(mock().0).unwrap();
    log.broken.store(true, Ordering::SeqCst);
    let ptr = resource.allocate_bytes(1, S).unwrap();
    // Waits until the log's thread has seen the error.
    while resource.write_errors() == 0 {
        std::thread::yield_now();
    }
    log.broken.store(false, Ordering::SeqCst);
    let error = resource.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    free(&resource, ptr, 1);
    resource.flush().unwrap();
    assert_eq!((log.rows().len(), resource.rows_written(), resource.write_errors()), (1, 1, 1));

    let log = Shared::default();
    let queue = queue(&log);
    log.broken.store(true, Ordering::SeqCst);
    push(&queue, 0..1);
    assert!(queue.flush().is_err(), "flush reports its own error");
    assert!(queue.flush().is_ok());
}
