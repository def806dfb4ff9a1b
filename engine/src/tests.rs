//! Tests the three orders of a replay, and its errors.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::thread::ThreadId;

use millpond_core::{
    DeviceMemoryResource, DevicePtr, DriverError, DriverHandle, Layout, MemoryInfo, StreamId, StreamRef,
};
use millpond_driver::DeviceSpec;
use parking_lot::Mutex;

use super::*;
use crate::log::LogReader;
use crate::program::Limits;

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";
const ORDERS: [Threads; 3] = [Threads::AsLogged, Threads::Free, Threads::One];

/// Requests of these sizes fail in different ways.
const TOO_LARGE: u64 = 1 << 40;
const STICKY: u64 = 666;
const PANIC: u64 = 667;
const SLOW: u64 = 668;

/// One call to the resource. These tests tell blocks apart by size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Call {
    frees: bool,
    bytes: u64,
    stream: StreamId,
    thread: ThreadId,
}

/// Hands out numbers, records the callers, and checks the caller's duties.
#[derive(Debug)]
struct Witness {
    driver: DriverHandle,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live: HashMap<DevicePtr, Layout>,
    handed_out: u64,
    calls: Vec<Call>,
}

impl Witness {
    fn new() -> Arc<Self> {
        let driver = DeviceSpec::SimH200.open().unwrap();
        Arc::new(Self { driver, state: Mutex::default() })
    }

    fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.clone()
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("witness")
    }
}

// SAFETY: no block overlaps another; none is ever used.
unsafe impl DeviceMemoryResource for Witness {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> millpond_core::Result<DevicePtr> {
        if layout.bytes() == SLOW {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let mut state = self.state.lock();
        let (bytes, thread) = (layout.bytes(), std::thread::current().id());
        match bytes {
            0 => return Ok(DevicePtr::NULL),
            TOO_LARGE => return Err(millpond_core::Error::out_of_memory(layout, stream)),
            STICKY => return Err(DriverError::new(DriverError::ILLEGAL_ADDRESS, "cuMemAlloc").into()),
            PANIC => panic!("as the test wants"),
            _ => {}
        }
        state.calls.push(Call { frees: false, bytes, stream: stream.id(), thread });
        state.handed_out += 1;
        let ptr = DevicePtr::new(state.handed_out * 256);
        state.live.insert(ptr, layout);
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if ptr.is_null() {
            return;
        }
        let mut state = self.state.lock();
        assert_eq!(state.live.remove(&ptr), Some(layout), "the block is not live, or has another layout");
        let thread = std::thread::current().id();
        state.calls.push(Call { frees: true, bytes: layout.bytes(), stream: stream.id(), thread });
    }

    fn driver(&self) -> &DriverHandle {
        &self.driver
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        None
    }

    fn memory_info(&self) -> millpond_core::Result<MemoryInfo> {
        Ok(MemoryInfo::default())
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

fn program(rows: &str, limits: Limits) -> Program {
    let text = format!("{HEADER}{rows}");
    Program::read(LogReader::from_reader("log", text.as_bytes()).unwrap(), limits).unwrap()
}

fn run(program: &Program, witness: &Arc<Witness>, threads: Threads, passes: u32) -> Result<Outcome> {
    let resource: AnyResource = witness.clone();
    replay(program, &resource, &witness.driver, Options::default().threads(threads).passes(passes), &mut ())
}

/// Returns a log of many threads that free each other's blocks; every block has a different size.
fn entangled_rows(threads: u64, operations: usize) -> String {
    let mut rows = String::new();
    let mut live: Vec<u64> = Vec::new();
    let (mut random, mut last) = (1_u64, 1000);
    for _ in 0..operations {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let thread = (random >> 33) % threads;
        let (action, block) = if random >> 60 < 8 || live.is_empty() {
            last += 1;
            live.push(last);
            ("allocate", last)
        } else {
            ("free", live.swap_remove((random >> 40) as usize % live.len()))
        };
        writeln!(rows, "{thread},0,{action},{:#x},{block},{:#x}", block << 8, 0x10 + thread).unwrap();
    }
    rows
}

/// Returns the rows of a log: whether the row frees, its size, its thread.
fn logged(rows: &str) -> Vec<(bool, u64, u64)> {
    let text = format!("{HEADER}{rows}");
    let reader = LogReader::from_reader("log", text.as_bytes()).unwrap();
    let events = reader.map(|event| event.unwrap());
    events.map(|event| (event.action == crate::log::Action::Free, event.bytes, event.thread)).collect()
}

#[test]
fn as_logged_keeps_the_logs_order_and_gives_each_logged_thread_its_own() {
    let rows = entangled_rows(4, 2000);
    let program = program(&rows, Limits::default());
    let expected = logged(&rows);
    let leaks = program.leaks().len();
    let witness = Witness::new();
    let outcome = run(&program, &witness, Threads::AsLogged, 3).unwrap();
    assert_eq!((outcome.pass_ns.len(), outcome.failures), (3, 0));
    let calls = witness.calls();
    let mut os_threads: HashMap<u64, ThreadId> = HashMap::new();
    assert_eq!(calls.len(), 3 * (expected.len() + leaks));
    for pass in calls.chunks(expected.len() + leaks) {
        for (call, (frees, bytes, thread)) in pass.iter().zip(&expected) {
            assert_eq!((call.frees, call.bytes), (*frees, *bytes));
            assert_eq!(
                *os_threads.entry(*thread).or_insert(call.thread),
                call.thread,
                "the same in each pass"
            );
        }
    }
    let mut distinct: Vec<ThreadId> = os_threads.into_values().collect();
    distinct.dedup();
    assert_eq!(distinct.len(), 4);
}

#[test]
fn one_thread_does_it_all_in_the_logs_order() {
    let rows = entangled_rows(4, 500);
    let witness = Witness::new();
    run(&program(&rows, Limits::default()), &witness, Threads::One, 1).unwrap();
    let calls = witness.calls();
    assert!(calls.iter().all(|call| call.thread == std::thread::current().id()));
    let order: Vec<_> = calls.iter().map(|call| (call.frees, call.bytes)).collect();
    let expected: Vec<_> = logged(&rows).iter().map(|row| (row.0, row.1)).collect();
    assert_eq!(order[..expected.len()], expected);
}

#[test]
fn free_threads_keep_their_own_order_and_each_block_its_own() {
    let rows = entangled_rows(8, 150_000);
    let program = program(&rows, Limits::default());
    assert!(program.block_count() > 1);
    let witness = Witness::new();
    run(&program, &witness, Threads::Free, 2).unwrap();
    // The witness checked that each free came after its allocation. Also, each thread kept its order.
    let mut by_stream: HashMap<StreamId, Vec<(bool, u64)>> = HashMap::new();
    let first_pass = &witness.calls()[..program.summary().operations as usize];
    for call in first_pass {
        by_stream.entry(call.stream).or_default().push((call.frees, call.bytes));
    }
    let mut by_thread: HashMap<u64, Vec<(bool, u64)>> = HashMap::new();
    for (frees, bytes, thread) in logged(&rows) {
        by_thread.entry(thread).or_default().push((frees, bytes));
    }
    let sorted = |lists: &mut dyn Iterator<Item = Vec<(bool, u64)>>| {
        let mut lists: Vec<_> = lists.collect();
        lists.sort();
        lists
    };
    assert!(sorted(&mut by_stream.into_values()) == sorted(&mut by_thread.into_values()));
}

/// Thread 3 has to wait: it allocates into slots that threads 1 and 2 must fill and empty first.
#[test]
fn a_free_thread_that_is_ahead_does_not_take_a_slot_too_early() {
    let mut rows = format!("1,0,allocate,0x100,{SLOW},0\n");
    for (owner, first) in [(1, 1000), (3, 10_000)] {
        for block in first..first + 3000 {
            writeln!(rows, "{owner},0,allocate,{:#x},{block},0", block << 8).unwrap();
        }
        for block in first..first + 3000 {
            writeln!(rows, "2,0,free,{:#x},{block},0", block << 8).unwrap();
        }
    }
    let program = program(&rows, Limits::default());
    assert!(program.slots() < 6000, "slots are used again");
    let witness = Witness::new();
    run(&program, &witness, Threads::Free, 2).unwrap();
    assert_eq!(witness.calls().len(), 2 * (12_001 + 1));
}

#[test]
fn what_the_log_leaks_is_freed_after_each_pass_on_its_stream() {
    for threads in ORDERS {
        let program = program("1,0,allocate,0x100,5,0x77\n2,0,allocate,0x200,6,0\n", Limits::default());
        let witness = Witness::new();
        run(&program, &witness, threads, 3).unwrap();
        let calls = witness.calls();
        assert_eq!(calls.iter().filter(|call| call.frees).count(), 6, "{threads}");
        assert!(witness.state.lock().live.is_empty());
        let stream_of =
            |frees| calls.iter().find(|call| call.frees == frees && call.bytes == 5).unwrap().stream;
        assert_eq!(stream_of(true), stream_of(false));
        assert_ne!(stream_of(true), StreamId::LEGACY);
        assert!(calls.iter().filter(|call| call.bytes == 6).all(|call| call.stream == StreamId::LEGACY));
    }
}

#[test]
fn a_failed_allocation_is_counted_and_its_free_left_out() {
    for threads in ORDERS {
        let rows = format!(
            "1,0,allocate,0x100,5,0\n2,0,allocate,0x200,{TOO_LARGE},0\n\
             1,0,free,0x200,{TOO_LARGE},0\n1,0,free,0x100,5,0\n"
        );
        let witness = Witness::new();
        let outcome = run(&program(&rows, Limits::default()), &witness, threads, 2).unwrap();
        assert_eq!(outcome.failures, 2);
        let first = outcome.first_failure.unwrap();
        assert_eq!(first.line, 3);
        assert!(first.error.contains("out of memory for 1TiB"), "{}", first.error);
        assert_eq!(witness.calls().len(), 4);
    }
}

#[test]
fn a_replay_until_the_first_failure_then_only_frees() {
    for threads in ORDERS {
        let rows = format!(
            "1,0,allocate,0x100,5,0\n1,0,allocate,0x200,{TOO_LARGE},0\n1,0,allocate,0x300,6,0\n\
             1,0,allocate failure,(nil),8,0\n1,0,allocate,0x400,{TOO_LARGE},0\n1,0,free,0x300,6,0\n\
             1,0,free,0x100,5,0\n1,0,allocate,0x500,7,0\n"
        );
        let (program, witness) = (program(&rows, Limits::default()), Witness::new());
        let options = Options::default().threads(threads).ask_again(true).until_failure(true);
        let resource: AnyResource = witness.clone();
        let outcome = replay(&program, &resource, &witness.driver, options, &mut ()).unwrap();
        assert_eq!((outcome.failures, outcome.first_failure.unwrap().line), (1, 3));
        let calls: Vec<(bool, u64)> = witness.calls().iter().map(|call| (call.frees, call.bytes)).collect();
        assert_eq!(calls, [(false, 5), (true, 5)], "{threads}");
    }
}

#[test]
fn a_sticky_error_ends_the_replay() {
    for threads in ORDERS {
        let rows = format!("1,0,allocate,0x100,5,0\n2,0,allocate,0x200,{STICKY},0\n1,0,allocate,0x300,5,0\n");
        let outcome = run(&program(&rows, Limits::default()), &Witness::new(), threads, 9).unwrap();
        assert_eq!((outcome.pass_ns.len(), outcome.failures), (1, 1), "{threads}");
    }
}

#[test]
fn a_panic_of_a_worker_is_an_error_and_no_thread_waits_for_ever() {
    for threads in [Threads::AsLogged, Threads::Free] {
        let rows = format!(
            "1,0,allocate,0x100,5,0\n2,0,allocate,0x200,{PANIC},0\n\
             3,0,free,0x200,{PANIC},0\n1,0,free,0x100,5,0\n"
        );
        let error = run(&program(&rows, Limits::default()), &Witness::new(), threads, 2).unwrap_err();
        assert!(matches!(&error, Error::Panicked(text) if text == "as the test wants"), "{error}");
    }
}

#[test]
fn nothing_is_asked_for_as_logged() {
    let witness = Witness::new();
    let rows = "1,0,allocate,(nil),0,0\n1,0,free,(nil),0,0\n1,0,free,(nil),0,0x2\n";
    let outcome = run(&program(rows, Limits::default()), &witness, Threads::Free, 2).unwrap();
    assert_eq!((outcome.failures, witness.calls().len()), (0, 0));
}

#[test]
fn a_program_in_a_file_replays_as_one_in_memory() {
    let rows = entangled_rows(3, 200_000);
    let calls = |ops_in_memory| {
        let program = program(&rows, Limits { ops_in_memory, ..Limits::default() });
        assert_eq!(program.is_spooled(), ops_in_memory == 0);
        let witness = Witness::new();
        run(&program, &witness, Threads::One, 1).unwrap();
        witness.calls().iter().map(|call| (call.frees, call.bytes)).collect::<Vec<_>>()
    };
    assert!(calls(0) == calls(usize::MAX));
}

#[test]
fn more_threads_than_the_limit_share() {
    let rows = entangled_rows(MAX_THREADS as u64 + 44, 5000);
    let witness = Witness::new();
    run(&program(&rows, Limits::default()), &witness, Threads::AsLogged, 1).unwrap();
    assert_eq!(witness.calls().iter().filter(|call| !call.frees).count(), {
        logged(&rows).iter().filter(|row| !row.0).count()
    });
}

#[test]
fn issue_9_failed_requests_are_made_at_their_place_and_given_back_at_once() {
    for threads in ORDERS {
        let rows = format!(
            "1,0,allocate,0x100,5,0x10\n2,0,allocate failure,(nil),7,0x10\n1,0,free,0x100,5,0x10\n\
             2,0,allocate failure,(nil),{TOO_LARGE},0x10\n1,0,allocate failure,(nil),7,0x10\n"
        );
        let program = program(&rows, Limits::default());
        let witness = Witness::new();
        assert_eq!(run(&program, &witness, threads, 1).unwrap().asked_again, None);
        assert_eq!(witness.calls().len(), 2, "not asked for unless told to");

        let witness = Witness::new();
        let resource: AnyResource = witness.clone();
        let options = Options::default().threads(threads).ask_again(true);
        let outcome = replay(&program, &resource, &witness.driver, options, &mut ()).unwrap();
        assert_eq!((outcome.failures, outcome.first_failure), (0, None), "the log's own requests only");
        let asked = outcome.asked_again.unwrap();
        assert_eq!((asked.requests, asked.served), (3, 2), "{threads}");
        let [unserved] = asked.unserved.as_slice() else { panic!("{asked:?}") };
        let free = witness.driver.mem_get_info().unwrap().free;
        assert_eq!((unserved.line, unserved.bytes), (5, TOO_LARGE));
        assert_eq!(unserved.missing_bytes, TOO_LARGE - free);
        assert!(unserved.error.contains("out of memory for 1TiB"), "{}", unserved.error);
        let calls: Vec<_> = witness.calls().iter().map(|call| (call.frees, call.bytes)).collect();
        assert_eq!(calls.len(), 6, "{threads}");
        if threads != Threads::Free {
            let all = [(false, 5), (false, 7), (true, 7), (true, 5), (false, 7), (true, 7)];
            assert_eq!(calls, all, "at their places");
        }
    }
}
