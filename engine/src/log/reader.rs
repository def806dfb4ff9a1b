//! Reads a log row by row.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use csv::{ByteRecord, Reader, ReaderBuilder, Terminator};

use super::columns::{Columns, RowError};
use super::{Event, LogError, input};

/// Reads a log row by row, in bounded memory.
///
/// The reader is an iterator over events. If a row is bad, the item is an error, and the next row can still
/// be read. If the file cannot be read any further, the error is the last item. If a log is truncated after
/// some rows, the iterator ends without an error. In this case, [`rest_missing`](Self::rest_missing) returns
/// the reason.
pub struct LogReader<'a> {
    file: String,
    csv: Reader<Box<dyn Read + Send + 'a>>,
    row: ByteRecord,
    columns: Columns,
    ended: bool,
    broken: bool,
    /// Set at the end of the text, if the last line has no line end.
    is_unfinished: Arc<AtomicBool>,
    /// Whether a row was read.
    has_rows: bool,
    rest_missing: Option<LogError>,
}

/// Opens the file of a log.
///
/// # Errors
/// The file does not exist, cannot be read, or is a folder.
pub fn open_file(path: &Path) -> Result<File, LogError> {
    let fail = |reason: String| LogError { file: path.display().to_string(), line: 0, column: None, reason };
    let file = File::open(path)
        .map_err(|error| fail(format!("cannot be opened ({error}); check the path and its permissions")))?;
    if file.metadata().is_ok_and(|data| data.is_dir()) {
        return Err(fail("is a folder; name the log files in it".to_owned()));
    }
    Ok(file)
}

impl LogReader<'static> {
    /// Opens a file. Its first bytes show whether it is plain, gzip or zstd.
    ///
    /// # Errors
    /// The file cannot be read, or does not start with a log's header.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        Self::from_reader(path.display().to_string(), open_file(path)?)
    }
}

impl<'a> LogReader<'a> {
    /// Reads a log from any reader. Errors name the log as `name`.
    ///
    /// # Errors
    /// The input does not start with a log's header.
    pub fn from_reader(name: impl Into<String>, raw: impl Read + Send + 'a) -> Result<Self, LogError> {
        let file = name.into();
        let (text, is_unfinished) = input::unpack(raw).map_err(|error| read_error(&file, 0, &error))?;
        // Quotes have no meaning, because a stray quote would swallow rows. Only `\n` ends a row, so lines
        // can be counted.
        let csv = ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .quoting(false)
            .terminator(Terminator::Any(b'\n'))
            .buffer_capacity(input::MAX_LINE_BYTES)
            .from_reader(text);
        let mut reader = Self {
            file,
            csv,
            row: ByteRecord::new(),
            columns: Columns::default(),
            ended: false,
            broken: false,
            is_unfinished,
            has_rows: false,
            rest_missing: None,
        };
        reader.read_header()?;
        Ok(reader)
    }

    /// Returns the name of the log.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns whether reading ended with an error, so that the rest of the log is missing.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    fn read_header(&mut self) -> Result<(), LogError> {
        match self.read_row() {
            Some(Ok(line)) => {
                if let Some(first) = self.row.get(0).and_then(|name| name.strip_prefix(b"\xef\xbb\xbf")) {
                    // Some editors write a byte order mark.
                    let first = first.to_vec();
                    let rest: Vec<Vec<u8>> = self.row.iter().skip(1).map(<[u8]>::to_vec).collect();
                    self.row = std::iter::once(first).chain(rest).collect();
                }
                self.columns = Columns::new(&self.row).map_err(|error| self.row_error(line, error))?;
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => Err(LogError {
                file: self.file.clone(),
                line: 0,
                column: None,
                reason: "is empty; a log starts with the line `Thread,Time,Action,Pointer,Size,Stream`"
                    .to_owned(),
            }),
        }
    }

    /// Reads the next row that is not blank into `self.row`, and returns the number of its line.
    fn read_row(&mut self) -> Option<Result<u64, LogError>> {
        while !self.ended {
            match self.csv.read_byte_record(&mut self.row) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    (self.ended, self.broken) = (true, true);
                    let (line, error) = (self.csv.position().line(), crate::error::csv_to_io(error));
                    let is_cut_off = error.kind() == io::ErrorKind::UnexpectedEof;
                    let error = read_error(&self.file, line, &error);
                    if is_cut_off && self.has_rows {
                        self.rest_missing = Some(error);
                        return None;
                    }
                    return Some(Err(error));
                }
            }
            // The reader's position is after the row's `\n`, which the input guarantees.
            let line = self.csv.position().line() - 1;
            self.strip_carriage_return();
            let blank = self.row.is_empty() || self.row.len() == 1 && self.row[0].is_empty();
            if !blank {
                return Some(Ok(line));
            }
        }
        self.ended = true;
        None
    }

    fn strip_carriage_return(&mut self) {
        let Some(last) = self.row.len().checked_sub(1).map(|index| &self.row[index]) else { return };
        if last.ends_with(b"\r") {
            let stripped = last[..last.len() - 1].to_vec();
            let count = self.row.len() - 1;
            self.row.truncate(count);
            self.row.push_field(&stripped);
        }
    }

    #[cold]
    fn row_error(&self, line: u64, (column, reason): RowError) -> LogError {
        LogError { file: self.file.clone(), line, column, reason }
    }
}

impl LogReader<'_> {
    /// Returns whether the log has this column. It must be one of the columns in
    /// [`column`](mod@super::column), or an optional column.
    pub fn has_column(&self, name: &str) -> bool {
        self.columns.has(name)
    }

    /// Returns the last row's text in one of the columns in [`column`](mod@super::column). The text is empty
    /// if the log has no such column.
    pub fn cell(&self, name: &str) -> &[u8] {
        self.columns.of_recording(&self.row, name)
    }

    /// Returns whether the last row only carries notes of a recording.
    pub fn is_carrier(&self) -> bool {
        self.columns.is_carrier(&self.row)
    }

    /// If the log is truncated, returns the reason why its rest is missing: the compressed data ends early,
    /// or the last row is incomplete.
    pub fn rest_missing(&self) -> Option<&LogError> {
        self.rest_missing.as_ref()
    }

    /// Ends reading before the last row, if that row is incomplete and is not the only row. `error` is the
    /// caller's error about the row.
    ///
    /// # Errors
    /// Returns `error`, if the row is not the last one or has its line end.
    pub fn cut_off(&mut self, error: LogError) -> Result<(), LogError> {
        if !self.has_rows || !self.is_unfinished.load(Ordering::Relaxed) {
            return Err(error);
        }
        let reason = "the last row is cut off".to_owned();
        self.ended = true;
        self.rest_missing = Some(LogError { column: None, reason, ..error });
        Ok(())
    }

    /// Returns the next row, even if it only carries notes. [`is_carrier`](Self::is_carrier) says whether it
    /// does.
    pub fn next_row(&mut self) -> Option<Result<Event, LogError>> {
        let line = match self.read_row()? {
            Ok(line) => line,
            Err(error) => return Some(Err(error)),
        };
        let row = self.columns.event(&self.row, line).map_err(|error| self.row_error(line, error));
        match row {
            Ok(event) => {
                self.has_rows = true;
                Some(Ok(event))
            }
            Err(error) => self.cut_off(error).err().map(Err),
        }
    }
}

impl Iterator for LogReader<'_> {
    type Item = Result<Event, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let row = self.next_row()?;
            if row.is_err() || !self.is_carrier() {
                return Some(row);
            }
        }
    }
}

impl fmt::Debug for LogReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogReader")
            .field("file", &self.file)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

#[cold]
fn read_error(file: &str, line: u64, error: &io::Error) -> LogError {
    let reason = match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            "the compressed data ends early: the file is truncated; copy it again".to_owned()
        }
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge => {
            format!("cannot be read ({error}); is it a log, plain or compressed with gzip or zstd?")
        }
        _ => format!("cannot be read ({error})"),
    };
    LogError { file: file.to_owned(), line, column: None, reason }
}

#[cfg(test)]
mod tests {
    use millpond_core::DeviceId;

    use super::super::{Action, StreamKey};
    use super::*;

    const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

    fn read(text: &str) -> Vec<Result<Event, LogError>> {
        LogReader::from_reader("log", text.as_bytes()).unwrap().collect()
    }

    fn lines(text: &str) -> Vec<u64> {
        read(text)
            .iter()
            .map(|item| item.as_ref().map_or_else(|error| error.line, |event| event.line))
            .collect()
    }

    #[test]
    fn columns_are_found_by_name() {
        let text = "Note,Stream,Size,Pointer,Action,Time,Thread,Alignment,Device,DurationNs\n\
                    x,0x2,64,0x100,allocate,00:00:00:000000,9,4096,cuda:1,120\n";
        let event = read(text)[0].clone().unwrap();
        assert_eq!((event.thread, event.bytes, event.action), (9, 64, Action::Allocate));
        assert_eq!((event.stream, event.alignment), (StreamKey::PerThread, 4096));
        assert_eq!((event.device, event.duration_ns), (Some(DeviceId::cuda(1)), Some(120)));
    }

    #[test]
    fn lines_are_counted_with_any_line_ending() {
        let row = "1,00:00:00,free,0x100,1,0";
        assert_eq!(lines(&format!("{HEADER}{row}\n{row}\n")), [2, 3]);
        assert_eq!(lines(&format!("{HEADER}{row}\n{row}")), [2, 3], "no line end at the end");
        assert_eq!(lines(&format!("{HEADER}\n\n{row}\n\n{row}\n")), [4, 6], "blank lines");
        let crlf = format!("{HEADER}{row}\n\n{row}\n").replace('\n', "\r\n");
        assert_eq!(lines(&crlf), [2, 4]);
        assert_eq!(read(&crlf)[0].as_ref().unwrap().stream, StreamKey::Legacy);
    }

    #[test]
    fn a_bad_row_is_named_and_reading_goes_on() {
        let items =
            read(&format!("{HEADER}1,0,free,0x1,-5,0\n1,0,free,0x1,5,0\n1,0,free\n1,0,free,0x1,5,0,9\n"));
        assert_eq!(
            items[0].as_ref().unwrap_err().to_string(),
            "log:2: column Size: `-5` is negative; a size in bytes is 0 or more"
        );
        assert!(items[1].is_ok());
        let missing = items[2].as_ref().unwrap_err().to_string();
        assert_eq!(missing, "log:4: column Pointer: the row has 3 columns, but the header has 6");
        assert_eq!(items[3].as_ref().unwrap_err().column, None);
        assert_eq!(items.len(), 4);
    }

    #[test]
    fn a_quote_swallows_nothing() {
        let items = read(&format!("{HEADER}1,0,\"free,0x1,5,0\n1,0,free,0x1,5,0\n"));
        assert_eq!(items[0].as_ref().unwrap_err().column, Some("Action"));
        assert!(items[1].is_ok());
    }

    #[test]
    fn a_byte_order_mark_is_looked_through() {
        assert_eq!(read(&format!("\u{feff}{HEADER}1,0,free,0x1,5,0\n")).len(), 1);
    }

    #[test]
    fn an_empty_log_and_a_wrong_header_say_how_a_log_starts() {
        let error = |text: &str| LogReader::from_reader("log", text.as_bytes()).unwrap_err().to_string();
        assert!(error("").starts_with("log: is empty; a log starts with"));
        assert!(error("\n\n").starts_with("log: is empty"));
        assert!(error("a,b,c\n1,2,3\n").starts_with("log:1: column Thread: the header lacks this column"));
        assert!(error("Thread,Time,Action,Pointer,Size\n").contains("column Stream"));
    }

    #[test]
    fn a_packed_log_that_is_cut_off_ends_and_says_so() {
        let rows = (0..200_000).map(|row| format!("1,00:00:00,free,{:#x},{row},0\n", row * 7919));
        let text = format!("{HEADER}{}", rows.collect::<String>());
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
        io::Write::write_all(&mut gzip, text.as_bytes()).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
        for packed in [gzip, zstd] {
            let cut = &packed[..packed.len() - 20];
            let mut reader = LogReader::from_reader("log", cut).unwrap();
            let items: Vec<_> = reader.by_ref().collect();
            let missing = reader.rest_missing();
            assert!(items.iter().all(Result::is_ok) && items.len() > 1000, "{}", items.len());
            assert!(missing.unwrap().reason.contains("truncated"));
        }
    }

    #[test]
    fn a_last_row_that_is_torn_ends_the_log_and_says_so() {
        let row = "1,00:00:00,allocate,0x100,1024,0\n";
        for torn in ["1,00:00:00,free,0x100,102", "1", "1,00:00:00,fr", "1,00:00:00,free,0x100,1024,"] {
            let text = format!("{HEADER}{row}{torn}");
            let mut reader = LogReader::from_reader("log", text.as_bytes()).unwrap();
            assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 1, "{torn}");
            let missing = reader.rest_missing().map(ToString::to_string);
            assert_eq!(missing.as_deref(), Some("log:3: the last row is cut off"), "{torn}");
            // With a line end the row is bad, not torn.
            let text = format!("{HEADER}{row}{torn}\n");
            let mut reader = LogReader::from_reader("log", text.as_bytes()).unwrap();
            assert_eq!(reader.by_ref().filter(Result::is_err).count(), 1, "{torn}");
            assert!(reader.rest_missing().is_none());
        }
        assert!(read(&format!("{HEADER}1,00:00:00,fr"))[0].is_err(), "there is nothing else");
        let whole = format!("{HEADER}{row}{row}");
        let mut reader = LogReader::from_reader("log", whole.trim_end().as_bytes()).unwrap();
        assert_eq!((reader.by_ref().count(), reader.rest_missing()), (2, None));
    }
}
