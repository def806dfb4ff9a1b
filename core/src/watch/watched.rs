//! The watched stacks of the process.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::memory::{FORMAT, ProgramMemory, StackMemory};
use super::server::Socket;
use super::variable::VARIABLE;
use super::{forks, server};
use crate::find::stack_of;
use crate::{AnyResource, DeviceMemoryResource};

/// The most stacks in a document.
const MOST_STACKS: usize = 64;
/// The most characters of the command line in a document.
const MOST_WORDS: usize = 200;

/// The watched stacks of one process.
#[derive(Debug)]
pub(super) struct Watched {
    process: u32,
    begin: Instant,
    stacks: Mutex<Stacks>,
    is_started: AtomicBool,
    /// The socket, once it is open.
    socket: OnceLock<Socket>,
}

#[derive(Debug, Default)]
struct Stacks {
    last: u64,
    all: Vec<(u64, Weak<dyn DeviceMemoryResource + Send + Sync>)>,
}

/// The watched stacks of this process or, after a fork, of its parent.
static WATCHED: AtomicPtr<Watched> = AtomicPtr::new(null_mut());

/// Returns the watched stacks of this process, if there are any.
fn known() -> Option<&'static Watched> {
    // SAFETY: the pointer is null, or comes from `Box::leak`.
    let watched = unsafe { WATCHED.load(Ordering::Acquire).as_ref() };
    watched.filter(|watched| watched.process == process::id())
}

/// Returns the watched stacks of this process. A forked child leaves its parent's as they are, because a
/// thread of the parent may have held their lock.
fn here() -> &'static Watched {
    loop {
        let before = WATCHED.load(Ordering::Acquire);
        if let Some(watched) = known() {
            return watched;
        }
        let fresh = Box::into_raw(Box::new(Watched {
            process: process::id(),
            begin: Instant::now(),
            stacks: Mutex::default(),
            is_started: AtomicBool::new(false),
            socket: OnceLock::new(),
        }));
        if WATCHED.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: the pointer is from above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Watches a stack. The first call of a process opens the socket.
pub(super) fn add(stack: &AnyResource, value: OsString) {
    let watched = here();
    {
        let mut stacks = watched.stacks.lock();
        stacks.all.retain(|(_, known)| known.strong_count() > 0);
        if stacks.all.iter().any(|(_, known)| ptr::addr_eq(known.as_ptr(), Arc::as_ptr(stack))) {
            return;
        }
        stacks.last += 1;
        let id = stacks.last;
        stacks.all.push((id, Arc::downgrade(stack)));
    }
    if watched.is_started.swap(true, Ordering::Relaxed) {
        return;
    }
    match server::start(&value, || watched.memory()) {
        Ok(socket) => {
            let _ = watched.socket.set(socket);
            remove_at_exit();
        }
        // An error, because the C library prints no warnings.
        Err(why) => {
            tracing::error!(
                target: "millpond::watch",
                "{VARIABLE} is set, but `millpond-replay top` cannot watch this process: {why}"
            );
        }
    }
}

/// Removes the socket at the end of the process.
fn remove_at_exit() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

    extern "C" fn at_exit() {
        // A forked child leaves its parent's socket.
        // If its socket is closed, the system may have given its number to another process's.
        if let Some(socket) = known().and_then(|watched| watched.socket.get()).filter(|_| forks::has_socket())
        {
            socket.remove();
        }
    }

    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler does not unwind, and uses only statics, which are never dropped.
        unsafe { libc::atexit(at_exit) };
    }
}

/// Returns the memory of this process's watched stacks now. A process that watches this process receives the
/// same value. Without `MILLPOND_WATCH`, the result contains no stacks.
pub fn program_memory() -> ProgramMemory {
    let (process, program) = (process::id(), words());
    match known() {
        Some(watched) => watched.memory(),
        None => ProgramMemory { format: FORMAT, process, program, ..ProgramMemory::default() },
    }
}

impl Watched {
    fn memory(&self) -> ProgramMemory {
        let listed = self.stacks.lock().all.clone();
        let live = listed.iter().filter_map(|(id, stack)| Some((*id, stack.upgrade()?)));
        let live: Vec<(u64, AnyResource)> = live.collect();
        // The layers may be the program's own, and may panic in any call and in their drop.
        let below: Vec<*const ()> = live
            .iter()
            .flat_map(|(_, stack)| catch_unwind(AssertUnwindSafe(|| below(stack))).unwrap_or_default())
            .collect();
        let (inner, mut outer): (Vec<_>, Vec<_>) =
            live.into_iter().partition(|(_, stack)| below.contains(&Arc::as_ptr(stack).cast()));
        let rest = outer.split_off(outer.len().min(MOST_STACKS));
        let mut memory = ProgramMemory {
            format: FORMAT,
            process: self.process,
            program: words(),
            stacks_left_out: rest.len(),
            ..ProgramMemory::default()
        };
        for (_, stack) in inner.into_iter().chain(rest) {
            let _ = catch_unwind(AssertUnwindSafe(move || drop(stack)));
        }
        for (id, stack) in outer {
            // The stack is dropped inside, too. If a layer waits for a
            // lock that a forking thread holds, that fork waits for `PATIENCE`.
            let report = move || StackMemory::of(id, &stack);
            match catch_unwind(AssertUnwindSafe(|| forks::between(report))) {
                Ok(of) => memory.stacks.push(of),
                Err(_) => memory.errors.push(format!("a layer of stack {id} panicked")),
            }
        }
        memory.elapsed_us = self.begin.elapsed().as_micros() as u64;
        memory
    }
}

/// The addresses of the resources below a stack.
fn below(stack: &AnyResource) -> Vec<*const ()> {
    stack_of(stack).skip(1).map(|layer| ptr::from_ref(layer).cast()).collect()
}

/// The command line, cut.
fn words() -> String {
    let words: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    words.join(" ").chars().take(MOST_WORDS).collect()
}
