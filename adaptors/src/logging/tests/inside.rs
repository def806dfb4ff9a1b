//! Tests the program's own writers that use the stack that they log.

use std::sync::{OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use super::super::at_exit::KeepsRows;
use super::super::lines::Lines;
use super::super::queue::{BATCHES, LANE_ROWS, Queue};
use super::super::record::Entry;
use super::super::sink::Sink;
use super::super::status::Status;
use super::super::text::Text;
use super::reports::OnError;
use super::*;

/// After this time, a call counts as hanging.
const WATCHDOG: Duration = Duration::from_secs(60);

const FLUSHES: [Flush; 3] = [Flush::EveryRow, Flush::Buffered, Flush::Async];

type Logged = LoggingResourceAdaptor<MockResource>;

/// An action that the writer takes once.
type Act = Box<dyn FnOnce(Arc<Logged>) + Send>;

/// A writer that uses the stack during one write.
#[derive(Clone, Default)]
struct User {
    log: Shared,
    stack: Arc<OnceLock<Weak<Logged>>>,
    act: Arc<Mutex<Option<Act>>>,
}

impl User {
    /// Returns a stack that logs to the writer, which acts at the first row.
    fn stack(&self, flush: Flush, act: impl FnOnce(Arc<Logged>) + Send + 'static) -> Arc<Logged> {
        let layer = LoggingLayer::new().writer(self.clone()).flush(flush);
        let stack = Arc::new(layer.layer(mock().0).unwrap());
        self.stack.set(Arc::downgrade(&stack)).unwrap();
        *self.act.lock().unwrap() = Some(Box::new(act));
        stack
    }

    /// Returns the sizes of the rows so far.
    fn sizes(&self) -> Vec<u64> {
        self.log.rows().iter().map(|row| row.size).collect()
    }
}

impl Write for User {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut next = self.act.lock().unwrap();
        // If a test sees that the act has begun, it may drop the other handles.
        let stack = next.is_some().then(|| self.stack.get().and_then(Weak::upgrade).unwrap());
        let act = next.take();
        drop(next);
        if let Some((act, stack)) = act.zip(stack) {
            act(stack);
        }
        self.log.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a test on its own thread, and panics if it does not end.
fn watched(what: impl std::fmt::Debug, test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let test = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(WATCHDOG) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what:?}: it hangs"),
        _ => test.join().unwrap(),
    }
}

#[test]
fn rows_from_inside_the_writer_are_written_after_it() {
    for flush in FLUSHES {
        watched(flush, move || {
            let user = User::default();
            let stack = user.stack(flush, |stack| {
                let ptr = stack.allocate_bytes(77, S).unwrap();
                free(&stack, ptr, 77);
                assert_eq!((stack.rows_written(), stack.write_errors()), (0, 0));
                let error = stack.flush().unwrap_err();
                assert!(error.to_string().contains("from inside its own writer"), "{error}");
            });
            stack.allocate_bytes(100, S).unwrap();
            // The second call writes the rows that came from inside while the first call wrote.
            stack.flush().unwrap();
            stack.flush().unwrap();
            assert_eq!(user.sizes(), [100, 77, 77], "{flush}");
            assert_eq!((stack.rows_written(), stack.write_errors()), (3, 0));
        });
    }
}

#[test]
fn a_thread_that_the_writer_waits_for_does_not_wait_for_the_writer() {
    for flush in FLUSHES {
        watched(flush, move || {
            let user = User::default();
            let stack = user.stack(flush, |stack| {
                thread::spawn(move || stack.allocate_bytes(77, S).unwrap()).join().unwrap();
            });
            stack.allocate_bytes(100, S).unwrap();
            stack.flush().unwrap();
            stack.flush().unwrap();
            assert_eq!(user.sizes(), [100, 77], "{flush}");
        });
    }
}

#[test]
fn a_full_queue_lets_the_writers_own_rows_through() {
    /// More than the queue holds.
    const ROWS: u64 = (BATCHES as u64 + 2) * LANE_ROWS as u64;

    /// Logs rows while it writes one.
    struct Pusher(Arc<OnceLock<Weak<Queue>>>, Shared, bool);
    impl Write for Pusher {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if !std::mem::replace(&mut self.2, true) {
                let queue = self.0.get().and_then(Weak::upgrade).unwrap();
                (1..ROWS).for_each(|bytes| push(&queue, bytes));
            }
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    fn push(queue: &Queue, bytes: u64) {
        let (ptr, layout) = (DevicePtr::new(256), Layout::new(bytes));
        queue.push(Entry { action: Action::Allocate, ptr, layout, stream: S, duration_ns: None, device: 0 });
    }

    watched("a queue", || {
        let (log, place) = (Shared::default(), Arc::new(OnceLock::new()));
        let pusher = Pusher(Arc::clone(&place), log.clone(), false);
        let sink = Sink::new(Box::new(pusher), Status::new("pusher", true), Flush::Async);
        let text = |bytes| Text::new(Columns::Rmm, Arc::default(), bytes);
        let queue = Arc::new(Queue::new(sink, None, text));
        place.set(Arc::downgrade(&queue)).unwrap();
        push(&queue, 0);
        queue.flush().unwrap();
        queue.flush().unwrap();
        let text = format!("{}\n{}", HEADER.join(","), log.text());
        assert!(rows(&text).iter().map(|row| row.size).eq(0..ROWS));
    });
}

/// The thread of the log would wait for its own end.
#[test]
fn the_writer_may_drop_the_last_handle_of_the_stack() {
    watched("a drop", || {
        let user = User::default();
        let (let_go, has_let_go) = mpsc::channel();
        let stack = user.stack(Flush::Async, move |stack| {
            has_let_go.recv().unwrap();
            drop(Arc::into_inner(stack).expect("it is the last handle"));
        });
        stack.allocate_bytes(100, S).unwrap();
        while user.act.lock().unwrap().is_some() {
            thread::yield_now();
        }
        drop(stack);
        let_go.send(()).unwrap();
        while user.sizes() != [100] {
            thread::yield_now();
        }
    });
}

/// The writer calls `exit`: the log's end waits for nothing that this thread must do first.
#[test]
fn the_end_of_the_process_does_not_wait_for_a_writer_that_ends_it() {
    /// Ends its log while it writes a row.
    struct Ends(Arc<OnceLock<Weak<dyn KeepsRows>>>);
    impl Write for Ends {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let log = self.0.get().and_then(Weak::upgrade).unwrap();
            let ending = Arc::clone(&log).write_last();
            log.wait_for_last(ending);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for is_queued in [false, true] {
        let hung = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&hung);
        let subscriber = OnError(move |_: &str| _ = count.fetch_add(1, Ordering::SeqCst));
        millpond_testkit::events::heard_by(subscriber, || {
            let place = Arc::new(OnceLock::new());
            let sink =
                |flush| Sink::new(Box::new(Ends(Arc::clone(&place))), Status::new("ends", true), flush);
            let text = |bytes| Text::new(Columns::Rmm, Arc::default(), bytes);
            let (ptr, layout) = (DevicePtr::new(256), Layout::new(1));
            let action = Action::Allocate;
            let entry = Entry { action, ptr, layout, stream: S, duration_ns: None, device: 0 };
            if is_queued {
                let queue = Arc::new(Queue::new(sink(Flush::Async), None, text));
                assert!(place.set(Arc::downgrade(&queue) as Weak<dyn KeepsRows>).is_ok());
                queue.push(entry);
                queue.flush().unwrap();
            } else {
                let lines = Arc::new(Lines::new(text(512), sink(Flush::EveryRow), None));
                assert!(place.set(Arc::downgrade(&lines) as Weak<dyn KeepsRows>).is_ok());
                lines.write(entry);
            }
        });
        assert_eq!(hung.load(Ordering::SeqCst), 0, "queued: {is_queued}: it was waited for in vain");
    }
}
