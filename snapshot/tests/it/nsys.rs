//! Tests exports of Nsight Systems, which are written here from the documented schema.

use std::path::Path;

use millpond_engine::program::Limits;
use millpond_snapshot::import::{self, Options};
use millpond_snapshot::recording::{EventKind, Recording};
use millpond_testkit::size;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::unknowns;

const PROCESS: i64 = 1234 * 0x100_0000;

const TABLE: &str = "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER NOT NULL, globalPid INTEGER, \
                     deviceId INTEGER, contextId INTEGER, address INTEGER, pc INTEGER, bytes INTEGER, \
                     memKind INTEGER, memoryOperationType INTEGER, name TEXT, correlationId INTEGER, \
                     streamId INTEGER);";

/// The numbers differ from CUPTI's, so the labels must decide.
const ENUMS: &str = "CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER, name TEXT, label TEXT);
    INSERT INTO ENUM_CUDA_MEM_KIND VALUES (7, 'PINNED', 'Pinned'), (8, 'DEVICE', 'Device');
    CREATE TABLE ENUM_CUDA_DEV_MEM_EVENT_OPER (id INTEGER, name TEXT, label TEXT);
    INSERT INTO ENUM_CUDA_DEV_MEM_EVENT_OPER VALUES (5, 'A', 'Allocation'), (4, 'D', 'Deallocation');";

/// A row: start, device, address, bytes, kind, operation, stream.
type Row = (i64, i64, i64, Option<i64>, i64, i64, i64);

fn export(path: &Path, sql: &str, rows: &[Row]) {
    let database = Connection::open(path).unwrap();
    database.execute_batch(sql).unwrap();
    for (start, device, address, bytes, kind, operation, stream) in rows {
        database
            .execute(
                "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS (start, globalPid, deviceId, contextId, address, \
                 bytes, memKind, memoryOperationType, streamId) VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6, ?7, ?8)",
                (start, PROCESS, device, address, bytes, kind, operation, stream),
            )
            .unwrap();
    }
}

fn read(folder: &TempDir, sql: &str, rows: &[Row]) -> Result<Recording, String> {
    let path = folder.path().join("export.sqlite");
    let _ = std::fs::remove_file(&path);
    export(&path, sql, rows);
    import::open(&path, &Options::default()).map_err(|error| error.to_string())
}

#[test]
fn events_are_sorted_and_kinds_are_known_by_their_labels() {
    let folder = tempfile::tempdir().unwrap();
    let rows = [
        (30, 0, 0x7000, None, 8, 4, 13),
        (10, 0, 0x7000, Some(4096), 8, 5, 13),
        (20, 0, 0x9000, Some(512), 7, 5, 13),
        (25, 0, -4096, Some(256), 8, 5, 0),
        (26, 1, 0x7000, Some(1), 8, 5, 0),
        (5, 0, 0x8000, Some(64), 8, 4, 13),
    ];
    let recording = read(&folder, &format!("{TABLE}{ENUMS}"), &rows).unwrap();
    let events: Vec<_> = recording
        .events()
        .map(|event| (event.kind, event.address, event.bytes, event.time(), event.is_before))
        .collect();
    use EventKind::{Allocate, Free};
    assert_eq!(
        events,
        [
            (Allocate, 0x8000, 64, None, true),
            (Free, 0x8000, 64, Some(5), false),
            (Allocate, 0x7000, 4096, Some(10), false),
            (Allocate, (-4096_i64).cast_unsigned(), 256, Some(25), false),
            (Free, 0x7000, 4096, Some(30), false),
        ]
    );
    assert_eq!(recording.stream_count(), 2);
    assert_eq!(recording.tag(recording.event(0).unwrap().tag.unwrap()), "Device");
    assert_eq!(unknowns(&recording), ["other_device", "host_memory", "pools", "stacks"]);
    let details = &recording.source().details;
    assert!(details.contains(&("process".to_owned(), "1234".to_owned())), "{details:?}");

    let mut log = Vec::new();
    recording.write_csv(&mut log).unwrap();
    assert_eq!(import::read("log", log.as_slice(), &Options::default()).unwrap(), recording);
    let program = recording.program(Limits::default()).unwrap();
    assert_eq!(program.summary().peak_live_bytes, 4096 + 256);
}

#[test]
fn older_exports_lack_columns_and_labels() {
    let folder = tempfile::tempdir().unwrap();
    let sql = "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER, globalPid INTEGER, deviceId \
               INTEGER, \
               contextId INTEGER, address INTEGER, bytes INTEGER, memKind INTEGER, \
               memoryOperationType INTEGER);
               INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (1, 0, 0, 1, 99, 7, 2, 0), \
                (2, 0, 0, 1, 99, 7, 2, 1)";
    let recording = read(&folder, sql, &[]).unwrap();
    let sums = recording.sums();
    assert_eq!((sums.allocations, sums.frees, sums.live_blocks), (1, 1, 0));
    assert!(unknowns(&recording).contains(&"streams"));
}

#[test]
fn what_is_missing_is_said_with_the_command_that_records_it() {
    let folder = tempfile::tempdir().unwrap();
    let error = |sql: &str, rows: &[Row]| read(&folder, sql, rows).unwrap_err();
    assert!(error("CREATE TABLE StringIds (id, value)", &[]).contains("--cuda-memory-usage=true"));
    assert!(error("CREATE TABLE people (name)", &[]).contains("not an Nsight Systems export"));
    assert!(error(TABLE, &[]).contains("without GPU memory events"));
    let wsl = [(0, 0, 1, Some(1), 8, 5, 0), (0, 0, 2, Some(1), 8, 5, 0)];
    assert!(error(&format!("{TABLE}{ENUMS}"), &wsl).contains("WSL"));
    assert!(
        error("CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start)", &[]).contains("lacks the column address")
    );
    let pinned = [(1, 0, 1, Some(1), 7, 5, 0)];
    assert!(error(&format!("{TABLE}{ENUMS}"), &pinned).contains("memory events of the host only"));
}

/// An inner page of a table that has the same child many times.
fn inner_page(child: u32) -> Vec<u8> {
    const CHILDREN: u16 = 600;
    const CELL: u16 = 4096 - 5;
    let mut page = vec![5, 0, 0];
    page.extend(CHILDREN.to_be_bytes());
    page.extend(CELL.to_be_bytes());
    page.push(0);
    page.extend(child.to_be_bytes());
    (0..CHILDREN).for_each(|_| page.extend(CELL.to_be_bytes()));
    page.resize(usize::from(CELL), 0);
    page.extend(child.to_be_bytes());
    page.push(1);
    page
}

/// 2 * 10^8 rows in five pages of 4 KiB.
#[test]
fn pages_that_name_one_page_many_times_are_refused_after_steps_as_the_size_grants() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("export.sqlite");
    for address in [0, 0x7000] {
        let _ = std::fs::remove_file(&path);
        let filler = "CREATE TABLE a (x); CREATE TABLE b (x); CREATE TABLE c (x);";
        export(&path, &format!("{TABLE}{filler}"), &[(1, 0, address, Some(1), 0, 0, 0)]);
        let root = |name: &str| {
            let database = Connection::open(&path).unwrap();
            let sql = "SELECT rootpage FROM sqlite_master WHERE name = ?1";
            database.query_row(sql, [name], |row| row.get::<_, u32>(0)).unwrap() as usize
        };
        let [events, a, b, c] = ["CUDA_GPU_MEMORY_USAGE_EVENTS", "a", "b", "c"].map(root);
        let mut bytes = std::fs::read(&path).unwrap();
        let place = |number: usize| (number - 1) * 4096..number * 4096;
        bytes.copy_within(place(events), place(c).start);
        for (page, child) in [(events, a), (a, b), (b, c)] {
            bytes[place(page)].copy_from_slice(&inner_page(child as u32));
        }
        std::fs::write(&path, &bytes).unwrap();
        let error = import::open(&path, &Options::default()).unwrap_err().to_string();
        let expected = if address == 0 { "too many steps to read for its size" } else { "needs more than" };
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn schemas_that_would_run_something_are_refused_or_run_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let error = |sql: &str| read(&folder, sql, &[]).unwrap_err();
    let text = error("CREATE VIRTUAL TABLE CUDA_GPU_MEMORY_USAGE_EVENTS USING rtree(start, address, bytes)");
    assert!(text.contains("but not as a plain table"), "{text}");
    // A generated column does not count as a column of the table.
    let text = error(
        "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start, memoryOperationType, \
         address AS (length(zeroblob(1000000000))))",
    );
    assert!(text.contains("lacks the column address"), "{text}");
    // Neither a trigger on the table, nor a view, nor a view that replaces the labels runs.
    let rows = [(1, 0, 0x7000, Some(64), 2, 0, 0)];
    let endless = "WITH RECURSIVE n(id, label) AS (SELECT 0, 'x' UNION ALL SELECT id + 1, label FROM n) \
                   SELECT * FROM n";
    let sql = format!(
        "{TABLE} CREATE VIEW ENUM_CUDA_MEM_KIND AS {endless}; CREATE VIEW other AS {endless};
         CREATE TRIGGER t AFTER DELETE ON CUDA_GPU_MEMORY_USAGE_EVENTS BEGIN DELETE FROM \
         CUDA_GPU_MEMORY_USAGE_EVENTS; END;"
    );
    assert_eq!(read(&folder, &sql, &rows).unwrap().sums().live_bytes, 64);
    // Endless labels are cut, and a value longer than any label is an error.
    let long = format!(
        "{TABLE} CREATE TABLE ENUM_CUDA_MEM_KIND (id, label); \
                        INSERT INTO ENUM_CUDA_MEM_KIND VALUES (2, zeroblob(2000000));"
    );
    let text = read(&folder, &long, &rows).unwrap_err();
    assert!(text.contains("cannot be read"), "{text}");
}

#[test]
fn a_view_and_a_damaged_database_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let endless = "CREATE VIEW CUDA_GPU_MEMORY_USAGE_EVENTS AS WITH RECURSIVE n(start, address, \
                   memoryOperationType) AS (SELECT 1, 1, 0 UNION ALL SELECT start + 1, 1, 0 FROM n) SELECT \
                   * FROM n";
    assert!(read(&folder, endless, &[]).unwrap_err().contains("but not as a plain table"));

    let path = folder.path().join("export.sqlite");
    let _ = std::fs::remove_file(&path);
    let rows: Vec<Row> = (0..400).map(|at| (at, 0, at, Some(1), 8, 5, 0)).collect();
    export(&path, &format!("{TABLE}{ENUMS}"), &rows);
    let whole = std::fs::read(&path).unwrap();
    let recording = import::open(&path, &Options::default()).unwrap();
    let mut refused = 0;
    for end in (0..whole.len()).step_by(509) {
        std::fs::write(&path, &whole[..end]).unwrap();
        // A page without events may be missing.
        let result = import::open(&path, &Options::default());
        refused += u32::from(result.is_err());
        assert!(result.is_err() || result.is_ok_and(|part| part == recording), "{end} of {}", whole.len());
    }
    assert!(refused > 30, "{refused}");
    for at in (100..whole.len()).step_by(size::of(389, 97) as usize) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x5a;
        std::fs::write(&path, &damaged).unwrap();
        let _ = import::open(&path, &Options::default());
    }
    let packed = zstd::encode_all(&whole[..], 1).unwrap();
    std::fs::write(&path, packed).unwrap();
    let error = import::open(&path, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("pass the path"), "{error}");
}

/// The first chain belongs to a call of this process, the second to another process with the same number.
#[test]
fn the_call_chain_of_an_allocation_is_its_stack() {
    let folder = tempfile::tempdir().unwrap();
    let chains = format!(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, globalTid INTEGER, correlationId INTEGER, \
         callchainId INTEGER);
         INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, {0}, 77, 3), (2, {1}, 77, 4), (3, {0}, 78, NULL);
         CREATE TABLE CUDA_CALLCHAINS (id INTEGER, symbol INTEGER, module INTEGER, unresolved INTEGER, \
         originalIP INTEGER, stackDepth INTEGER);
         INSERT INTO CUDA_CALLCHAINS VALUES (3, 2, 5, NULL, 1, 1), (3, 1, 6, NULL, 1, 0), \
         (4, 9, 9, NULL, 1, 0);
         CREATE TABLE StringIds (id INTEGER, value TEXT);
         INSERT INTO StringIds VALUES (1, 'cudaMalloc'), (2, 'ncclCommInit'), (5, 'libnccl.so'), \
         (6, 'libcudart.so'), (7, 'unused');",
        PROCESS + 9,
        2 * PROCESS
    );
    let sql = format!("{TABLE}{ENUMS}{chains}");
    let rows = [(10, 0, 0x7000, Some(4096), 8, 5, 0), (20, 0, 0x8000, Some(64), 8, 5, 0)];
    let path = folder.path().join("export.sqlite");
    export(&path, &sql, &rows);
    let database = Connection::open(&path).unwrap();
    let numbers =
        "UPDATE CUDA_GPU_MEMORY_USAGE_EVENTS SET correlationId = CASE start WHEN 10 THEN 77 ELSE 78 END";
    database.execute_batch(numbers).unwrap();
    drop(database);
    let recording = import::open(&path, &Options::default()).unwrap();
    let stacks: Vec<Vec<(&str, &str)>> = recording
        .events()
        .map(|event| {
            let frames = event.stack.into_iter().flat_map(|stack| recording.stack(stack));
            frames.map(|frame| (frame.function, frame.file)).collect()
        })
        .collect();
    assert_eq!(stacks, [vec![("cudaMalloc", "libcudart.so"), ("ncclCommInit", "libnccl.so")], vec![]]);
    assert!(!unknowns(&recording).contains(&"stacks"));
    // A view instead of a table would run code from the file.
    let view = "DROP TABLE StringIds; CREATE VIEW StringIds AS SELECT 1 AS id, 'x' AS value;";
    Connection::open(&path).unwrap().execute_batch(view).unwrap();
    let recording = import::open(&path, &Options::default()).unwrap();
    let stack = recording.event(0).unwrap().stack.unwrap();
    assert_eq!(recording.stack(stack).next().unwrap().function, "(unnamed)");
}
