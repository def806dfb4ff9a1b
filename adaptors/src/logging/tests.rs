//! Tests the log: rows, columns, errors, and the order of rows.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, ErrorKind, Layer,
    Layout, MemoryInfo, ResourceStatistics, Result, StreamRef, find_trait,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_testkit::Rng;
use millpond_testkit::mock::{self, Call, MockResource};

use super::layer::file_name_from;
use super::{
    Action, Columns, EXTENDED_HEADER, Flush, HEADER, LoggingLayer, LoggingResourceAdaptor, Row, TimeOfDay,
};
use crate::probe::Probe;

mod ends;
mod files;
mod inside;
mod queued;
mod reports;

const S: StreamRef = StreamRef::LEGACY;

fn mock() -> (MockResource, mock::Handle) {
    mock::resource(SimDevice::new(SimConfig::h200()))
}

fn free(resource: &impl DeviceMemoryResource, ptr: DevicePtr, bytes: u64) {
    // SAFETY: the tests free each block once, with its size; no work uses it.
    unsafe { resource.deallocate_bytes(ptr, bytes, S) }
}

/// A writer whose bytes the test can read. It fails while it is `broken`.
#[derive(Clone, Default)]
struct Shared {
    bytes: Arc<Mutex<Vec<u8>>>,
    broken: Arc<AtomicBool>,
    /// The bytes that a broken writer takes before it fails.
    torn_after: usize,
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.bytes.lock().unwrap().clone()).unwrap()
    }

    fn rows(&self) -> Vec<Row> {
        rows(&self.text())
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.bytes.lock().unwrap();
        if !self.broken.load(Ordering::SeqCst) {
            all.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        if self.torn_after == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let taken = std::mem::take(&mut self.torn_after).min(bytes.len());
        all.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn rows(text: &str) -> Vec<Row> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().collect::<Result<_, _>>().unwrap()
}

#[test]
fn rows_are_as_rmm_writes_them() {
    let (log, (upstream, handle)) = (Shared::default(), mock());
    let resource = LoggingResourceAdaptor::to_writer(upstream, log.clone()).unwrap();
    let stream = StreamRef::from_raw_parts(0x55e8_c0a1_b2d0, 7);
    handle.answer_next(DevicePtr::new(0x7f3c_2000_0000));
    handle.fail_next(ErrorKind::OutOfMemory);
    let ptr = resource.allocate_bytes(1000, S).unwrap();
    assert!(resource.allocate_bytes(1 << 40, stream).unwrap_err().is_out_of_memory());
    assert!(resource.allocate_bytes(0, StreamRef::PER_THREAD).unwrap().is_null());
    free(&resource, ptr, 1000);

    let text = log.text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Thread,Time,Action,Pointer,Size,Stream"));
    let expected = [
        "allocate,0x7f3c20000000,1000,0",
        "allocate failure,(nil),1099511627776,0x55e8c0a1b2d0",
        "allocate,(nil),0,0x2",
        "free,0x7f3c20000000,1000,0",
    ];
    for (line, expected) in lines.by_ref().zip(expected) {
        let cells: Vec<&str> = line.splitn(3, ',').collect();
        assert_eq!(cells[0], super::thread::id().to_string());
        assert_eq!(cells[1].parse::<TimeOfDay>().unwrap().to_string(), cells[1]);
        assert_eq!(cells[2], expected);
    }
    assert_eq!(lines.next(), None);
    assert_eq!(text.matches('\n').count(), 5, "every line ends");
    assert_eq!((resource.rows_written(), resource.write_errors()), (4, 0));
}

#[test]
fn the_time_is_the_local_wall_clock() {
    let now = || jiff::Zoned::now().strftime("%H:%M:%S.%6f").to_string();
    let log = Shared::default();
    let resource = LoggingResourceAdaptor::to_writer(mock().0, log.clone()).unwrap();
    let before = now();
    resource.allocate_bytes(1, S).unwrap();
    let (row, after) = (log.rows()[0].time.to_string(), now());
    let inside = before <= row && row <= after;
    let over_midnight = after < before && (before <= row || row <= after);
    assert!(inside || over_midnight, "{before} <= {row} <= {after}");
}

#[test]
fn further_columns_follow_rmms() {
    let (log, (upstream, handle)) = (Shared::default(), mock());
    let device = upstream.driver().device();
    let layer = LoggingLayer::new().writer(log.clone()).columns(Columns::Extended);
    let resource = layer.layer(upstream).unwrap();
    handle.fail_next(ErrorKind::OutOfMemory);
    resource.allocate_bytes(5, S).unwrap_err();
    let layout = Layout::with_alignment(100, 4096).unwrap();
    let ptr = resource.allocate(layout, S).unwrap();
    // SAFETY: the block is live, unused, and freed with its layout.
    unsafe { resource.deallocate(ptr, layout, S) };

    assert_eq!(log.text().lines().next().unwrap(), EXTENDED_HEADER.join(","));
    assert_eq!(EXTENDED_HEADER[..6], HEADER);
    let rows = log.rows();
    assert!(rows.iter().all(|row| row.device == Some(device)));
    assert_eq!(rows.iter().map(|row| row.alignment).collect::<Vec<_>>(), [Some(256), Some(4096), Some(4096)]);
    assert_eq!(rows.iter().map(|row| row.sequence).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    assert!(rows.is_sorted_by_key(|row| row.monotonic_ns.unwrap()));
    let timed: Vec<bool> = rows.iter().map(|row| row.duration_ns.is_some()).collect();
    assert_eq!(timed, [true, true, false], "a free is logged before it happens");
}

#[test]
fn a_free_is_logged_before_the_upstream_and_an_allocation_after() {
    let log = Shared::default();
    let (seen, spy) = (Arc::new(Mutex::new(Vec::new())), log.clone());
    let journal = Arc::clone(&seen);
    let before = move |call: &str| journal.lock().unwrap().push((call.to_owned(), spy.rows().len()));
    let upstream = Probe { upstream: mock().0, before };
    let resource = LoggingResourceAdaptor::to_writer(upstream, log.clone()).unwrap();
    let ptr = resource.allocate_bytes(100, S).unwrap();
    free(&resource, ptr, 100);
    assert_eq!(*seen.lock().unwrap(), [("allocate".to_owned(), 0), ("deallocate".to_owned(), 2)]);
}

#[test]
fn rows_of_many_threads_are_whole_numbered_and_ordered() {
    for flush in [Flush::EveryRow, Flush::Buffered, Flush::Async] {
        rows_of_many_threads(flush);
    }
}

fn rows_of_many_threads(flush: Flush) {
    const THREADS: usize = 8;
    const ROUNDS: usize = 2000;
    let log = Shared::default();
    let layer = LoggingLayer::new().writer(log.clone()).columns(Columns::Extended).flush(flush);
    let resource = layer.layer(mock().0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let resource = &resource;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let bytes = (thread * ROUNDS + round + 1) as u64;
                    let ptr = resource.allocate_bytes(bytes, S).unwrap();
                    free(resource, ptr, bytes);
                }
            });
        }
    });
    resource.flush().unwrap();
    let rows = log.rows();
    assert_eq!(rows.len(), THREADS * ROUNDS * 2);
    assert!(rows.iter().enumerate().all(|(index, row)| row.sequence == Some(index as u64)));
    assert!(rows.is_sorted_by_key(|row| row.monotonic_ns.unwrap()));
    let mut live = std::collections::HashMap::new();
    for row in &rows {
        match row.action {
            Action::Allocate => assert_eq!(live.insert(row.pointer, (row.thread, row.size)), None),
            _ => assert_eq!(live.remove(&row.pointer), Some((row.thread, row.size))),
        }
    }
    let threads: std::collections::HashSet<u64> = rows.iter().map(|row| row.thread).collect();
    assert_eq!((threads.len(), live.len()), (THREADS, 0));
}

#[test]
fn flush_and_drop_lose_nothing() {
    for (rows, flush) in [0, 1, 3, 5000, 100_000]
        .into_iter()
        .flat_map(|rows| [Flush::Buffered, Flush::Async].map(|flush| (rows, flush)))
    {
        let log = Shared::default();
        let layer = LoggingLayer::new().writer(log.clone()).flush(flush);
        let resource = layer.layer(mock().0).unwrap();
        for _ in 0..rows {
            resource.allocate_bytes(1, S).unwrap();
        }
        let early = log.rows().len();
        // A thread of the log writes at any time.
        let late = early < rows || rows == 0 || flush == Flush::Async;
        assert!(late, "{early} of {rows} rows were written before they had to be");
        resource.flush().unwrap();
        assert_eq!((log.rows().len(), resource.rows_written()), (rows, rows as u64));
        resource.allocate_bytes(1, S).unwrap();
        drop(resource);
        assert_eq!(log.rows().len(), rows + 1);
    }
}

#[test]
fn a_write_that_fails_is_counted_and_fails_no_allocation() {
    let log = Shared { torn_after: 10, ..Default::default() };
    let resource = LoggingResourceAdaptor::to_writer(mock().0, log.clone()).unwrap();
    resource.allocate_bytes(1, S).unwrap();
    log.broken.store(true, Ordering::SeqCst);
    let torn = resource.allocate_bytes(2, S).unwrap();
    free(&resource, torn, 2);
    assert_eq!((resource.rows_written(), resource.write_errors()), (1, 2));
    log.broken.store(false, Ordering::SeqCst);
    resource.allocate_bytes(3, S).unwrap();
    resource.flush().unwrap();
    assert_eq!((resource.rows_written(), resource.write_errors()), (2, 2));

    let text = log.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[2].len(), 10, "the torn row stays alone on its line: {text}");
    assert_eq!(rows(&[lines[0], lines[1], lines[3]].join("\n")).len(), 2);
}

#[test]
fn a_failing_flush_is_an_error() {
    let log = Shared::default();
    let resource = LoggingLayer::new().writer(log.clone()).flush(Flush::Buffered).layer(mock().0).unwrap();
    resource.allocate_bytes(1, S).unwrap();
    log.broken.store(true, Ordering::SeqCst);
    let error = resource.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert_eq!((resource.rows_written(), resource.write_errors()), (0, 1));
}

/// `deallocate` never panics, so a log must not.
#[test]
fn a_writer_that_panics_is_one_that_fails() {
    struct Panics(Shared);

    impl Write for Panics {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            assert!(!self.0.broken.load(Ordering::SeqCst), "on purpose");
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    for flush in [Flush::EveryRow, Flush::Buffered, Flush::Async] {
        let log = Shared::default();
        let layer = LoggingLayer::new().writer(Panics(log.clone())).flush(flush);
        let resource = layer.layer(mock().0).unwrap();
        log.broken.store(true, Ordering::SeqCst);
        let ptr = resource.allocate_bytes(1, S).unwrap();
        let flushed = resource.flush();
        assert_eq!(flushed.is_err(), flush != Flush::EveryRow, "a row's own failure is only counted");
        log.broken.store(false, Ordering::SeqCst);
        free(&resource, ptr, 1);
        resource.flush().unwrap();
        assert_eq!((log.rows().len(), resource.rows_written(), resource.write_errors()), (1, 1, 1));
    }
}

#[test]
fn a_log_that_cannot_be_written_names_its_file() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    let below_a_file = directory.path().join("file").join("log.csv");
    let mut files = vec![below_a_file, directory.path().to_owned()];
    if Path::new("/dev/full").exists() {
        files.push(PathBuf::from("/dev/full"));
    }
    for file in files {
        let error = LoggingResourceAdaptor::to_file(mock().0, &file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains(&*file.to_string_lossy()), "{error}");
    }
    let broken = Shared::default();
    broken.broken.store(true, Ordering::SeqCst);
    assert_eq!(LoggingResourceAdaptor::to_writer(mock().0, broken).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn millponds_variable_wins_over_rmms_and_none_is_an_error() {
    let name = |variables: &[(&str, &str)]| {
        file_name_from(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    };
    let (mine, rmms) = (("MILLPOND_LOG_FILE", "mine.csv"), ("RMM_LOG_FILE", "rmms.csv"));
    assert_eq!(name(&[rmms, mine]).unwrap(), PathBuf::from("mine.csv"));
    assert_eq!(name(&[rmms]).unwrap(), PathBuf::from("rmms.csv"));
    assert_eq!(name(&[("MILLPOND_LOG_FILE", ""), rmms]).unwrap(), PathBuf::from("rmms.csv"));
    let error = name(&[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("logging:file=") && error.to_string().contains("MILLPOND_LOG_FILE"));
}

#[test]
fn rows_read_back_as_written() {
    let (mut cells, mut last) = (csv::ByteRecord::new(), None);
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        // Of every length.
        let mut some = |bound| rng.percent(70).then(|| (rng.next_u64() >> rng.below(64)) % bound);
        let extended = some(2).is_some();
        let row = Row {
            thread: some(u64::MAX).unwrap_or(1),
            time: TimeOfDay { micros: some(86_400_000_000).unwrap_or_default() },
            action: [Action::Allocate, Action::AllocateFailure, Action::Free][some(3).unwrap_or(2) as usize],
            pointer: some(u64::MAX).map_or(DevicePtr::NULL, DevicePtr::new),
            size: some(u64::MAX).unwrap_or(0),
            stream: some(u64::MAX).unwrap_or(seed % 3),
            device: extended.then(|| if seed % 2 == 0 { DeviceId::sim(3) } else { DeviceId::cuda(1) }),
            alignment: some(1 << 20).filter(|_| extended),
            sequence: some(u64::MAX).filter(|_| extended),
            monotonic_ns: some(u64::MAX).filter(|_| extended),
            duration_ns: some(u64::MAX).filter(|_| extended),
        };
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.serialize(&row).unwrap();
        let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
        row.fill(&mut cells, last);
        assert_eq!(cells, text.lines().nth(1).unwrap().split(',').collect::<Vec<_>>(), "seed {seed}");
        last = Some((row.thread, row.time));
        assert_eq!(rows(&text), [row], "seed {seed}: {text}");
    }
}

#[test]
fn rows_of_other_writers_are_read_and_bad_cells_are_not() {
    let read = |row: &str| {
        let text = format!("{}\n{row}\n", HEADER.join(","));
        csv::Reader::from_reader(text.as_bytes()).deserialize::<Row>().next().unwrap()
    };
    let row = read("1,00:00:00:016201,allocate,0x7f3641e00000,4096,12").unwrap();
    assert_eq!((row.time.micros, row.stream), (16_201, 12));
    for bad in [
        "x,00:00:00.000000,allocate,0x1,1,0",
        "1,24:00:00.000000,allocate,0x1,1,0",
        "1,00:00:00,allocate,0x1,1,0",
        "1,00:00:00.000000,realloc,0x1,1,0",
        "1,00:00:00.000000,allocate,1234,1,0",
        "1,00:00:00.000000,allocate,0x+1,1,0",
        "1,00:00:00.000000,allocate,0x1,-1,0",
        "1,00:00:00.000000,allocate,0x1,1,stream",
        "1,00:00:00.000000,allocate,0x1,1,+1",
        "1,00:00:00.000000,allocate,0x1,1",
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

#[test]
fn everything_else_is_the_upstreams() {
    let (upstream, handle) = mock();
    let resource = LoggingResourceAdaptor::to_writer(upstream, io::sink()).unwrap();
    handle.set_memory_info(MemoryInfo { free: 5, total: 9 });
    handle.set_statistics(Some(ResourceStatistics::default().misuses(3)));
    handle.set_trimmed_bytes(77);
    assert_eq!(resource.memory_info().unwrap(), MemoryInfo { free: 5, total: 9 });
    assert_eq!(resource.statistics().unwrap().misuses, 3);
    assert_eq!(resource.trim(11).unwrap(), 77);
    handle.assert_calls([Call::MemoryInfo, Call::Statistics, Call::Trim { keep_bytes: 11 }]);
    let upstream = resource.upstream().unwrap();
    assert!(resource.is_equal(&resource) && !resource.is_equal(upstream));
    assert!(!resource.is_equal(&LoggingResourceAdaptor::to_writer(mock().0, io::sink()).unwrap()));
}

#[test]
fn text_builds_it() {
    let driver = SimDevice::new(SimConfig::h200()) as _;
    let table =
        LayerTable::new(millpond_resources::LAYERS.iter().copied()).with(crate::LAYERS.iter().copied());
    let build = |text: &str| text.parse::<StackSpec>().unwrap().build(&table, &driver);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log.csv");
    let text = format!("cuda+logging:file={},columns=extended,flush=buffered", file.display());
    let resource = build(&text).unwrap();
    assert_eq!(resource.to_string(), text);
    let ptr = resource.allocate_bytes(1000, S).unwrap();
    free(&resource, ptr, 1000);
    find_trait::<dyn crate::AllocationLog>(&resource).unwrap().flush().unwrap();
    let rows = rows(&std::fs::read_to_string(&file).unwrap());
    assert_eq!(rows.iter().map(|row| row.pointer).collect::<Vec<_>>(), [ptr, ptr]);
    assert!(rows[0].device.is_some());

    drop(resource);
    let text = format!("cuda+logging:file={},flush=async", file.display());
    assert_eq!(build(&text).unwrap().to_string(), text);

    for wrong in ["columns=all", "flush=never", "path=log.csv"] {
        let error = build(&format!("cuda+logging:file={},{wrong}", file.display())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidStack, "{error}");
    }
}
