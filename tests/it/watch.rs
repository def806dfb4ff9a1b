//! Tests that a process answers what its stacks report, with `MILLPOND_WATCH` set, and has neither thread nor
//! socket without it. Each test has its own process, because the variable and the socket are the process's.
#![cfg(all(unix, not(miri)))]

use std::fs;
use std::io::Read;
use std::ops::Deref;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, process, thread};

use millpond::adaptors::tracking::tag;
use millpond::driver::StreamFlags;
use millpond::driver::sim::{SimConfig, SimDevice};
use millpond::resources::{CudaMemoryResource, PoolLayer, registry};
use millpond::stack::StackSpec;
use millpond::watch::{self, ProgramMemory};
use millpond::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Driver, DriverHandle, LayerMemory,
    MemoryReport, ReportsMemory, StreamRef, Traits, forward_to_upstream,
};
use millpond_testkit::{Rng, own_process};

const MIB: u64 = 1 << 20;

/// The folder of this test's sockets, which is removed at the end.
struct Sockets(PathBuf);

impl Deref for Sockets {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Turns watching on, with sockets in a folder of this test's process.
fn turn_on() -> Sockets {
    let folder = std::env::temp_dir().join(format!("millpond-test-{}", process::id()));
    // SAFETY: this process runs one test, and no thread of it reads the environment now.
    unsafe { std::env::set_var(watch::VARIABLE, &folder) };
    Sockets(folder)
}

fn device() -> Arc<SimDevice> {
    SimDevice::new(SimConfig::with_capacity(256 * MIB))
}

fn build(text: &str, device: &Arc<SimDevice>) -> AnyResource {
    let driver: DriverHandle = device.clone();
    text.parse::<StackSpec>().unwrap().build(&millpond::layers(), &driver).unwrap()
}

fn socket_of(folder: &Path, process: u32) -> PathBuf {
    folder.join(watch::socket_name(process))
}

fn ask(socket: &Path) -> ProgramMemory {
    let mut text = Vec::new();
    UnixStream::connect(socket).unwrap().read_to_end(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn own(folder: &Path) -> ProgramMemory {
    ask(&socket_of(folder, process::id()))
}

fn texts(memory: &ProgramMemory) -> Vec<&str> {
    memory.stacks.iter().map(|of| &*of.report.stack).collect()
}

/// Checks the answer about the only stack against the stack's own report and map.
fn check(answer: &ProgramMemory, stack: &AnyResource) {
    let [of] = &answer.stacks[..] else { panic!("{answer:?}") };
    let mut expected = stack.memory_report();
    expected.device_memory = None;
    let mut report = of.report.clone();
    // Long backtraces are cut.
    let holders = |report: &mut MemoryReport| -> Vec<String> {
        let holders = report.layers.iter_mut().flat_map(|layer| &mut layer.holders);
        holders.filter_map(|holder| holder.backtrace.take()).collect()
    };
    let (whole, cut) = (holders(&mut expected), holders(&mut report));
    assert_eq!(whole.len(), cut.len());
    assert!(whole.iter().zip(&cut).all(|(whole, cut)| whole.starts_with(cut)), "{cut:?}");
    assert_eq!((report, &answer.errors[..]), (expected, &[][..]));
    let map = stack.memory_map().expect("the pool knows its blocks");
    let found = of.fragmentation.as_ref().expect("the pool knows its blocks");
    let live: u64 = map.live_blocks().map(|block| block.bytes).sum();
    assert_eq!((found.segments, found.bytes_reserved), (map.segments.len(), map.bytes_reserved()));
    assert_eq!(found.bytes_free, map.bytes_reserved() - live);
    assert_eq!(of.streams.iter().map(|stream| stream.bytes_in_use).sum::<u64>(), live);
    assert_eq!(of.streams.iter().map(|stream| stream.bytes_free).sum::<u64>(), found.bytes_free);
}

#[test]
fn an_answer_is_what_the_stack_reports() {
    own_process::run(|| {
        let (folder, device) = (turn_on(), device());
        let stack = build("cuda+pool+tracking", &device);
        let mode = fs::metadata(socket_of(&folder, process::id())).unwrap().permissions().mode();
        assert_eq!(
            (mode & 0o777, fs::metadata(&*folder).unwrap().permissions().mode() & 0o777),
            (0o600, 0o700)
        );
        let own_streams = [(); 2].map(|()| device.stream_create(StreamFlags::NON_BLOCKING).unwrap());
        let streams = [StreamRef::LEGACY, own_streams[0], own_streams[1]];
        let mut blocks = Vec::new();
        for (number, stream) in (1..=30).zip(streams.into_iter().cycle()) {
            let _tag = tag(if number < 20 { "layers" } else { "optimizer" });
            blocks.push((stack.allocate_bytes(number * 10_000, stream).unwrap(), number * 10_000, stream));
        }
        for (ptr, bytes, stream) in blocks.drain(5..25) {
            // SAFETY: the block came from the stack with this size, and nothing uses it.
            unsafe { stack.deallocate_bytes(ptr, bytes, stream) };
        }
        let answer = own(&folder);
        check(&answer, &stack);
        let of = &answer.stacks[0];
        assert_eq!((answer.format, answer.process, of.id), (watch::FORMAT, process::id(), 1));
        assert!(answer.program.contains("--nocapture"), "{}", answer.program);
        assert_eq!(of.streams.iter().filter(|stream| stream.bytes_in_use > 0).count(), 3);
        let tags: Vec<_> = of.report.layers[0].holders.iter().filter_map(|it| it.tag.as_deref()).collect();
        assert_eq!(tags, ["optimizer", "layers"]);
        let here = watch::program_memory();
        assert_eq!((here.stacks, here.program), (answer.stacks, answer.program));
        assert!(here.elapsed_us >= answer.elapsed_us);
    });
}

/// Not inlined, so that stacks name it.
#[inline(never)]
fn hold(stack: &AnyResource) {
    for _ in 0..3 {
        stack.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
    }
}

#[test]
fn a_stack_with_a_recording_tells_its_call_sites() {
    own_process::run(|| {
        let (folder, device) = (turn_on(), device());
        let stack = build("cuda+pool+recording:stacks=live", &device);
        hold(&stack);
        let answer = own(&folder);
        check(&answer, &stack);
        let [holder] = &answer.stacks[0].report.layers[0].holders[..] else { panic!("{answer:?}") };
        assert_eq!((holder.blocks, holder.bytes), (3, 3000));
        let backtrace = holder.backtrace.as_ref().unwrap();
        assert!(backtrace.contains("hold"), "{backtrace}");
    });
}

/// Names of this process's threads.
#[cfg(target_os = "linux")]
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // A thread may end while this reads.
    tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
}

/// Waits until the socket's thread sleeps. After an answer it sleeps only while it waits for a reader.
#[cfg(target_os = "linux")]
fn await_waiting_thread() {
    let sleeps = || {
        let mut tasks = fs::read_dir("/proc/self/task").unwrap();
        // The state follows the name, which is in parentheses.
        tasks.any(|task| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.contains("(millpond-watch) S ")
        })
    };
    while !sleeps() {
        thread::yield_now();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn without_the_variable_there_is_neither_thread_nor_file() {
    own_process::run(|| {
        for value in ["", "0"] {
            let folder = turn_on();
            // SAFETY: as in `turn_on`.
            unsafe { std::env::set_var(watch::VARIABLE, value) };
            let before = threads();
            let stack = build("cuda+pool", &device());
            watch::add(&stack);
            assert_eq!(threads(), before);
            assert!(!folder.exists() && watch::program_memory().stacks.is_empty());
        }
        let folder = turn_on();
        let stack = build("cuda+pool", &device());
        check(&own(&folder), &stack);
        // A thread names itself, so it has its name when it answers.
        assert!(threads().contains(&"millpond-watch\n".to_owned()), "{:?}", threads());
    });
}

#[test]
fn stacks_come_and_go_and_a_part_of_a_stack_is_no_stack() {
    own_process::run(|| {
        let (folder, device) = (turn_on(), device());
        let first = build("cuda+pool", &device);
        let in_code = CudaMemoryResource::new(device.clone()).into_any();
        assert_eq!(texts(&own(&folder)), ["cuda+pool"]);
        watch::add(&in_code);
        watch::add(&in_code);
        assert_eq!(texts(&own(&folder)), ["cuda+pool", "cuda"]);
        let upper: StackSpec = "statistics+limiting:limit=1GiB".parse().unwrap();
        let upper = upper.build_on(first.clone(), &millpond::layers()).unwrap();
        assert_eq!(texts(&own(&folder)), ["cuda", "cuda+pool+statistics+limiting:limit=1GiB"]);
        drop(upper);
        assert_eq!(texts(&own(&folder)), ["cuda+pool", "cuda"]);
        drop(first);
        assert_eq!(texts(&own(&folder)), ["cuda"]);
        // A stack in code becomes known as the default of its device.
        let default = CudaMemoryResource::new(device).layer(PoolLayer::new()).unwrap().into_any();
        let before = registry::set_per_device_resource(default.device(), default.clone()).unwrap();
        drop((before, in_code));
        assert_eq!(texts(&own(&folder)), ["cuda+pool"]);
    });
}

/// Four threads allocate and free while the process answers. None waits for another for ever.
#[test]
fn threads_go_on_while_the_process_answers() {
    own_process::run(|| {
        let (folder, device) = (turn_on(), device());
        let stack = build("cuda+pool+tracking+recording:stacks=live", &device);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for seed in 0..4 {
                let (stack, is_over) = (&stack, &is_over);
                scope.spawn(move || {
                    let (mut rng, mut blocks) = (Rng::new(seed), Vec::new());
                    while !is_over.load(Ordering::Relaxed) {
                        if blocks.len() < 40 {
                            let bytes = 1 << rng.below(20);
                            let ptr = stack.allocate_bytes(bytes, StreamRef::LEGACY).unwrap();
                            blocks.push((ptr, bytes));
                        } else {
                            let (ptr, bytes) = blocks.swap_remove(rng.below(40) as usize);
                            // SAFETY: the block came from the stack with this size, and nothing uses it.
                            unsafe { stack.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
                        }
                    }
                });
            }
            for _ in 0..40 {
                assert_eq!(texts(&own(&folder)), [stack.to_string()]);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        check(&own(&folder), &stack);
    });
}

/// Waits for a child, which must have ended without an error.
fn wait_for(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: the child is this process's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
}

#[test]
fn a_forked_child_has_its_own_socket_and_leaves_its_parents() {
    own_process::run(|| {
        let (folder, device) = (turn_on(), device());
        let stack = build("cuda+pool", &device);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // The process is answering at most forks.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    own(&folder);
                }
            });
            for round in 0..20 {
                // SAFETY: the child makes the tested calls, and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: the alarm ends the child if it would wait for ever.
                    unsafe { libc::alarm(20) };
                    let outcome = catch_unwind(AssertUnwindSafe(|| {
                        assert!(watch::program_memory().stacks.is_empty() && stack.memory_map().is_some());
                        if round % 2 == 0 {
                            let fresh = build("cuda+pool+statistics", &SimDevice::new(SimConfig::h200()));
                            check(&own(&folder), &fresh);
                        }
                    }));
                    // SAFETY: the test's main thread is not in this process.
                    unsafe { libc::exit(outcome.is_err().into()) };
                }
                wait_for(child);
                assert!(!socket_of(&folder, child as u32).exists());
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(texts(&own(&folder)), ["cuda+pool"]);
    });
}

/// A process of another container may have this one's number, and put its socket in the place of this one's.
#[test]
fn a_process_that_ends_leaves_the_socket_of_another() {
    own_process::run(|| {
        let folder = turn_on();
        // SAFETY: the child makes the tested calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let _stack = build("cuda+pool", &device());
            let own = socket_of(&folder, process::id());
            fs::remove_file(&own).unwrap();
            let _other = UnixListener::bind(own).unwrap();
            // SAFETY: the test's main thread is not in this process.
            unsafe { libc::exit(0) };
        }
        wait_for(child);
        assert!(socket_of(&folder, child as u32).exists());
    });
}

/// The descriptors of this process's sockets.
#[cfg(target_os = "linux")]
fn sockets() -> Vec<libc::c_int> {
    let all = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let open =
        all.filter(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")));
    open.map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap()).collect()
}

/// A program that closes what it did not open may get the socket's number for a file of its own.
#[test]
#[cfg(target_os = "linux")]
fn a_file_with_the_number_of_the_closed_socket_stays_open() {
    own_process::run(|| {
        let folder = turn_on();
        let before = sockets();
        let stack = build("cuda+pool", &device());
        let opened: Vec<_> = sockets().into_iter().filter(|number| !before.contains(number)).collect();
        let [number] = opened[..] else { panic!("{opened:?}") };
        let path = folder.join("other.sock");
        let other = UnixListener::bind(&path).unwrap();
        check(&own(&folder), &stack);
        await_waiting_thread();
        // SAFETY: `number` becomes another name of `other`, and nothing else uses it.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        // SAFETY: the child makes the tested call, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the calls have no other effect.
            unsafe { libc::_exit((libc::fcntl(number, libc::F_GETFD) == -1).into()) };
        }
        wait_for(child);
        // The thread still waits on the closed socket, until a reader comes. It leaves the other one alone.
        check(&own(&folder), &stack);
        while threads().contains(&"millpond-watch\n".to_owned()) {
            thread::yield_now();
        }
        let reader = UnixStream::connect(&path).unwrap();
        let (accepted, _) = other.accept().unwrap();
        drop((reader, accepted));
        // SAFETY: the call has no other effect.
        assert_ne!(unsafe { libc::fcntl(number, libc::F_GETFD) }, -1);
    });
}

/// The socket of a process that was killed refuses connections, although a forked child lives on. A process
/// with the same number takes the socket's place.
#[test]
fn a_killed_process_leaves_a_socket_that_is_told_apart() {
    own_process::run(|| {
        let folder = turn_on();
        let (mut ready, tell) = UnixStream::pair().unwrap();
        // SAFETY: the child makes the tested calls, and is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let _stack = build("cuda+pool", &device());
            // SAFETY: as above.
            let grandchild = unsafe { libc::fork() };
            let _ = std::io::Write::write_all(&mut &tell, &grandchild.to_ne_bytes());
            // SAFETY: the alarm ends the process if the test fails.
            unsafe { libc::alarm(20) };
            loop {
                thread::park();
            }
        }
        let mut both = [[0; 4]; 2];
        both.iter_mut().for_each(|number| ready.read_exact(number).unwrap());
        let grandchild = both.map(i32::from_ne_bytes).into_iter().find(|number| *number != 0).unwrap();
        let socket = socket_of(&folder, child as u32);
        assert_eq!(ask(&socket).process, child as u32);
        // SAFETY: the processes are this one's descendants.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(UnixStream::connect(&socket).is_err() && socket.exists());
        // SAFETY: as above.
        unsafe { libc::kill(grandchild, libc::SIGKILL) };

        drop(UnixListener::bind(socket_of(&folder, process::id())).unwrap());
        let stack = build("cuda+pool", &device());
        check(&own(&folder), &stack);
    });
}

/// Readers that go away at once neither end the program nor stop its answers.
#[test]
fn a_reader_that_goes_away_does_no_harm() {
    own_process::run(|| {
        let folder = turn_on();
        let stack = build("cuda+pool", &device());
        // SAFETY: this process runs one test, which has no handler of signals.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        for _ in 0..100 {
            drop(UnixStream::connect(socket_of(&folder, process::id())).unwrap());
        }
        check(&own(&folder), &stack);
    });
}

/// What happens to the socket's name in a folder: it appears once, and its permissions never change there.
#[cfg(target_os = "linux")]
fn events_of(name: &str, folder: &Path, happens: impl FnOnce()) -> Vec<u32> {
    let path = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
    let all = libc::IN_CREATE | libc::IN_ATTRIB | libc::IN_MOVED_TO;
    // SAFETY: the path ends with a zero.
    let queue = unsafe {
        let queue = libc::inotify_init1(libc::IN_NONBLOCK);
        assert!(queue >= 0 && libc::inotify_add_watch(queue, path.as_ptr(), all) >= 0);
        <fs::File as std::os::fd::FromRawFd>::from_raw_fd(queue)
    };
    happens();
    let (mut bytes, mut events) = (vec![0; 1 << 16], Vec::new());
    let count = (&queue).read(&mut bytes).unwrap();
    let mut rest = &bytes[..count];
    while !rest.is_empty() {
        let number = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
        let (mask, end) = (number(4), 16 + number(12) as usize);
        if rest[16..end].split(|byte| *byte == 0).next() == Some(name.as_bytes()) {
            events.push(mask);
        }
        rest = &rest[end..];
    }
    events
}

/// In a folder that other users can enter, the socket is closed to them from its first moment, even if the
/// program's new files are open to all.
#[test]
#[cfg(target_os = "linux")]
fn no_other_user_can_connect_even_for_a_moment() {
    own_process::run(|| {
        let folder = turn_on();
        fs::create_dir(&*folder).unwrap();
        fs::set_permissions(&*folder, fs::Permissions::from_mode(0o777)).unwrap();
        // SAFETY: this process runs one test.
        unsafe { libc::umask(0) };
        let (device, name) = (device(), watch::socket_name(process::id()));
        drop(UnixListener::bind(folder.join(&name)).unwrap()); // of an ended process
        let mut stack = None;
        let events = events_of(&name, &folder, || stack = Some(build("cuda+pool", &device)));
        assert_eq!(events, [libc::IN_MOVED_TO]);
        check(&own(&folder), stack.as_ref().unwrap());
        let names: Vec<_> = fs::read_dir(&*folder).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, [&*name]);
        let mode = fs::metadata(folder.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

/// A reader that sends bytes and never reads is left after a while, and the next one gets its answer. The
/// answer is larger than the system's buffer of a socket.
#[test]
fn a_reader_that_never_reads_keeps_no_other_waiting_for_ever() {
    own_process::run(|| {
        let folder = turn_on();
        let stack = build("cuda+pool+tracking", &device());
        let _tag = tag("x".repeat(4 << 20));
        stack.allocate_bytes(1000, StreamRef::LEGACY).unwrap();
        let mut never = UnixStream::connect(socket_of(&folder, process::id())).unwrap();
        never.set_nonblocking(true).unwrap();
        // The program reads nothing, so the system's buffer is full in the end.
        while std::io::Write::write(&mut never, &[b'x'; 4096]).is_ok() {}
        check(&own(&folder), &stack);
    });
}

/// A layer of the program whose report panics, and perhaps also the question for the layer below.
struct Panics(AnyResource, bool);

impl fmt::Display for Panics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+panics", self.0)
    }
}

millpond::debug_as_text!(Panics);

// SAFETY: all calls go to the upstream with the same arguments.
unsafe impl DeviceMemoryResource for Panics {
    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn ReportsMemory>(|it| it);
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        assert!(!self.1, "on purpose");
        Some(&*self.0)
    }

    forward_to_upstream!(self.0, except provide, upstream);
}

impl ReportsMemory for Panics {
    fn layer_memory(&self) -> LayerMemory {
        panic!("on purpose")
    }
}

#[test]
fn a_layer_that_panics_hides_no_other_stack() {
    own_process::run(|| {
        let (folder, device) = (turn_on(), device());
        let stack = build("cuda+pool", &device);
        for panics_below in [false, true] {
            let panics: AnyResource = Arc::new(Panics(build("cuda", &device), panics_below));
            watch::add(&panics);
            let answer = own(&folder);
            assert_eq!(texts(&answer)[0], "cuda+pool");
            assert!(matches!(&*answer.errors, [error] if error.ends_with("panicked")), "{:?}", answer.errors);
            drop(panics);
            check(&own(&folder), &stack);
        }
    });
}
