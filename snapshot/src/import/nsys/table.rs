//! The tables of an export, which are read through SQLite.

use std::collections::HashMap;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use crate::budget::Budget;
use crate::import::refusal::Refusal;

/// The commands that record memory events.
pub(super) const PROFILE_AGAIN: &str =
    "run `nsys profile --cuda-memory-usage=true PROGRAM` and `nsys export --type sqlite`";

const EVENTS: &str = "CUDA_GPU_MEMORY_USAGE_EVENTS";

/// The most labels that are read for one enumeration. CUPTI has nine kinds of memory.
const MAX_LABELS: usize = 64;

/// The number of steps of SQLite's virtual machine after which the reader compares their sum with the limit.
const STEPS_BETWEEN: u32 = 1000;

/// The limit is this number of steps, plus a number of steps per byte of the file. A row has at least 16
/// bytes and needs about 15 steps. A file whose pages refer to each other in circles has endless rows.
const STEPS: u64 = 10_000_000;
const STEPS_PER_BYTE: u64 = 8;

/// Limits that are tighter than SQLite's own limits: the bytes of a value or a statement, the number of
/// columns, the depth of a schema.
const LIMITS: [(Limit, i32); 10] = [
    (Limit::SQLITE_LIMIT_LENGTH, 1 << 20),
    (Limit::SQLITE_LIMIT_SQL_LENGTH, 1 << 18),
    (Limit::SQLITE_LIMIT_COLUMN, 500),
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 50),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 3),
    (Limit::SQLITE_LIMIT_VDBE_OP, 25_000),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 50),
    (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 0),
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
];

/// One event of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Nanoseconds since the profile began.
    pub(super) start: u64,
    pub(super) process: u64,
    pub(super) device: u64,
    pub(super) context: u64,
    pub(super) address: u64,
    pub(super) bytes: Option<u64>,
    pub(super) stream: u64,
    pub(super) kind: i64,
    pub(super) is_allocation: bool,
    /// The number of the CUDA API call; 0 if it is not known.
    pub(super) correlation: i64,
}

/// The GPU memory events of an export.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    /// The names of the kinds of memory.
    pub(super) kinds: HashMap<i64, String>,
    pub(super) has_streams: bool,
}

/// An export that is open for reading.
pub(super) struct Database(Connection);

impl Database {
    /// Opens a database. Does not trust its contents.
    ///
    /// # Errors
    /// The database cannot be opened.
    pub(super) fn open(path: &Path) -> Result<Self, Refusal> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(refusal)?;
        for (limit, most) in LIMITS {
            connection.set_limit(limit, most).map_err(refusal)?;
        }
        for (config, value) in [
            (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        ] {
            connection.set_db_config(config, value).map_err(refusal)?;
        }
        let bytes = std::fs::metadata(path)?.len();
        let mut left = (STEPS + bytes.saturating_mul(STEPS_PER_BYTE)) / u64::from(STEPS_BETWEEN);
        let is_too_much = move || {
            left = left.saturating_sub(1);
            left == 0
        };
        connection.progress_handler(STEPS_BETWEEN as i32, Some(is_too_much)).map_err(refusal)?;
        let careful = "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; \
                       PRAGMA cache_size = -2000; PRAGMA hard_heap_limit = 8388608;";
        connection.execute_batch(careful).map_err(refusal)?;
        // SQLite reads the missing end of a page as zeros.
        let page: u32 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).map_err(refusal)?;
        if !bytes.is_multiple_of(page.max(1).into()) {
            return Err(Refusal::new("is a SQLite database that ends early; copy it again"));
        }
        Ok(Self(connection))
    }

    /// Reads the events.
    ///
    /// # Errors
    /// The database is not an export from Nsight Systems, has no memory events, or needs too much memory.
    pub(super) fn rows(&self, budget: &mut Budget) -> Result<Table, Refusal> {
        self.check()?;
        let columns = self.columns(EVENTS)?;
        let wanted = [
            "start",
            "globalPid",
            "deviceId",
            "contextId",
            "address",
            "bytes",
            "memKind",
            "memoryOperationType",
            "streamId",
            "correlationId",
        ];
        let has = |name: &str| columns.iter().any(|column| column == name);
        if let Some(missing) = ["start", "address", "memoryOperationType"].iter().find(|name| !has(name)) {
            return Err(Refusal::new(format!(
                "is an Nsight Systems export whose table {EVENTS} lacks the column {missing}; export again \
                 with a newer version"
            )));
        }
        let kinds = self.labels("ENUM_CUDA_MEM_KIND")?;
        let operations = self.labels("ENUM_CUDA_DEV_MEM_EVENT_OPER")?;
        let list = wanted.map(|name| if has(name) { name } else { "NULL" }).join(", ");
        let mut statement = self.0.prepare(&format!("SELECT {list} FROM {EVENTS}")).map_err(refusal)?;
        let mut cursor = statement.query([]).map_err(refusal)?;
        let mut rows = Vec::new();
        while let Some(row) = cursor.next().map_err(refusal)? {
            let number = |at: usize| match row.get_ref(at) {
                Ok(ValueRef::Integer(number)) => Some(number),
                _ => None,
            };
            // Addresses and process numbers are stored as signed 64-bit numbers.
            let bits = |at: usize| number(at).unwrap_or(0).cast_unsigned();
            if bits(4) == 0 {
                continue; // nothing is at address 0
            }
            budget.take(3 * size_of::<Row>())?;
            rows.push(Row {
                start: bits(0),
                process: bits(1),
                device: bits(2),
                context: bits(3),
                address: bits(4),
                bytes: number(5).and_then(|bytes| u64::try_from(bytes).ok()),
                kind: number(6).unwrap_or(-1),
                is_allocation: is_allocation(number(7).unwrap_or(0), &operations),
                stream: bits(8),
                correlation: number(9).unwrap_or(0),
            });
        }
        Ok(Table { rows, kinds, has_streams: has("streamId") })
    }

    /// Checks that the events are in a plain table. A view or a virtual table would run code from the file.
    fn check(&self) -> Result<(), Refusal> {
        let sql = "SELECT type = 'table' AND rootpage > 0 FROM sqlite_master WHERE name = ?1";
        let mut statement = self.0.prepare(sql).map_err(refusal)?;
        let is_table: Option<bool> =
            statement.query_row([EVENTS], |row| row.get(0)).optional().map_err(refusal)?;
        match is_table {
            Some(true) => Ok(()),
            Some(false) => Err(Refusal::new(format!(
                "has {EVENTS}, but not as a plain table; it is not from Nsight Systems, and reading it could \
                 run code"
            ))),
            None => {
                let sql = "SELECT count(*) FROM sqlite_master WHERE name IN ('StringIds', 'TARGET_INFO_GPU', \
                           'META_DATA_CAPTURE', 'ANALYSIS_DETAILS')";
                let parts: i64 = self.0.query_row(sql, [], |row| row.get(0)).map_err(refusal)?;
                Err(Refusal::new(if parts > 0 {
                    format!("is an Nsight Systems export without the table {EVENTS}; {PROFILE_AGAIN}")
                } else {
                    "is a SQLite database, but not an Nsight Systems export".to_owned()
                }))
            }
        }
    }

    fn columns(&self, table: &str) -> Result<Vec<String>, Refusal> {
        let mut statement = self.0.prepare(&format!("PRAGMA table_info({table})")).map_err(refusal)?;
        let names = statement.query_map([], |row| row.get::<_, String>(1)).map_err(refusal)?;
        names.collect::<Result<_, _>>().map_err(refusal)
    }

    /// Returns whether the export has a plain table with this name. A view or a virtual table would run code
    /// from the file.
    fn has_table(&self, table: &str) -> Result<bool, Refusal> {
        let is_table = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND \
                        name = ?1";
        let count: i64 = self.0.query_row(is_table, [table], |row| row.get(0)).map_err(refusal)?;
        Ok(count > 0)
    }

    /// Passes each row of a table to `take`: its whole numbers, with 0 for other values, and the text of its
    /// last column. If the table or a column is missing, does nothing.
    ///
    /// # Errors
    /// Returns the errors of `take`, or an error if the table cannot be read.
    pub(super) fn each<const COUNT: usize>(
        &self,
        table: &str,
        columns: [&str; COUNT],
        mut take: impl FnMut([i64; COUNT], &str) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if !self.has_table(table)? {
            return Ok(());
        }
        let known = self.columns(table)?;
        if !columns.iter().all(|name| known.iter().any(|column| column == name)) {
            return Ok(());
        }
        let sql = format!("SELECT {} FROM {table}", columns.join(", "));
        let mut statement = self.0.prepare(&sql).map_err(refusal)?;
        let mut cursor = statement.query([]).map_err(refusal)?;
        while let Some(row) = cursor.next().map_err(refusal)? {
            let mut numbers = [0; COUNT];
            let mut text = "";
            for (at, number) in numbers.iter_mut().enumerate() {
                match row.get_ref(at) {
                    Ok(ValueRef::Integer(value)) => *number = value,
                    Ok(ValueRef::Text(value)) => text = std::str::from_utf8(value).unwrap_or(""),
                    _ => {}
                }
            }
            take(numbers, text)?;
        }
        Ok(())
    }

    /// Returns the labels of an enumeration. The result is empty if the export lacks the enumeration.
    fn labels(&self, table: &str) -> Result<HashMap<i64, String>, Refusal> {
        let mut labels = HashMap::default();
        if !self.has_table(table)? {
            return Ok(labels);
        }
        let Ok(mut statement) = self.0.prepare(&format!("SELECT id, label FROM {table}")) else {
            return Ok(labels);
        };
        let mut cursor = statement.query([]).map_err(refusal)?;
        while labels.len() < MAX_LABELS
            && let Some(row) = cursor.next().map_err(refusal)?
        {
            if let (Ok(id), Ok(label)) = (row.get::<_, i64>(0), row.get::<_, String>(1)) {
                labels.insert(id, label.chars().take(60).collect());
            }
        }
        Ok(labels)
    }
}

/// Returns whether a kind of memory is host memory.
pub(super) fn is_of_host(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    kind.contains("pinned") || kind.contains("pageable")
}

fn is_allocation(operation: i64, labels: &HashMap<i64, String>) -> bool {
    match labels.get(&operation) {
        Some(label) => !label.to_ascii_lowercase().contains("dealloc"),
        None => operation == 0,
    }
}

fn refusal(error: rusqlite::Error) -> Refusal {
    if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) {
        return Refusal::new(
            "is a SQLite database that needs too many steps to read for its size. It is damaged, or its \
             pages refer to each other in a circle; export it again",
        );
    }
    Refusal::new(format!("is a SQLite database that cannot be read ({error}); copy or export it again"))
}
