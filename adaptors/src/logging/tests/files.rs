//! Tests several logs of one file, in this process and in others.

use super::*;

const EACH: [Flush; 3] = [Flush::EveryRow, Flush::Buffered, Flush::Async];

fn sizes(file: &Path) -> Vec<u64> {
    rows(&std::fs::read_to_string(file).unwrap()).iter().map(|row| row.size).collect()
}

fn log(file: &Path, flush: Flush) -> LoggingResourceAdaptor<MockResource> {
    LoggingLayer::new().file(file).flush(flush).columns(Columns::Extended).layer(mock().0).unwrap()
}

fn allocate(resource: &impl DeviceMemoryResource, sizes: std::ops::RangeInclusive<u64>) {
    for bytes in sizes {
        resource.allocate_bytes(bytes, S).unwrap();
    }
}

#[test]
fn issue_9_two_stacks_on_one_file_lose_no_row_and_count_what_is_there() {
    for flush in EACH {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("log.csv");
        std::fs::write(&file, "old\n".repeat(1000)).unwrap();
        let one = log(&file, flush);
        allocate(&one, 1..=3);
        let other = log(&file, flush);
        allocate(&other, 4..=5);
        one.allocate_bytes(6, S).unwrap();
        other.flush().unwrap();
        assert_eq!(sizes(&file), [1, 2, 3, 4, 5, 6], "{flush:?}");
        assert_eq!((one.rows_written(), other.rows_written()), (6, 6));
        let rows = rows(&std::fs::read_to_string(&file).unwrap());
        let devices = [one.driver().device(), other.driver().device()].map(Some);
        assert_eq!(
            rows.iter().map(|row| row.sequence).collect::<Vec<_>>(),
            (0..6).map(Some).collect::<Vec<_>>()
        );
        let expected = [0, 0, 0, 1, 1, 0].map(|number: usize| devices[number]);
        assert_eq!(rows.iter().map(|row| row.device).collect::<Vec<_>>(), expected);
        drop(one);
        other.allocate_bytes(7, S).unwrap();
        drop(other);
        assert_eq!(sizes(&file), [1, 2, 3, 4, 5, 6, 7], "{flush:?}");
    }
}

#[cfg(unix)]
#[test]
fn issue_9_a_file_is_the_same_under_another_name() {
    let directory = tempfile::tempdir().unwrap();
    let [file, symbolic, hard] = ["log.csv", "symbolic", "hard"].map(|name| directory.path().join(name));
    let one = LoggingResourceAdaptor::to_file(mock().0, &file).unwrap();
    one.allocate_bytes(1, S).unwrap();
    std::os::unix::fs::symlink(&file, &symbolic).unwrap();
    std::fs::hard_link(&file, &hard).unwrap();
    for (bytes, name) in [(2, &symbolic), (3, &hard)] {
        let other = LoggingResourceAdaptor::to_file(mock().0, name).unwrap();
        other.allocate_bytes(bytes, S).unwrap();
    }
    assert_eq!(sizes(&file), [1, 2, 3]);
}

#[test]
fn a_file_begins_anew_when_no_adaptor_writes_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log.csv");
    for flush in EACH {
        log(&file, flush).allocate_bytes(1, S).unwrap();
        assert_eq!(sizes(&file), [1]);
    }
}

/// The last adaptor's rows are written before another one truncates the file.
#[test]
fn issue_9_a_log_that_is_being_closed_is_waited_for() {
    const MANY: u64 = 10_000;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log.csv");
    for flush in EACH {
        for _ in 0..20 {
            let one = log(&file, flush);
            allocate(&one, 1..=MANY);
            let (begins, begun) = std::sync::mpsc::channel();
            let closing = std::thread::spawn(move || {
                begins.send(()).unwrap();
                drop(one);
            });
            begun.recv().unwrap();
            log(&file, flush).allocate_bytes(MANY + 1, S).unwrap();
            closing.join().unwrap();
            let sizes = sizes(&file);
            let others = sizes.len() - 1;
            assert!(others == 0 || others as u64 == MANY, "{others} rows of the first log are left");
            assert_eq!(sizes[others], MANY + 1);
        }
    }
}

#[test]
fn one_file_has_one_kind_of_rows() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log.csv");
    let one = log(&file, Flush::EveryRow);
    one.allocate_bytes(1, S).unwrap();
    let other =
        |columns, flush| LoggingLayer::new().file(&file).columns(columns).flush(flush).layer(mock().0);
    for layer in [(Columns::Rmm, Flush::EveryRow), (Columns::Extended, Flush::Async)] {
        let error = other(layer.0, layer.1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("columns=extended and flush=row"), "{error}");
    }
    other(Columns::Extended, Flush::EveryRow).unwrap().allocate_bytes(2, S).unwrap();
    assert_eq!(sizes(&file), [1, 2]);
}

/// A lock belongs to an opened file, so this test can hold it as another process would.
#[cfg(unix)]
#[test]
fn issue_9_a_file_that_another_process_writes_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log.csv");
    std::fs::write(&file, "theirs\n").unwrap();
    let theirs = std::fs::File::open(&file).unwrap();
    rustix::fs::flock(&theirs, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = LoggingResourceAdaptor::to_file(mock().0, &file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("another process") && error.to_string().contains("another file"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "theirs\n");
    drop(theirs);
    let mine = LoggingResourceAdaptor::to_file(mock().0, &file).unwrap();
    mine.allocate_bytes(1, S).unwrap();
    assert_eq!(sizes(&file), [1]);
    let theirs = std::fs::File::open(&file).unwrap();
    let taken = rustix::fs::flock(&theirs, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert_eq!(taken, Err(rustix::io::Errno::WOULDBLOCK), "others can see that the file is written");
}

/// A child process has copies of its parent's handles, and so of the lock, until it runs its program.
#[cfg(target_os = "linux")]
#[test]
fn a_log_that_was_closed_is_free_though_a_child_has_a_copy_of_its_handle() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log.csv");
    for flush in EACH {
        let one = log(&file, flush);
        let handles = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let mut copies = handles.filter(|handle| std::fs::read_link(handle).is_ok_and(|path| path == file));
        let handle: i32 = copies.next().unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap();
        // SAFETY: the handle is open, and its copy is closed below.
        let copy = unsafe { libc::dup(handle) };
        drop(one);
        log(&file, flush).allocate_bytes(1, S).unwrap();
        // SAFETY: the copy has no other owner.
        unsafe { libc::close(copy) };
        assert_eq!(sizes(&file), [1], "{flush:?}");
    }
}

#[test]
fn issue_9_one_stack_does_not_log_twice_to_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log.csv");
    let below = LoggingResourceAdaptor::to_file(mock().0, &file).unwrap();
    let error =
        LoggingResourceAdaptor::to_file(below, directory.path().join(".").join("log.csv")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("choose another file"), "{error}");
    let below = LoggingResourceAdaptor::to_file(mock().0, &file).unwrap();
    let both = LoggingResourceAdaptor::to_file(below, directory.path().join("above.csv")).unwrap();
    both.allocate_bytes(1, S).unwrap();
    assert_eq!(sizes(&file), [1]);
    if Path::new("/dev/null").exists() {
        let below = LoggingResourceAdaptor::to_file(mock().0, "/dev/null").unwrap();
        assert!(LoggingResourceAdaptor::to_file(below, "/dev/null").is_ok());
    }
}

#[cfg(target_os = "linux")]
const CHILD_WITHOUT_ROOM: &str = "logging::tests::files::child_without_room";

/// Not a test: the code that the test below runs in another process, whose files cannot grow.
#[cfg(target_os = "linux")]
#[test]
fn child_without_room() {
    let Some(file) = std::env::var_os("MILLPOND_TEST_CHILD_WITHOUT_ROOM").map(PathBuf::from) else { return };
    let mut usual = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives through the call, and no handler is installed. The alarm ends the process
    // if it would wait for ever.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut usual), 0);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::alarm(60);
    }
    let limit_file_size = |limit: libc::rlim_t| {
        let limit = libc::rlimit { rlim_cur: limit, ..usual };
        // SAFETY: the structure lives through the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    };
    for flush in EACH {
        let layer = || LoggingLayer::new().file(&file).flush(flush).columns(Columns::Extended);
        limit_file_size(0);
        let error = layer().layer(mock().0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        limit_file_size(usual.rlim_cur);
        layer().layer(mock().0).unwrap().allocate_bytes(1, S).unwrap();
        assert_eq!(sizes(&file), [1], "{flush:?}");
    }
}

/// The file is free again afterwards: neither the call nor the next one waits for ever.
#[cfg(target_os = "linux")]
#[test]
fn a_header_that_cannot_be_written_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD_WITHOUT_ROOM])
        .env("MILLPOND_TEST_CHILD_WITHOUT_ROOM", directory.path().join("log.csv"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
