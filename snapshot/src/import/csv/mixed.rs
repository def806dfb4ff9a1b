//! Finds the logs in a text. A log may have no header, lines of other programs may be between the rows, and
//! several logs may follow one another.

use std::io::{self, BufRead, BufReader, Read};

/// The longest line that is read at once, in bytes. It is longer than the log reader accepts.
const MAX_LINE_BYTES: u64 = (64 << 10) + 1;

/// The header of RMM's logs.
const HEADER: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream\n";

const ACTIONS: [&str; 3] = ["allocate", "free", "allocate failure"];

/// The logs of a text. Reading returns one log, in which the lines of other programs are blank.
pub(super) struct Mixed<R> {
    source: BufReader<R>,
    /// The bytes to return next.
    line: Vec<u8>,
    at: usize,
    /// The number of the last line, counted from 1.
    number: u64,
    is_in_log: bool,
    /// Whether `line` is the header of the next log.
    is_next: bool,
    /// Whether reading failed. The reader of the log has already reported the error.
    is_broken: bool,
    pub(super) others: u64,
    pub(super) first_other: Option<u64>,
}

/// The kind of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Header,
    Row,
    Other,
}

/// Returns whether a line is the header or a complete row of a log, at any position in the file.
pub(crate) fn is_start(line: &str) -> bool {
    is_header(line) || is_row(line)
}

/// Returns whether the start of a text contains lines of other programs, or another log, between the rows
/// after its header. Damaged lines at the end do not count.
pub(crate) fn is_mixed(start: &[u8]) -> bool {
    let lines = start.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let mut lines = lines.skip(1).filter(|line| !line.trim_ascii().is_empty());
    lines.any(|line| kind(line) != Kind::Row) && lines.any(|line| kind(line) == Kind::Row)
}

fn cells(line: &str) -> impl Iterator<Item = &str> {
    line.trim_start_matches('\u{feff}').split(',').map(str::trim)
}

fn is_header(line: &str) -> bool {
    ["Thread", "Action", "Pointer", "Size"].iter().all(|name| cells(line).any(|cell| cell == *name))
}

/// Returns whether a line is a row with RMM's columns in RMM's order.
fn is_row(line: &str) -> bool {
    if line.len() > 256 {
        return false;
    }
    let cells: Vec<&str> = cells(line).collect();
    let [thread, time, action, pointer, size, stream] = cells[..] else { return false };
    let is_number = |cell: &str| !cell.is_empty() && cell.bytes().all(|byte| byte.is_ascii_digit());
    let is_address = |cell: &str| {
        let digits = cell.strip_prefix("0x").unwrap_or(cell);
        cell == "(nil)" || !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let is_time = time.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.'));
    is_number(thread)
        && is_time
        && ACTIONS.contains(&action)
        && is_address(pointer)
        && is_number(size)
        && is_address(stream)
}

/// Distinguishes the lines of a log from other lines. A damaged row still counts as a row, and the log reader
/// reports its error.
fn kind(line: &[u8]) -> Kind {
    // A usual row has a number, and then at least three other cells.
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_numbered = digits > 0 && line.get(digits) == Some(&b',');
    if is_numbered && line[digits..].iter().filter(|byte| **byte == b',').take(3).count() == 3 {
        return Kind::Row;
    }
    // The last row of a truncated log may be incomplete.
    let is_torn = !line.ends_with(b"\n") && line.len() < MAX_LINE_BYTES as usize;
    if is_torn && digits > 0 && (is_numbered || digits == line.len()) {
        return Kind::Row;
    }
    let line = String::from_utf8_lossy(&line[..line.len().min(1024)]);
    match () {
        () if cells(&line).any(|cell| ACTIONS.contains(&cell)) => Kind::Row,
        () if is_header(&line) => Kind::Header,
        () => Kind::Other,
    }
}

impl<R: Read> Mixed<R> {
    /// Reads a text whose first line has this number. The lines before it contain no rows.
    pub(super) fn new(source: R, number: u64) -> Self {
        Self {
            source: BufReader::new(source),
            line: Vec::new(),
            at: 0,
            number: number.saturating_sub(1),
            is_in_log: false,
            is_next: false,
            is_broken: false,
            others: number.saturating_sub(1),
            first_other: (number > 1).then_some(1),
        }
    }

    /// Moves to the next log, and returns the number of its header's line; `None` if there is no further log.
    /// `is_log` says that the next line is a header, even if the header is wrong.
    ///
    /// # Errors
    /// The source cannot be read.
    pub(super) fn next_log(&mut self, is_log: bool) -> io::Result<Option<u64>> {
        while !self.is_next {
            if !self.next_line()? {
                return Ok(None);
            }
            let is_blank = self.line.trim_ascii().is_empty();
            match kind(&self.line) {
                _ if is_blank => {}
                Kind::Row if !is_log => {
                    self.line.splice(..0, HEADER.iter().copied());
                    (self.is_in_log, self.at) = (true, 0);
                    return Ok(Some(self.number.saturating_sub(1)));
                }
                Kind::Other if !is_log => self.other(),
                _ => self.is_next = true,
            }
        }
        (self.is_next, self.is_in_log, self.at) = (false, true, 0);
        Ok(Some(self.number))
    }

    fn other(&mut self) {
        self.others += 1;
        self.first_other.get_or_insert(self.number);
    }

    /// Reads a line. Returns false at the end of the text. If a line is too long, its rest is returned as the
    /// next line.
    fn next_line(&mut self) -> io::Result<bool> {
        self.line.clear();
        self.at = 0;
        if self.is_broken {
            return Ok(false);
        }
        let read = (&mut self.source).take(MAX_LINE_BYTES).read_until(b'\n', &mut self.line);
        self.is_broken = read.is_err();
        read?;
        self.number += 1;
        Ok(!self.line.is_empty())
    }

    /// Reads the next line of the log into `line`. Returns false at the end of the log.
    fn next_of_log(&mut self) -> io::Result<bool> {
        if !self.is_in_log || !self.next_line()? {
            self.is_in_log = false;
            return Ok(false);
        }
        match kind(&self.line) {
            Kind::Row => {}
            Kind::Header => {
                (self.is_in_log, self.is_next) = (false, true);
                return Ok(false);
            }
            Kind::Other => {
                if !self.line.trim_ascii().is_empty() {
                    self.other();
                }
                if !self.line.ends_with(b"\n") {
                    self.source.skip_until(b'\n')?;
                }
                self.line.clear();
                self.line.push(b'\n');
            }
        }
        Ok(true)
    }
}

impl<R: Read> Read for Mixed<R> {
    /// Returns the next line, and further lines that are in memory. Reading one line at a time took longer.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        while count < into.len() {
            if self.at == self.line.len() || self.is_next {
                let is_in_memory = self.source.buffer().contains(&b'\n');
                if count > 0 && !is_in_memory || !self.next_of_log()? {
                    break;
                }
            }
            let more = (into.len() - count).min(self.line.len() - self.at);
            into[count..count + more].copy_from_slice(&self.line[self.at..self.at + more]);
            self.at += more;
            count += more;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "7,05:01:18.946606,allocate,0x100,1000,0x2\n";

    #[test]
    fn rows_are_told_from_other_lines() {
        for (line, expected) in [
            ("Thread,Time,Action,Pointer,Size,Stream", Kind::Header),
            ("\u{feff}Size, Thread, Action, Pointer", Kind::Header),
            (ROW, Kind::Row),
            ("1,0,free", Kind::Row),
            ("1,0,fre,0x1", Kind::Row),
            ("26/01/01 14:21:20 INFO Executor: Finished task 0.0, result 1, bytes", Kind::Other),
            ("12, done\n", Kind::Other),
            ("12, 14:21", Kind::Row),
            ("12 of 14", Kind::Other),
            ("Thread,Time", Kind::Other),
            ("", Kind::Other),
        ] {
            assert_eq!(kind(line.as_bytes()), expected, "{line}");
        }
        assert!(is_row(ROW) && is_row("1,14:21:19:998533,allocate failure,(nil),5,0"));
        assert!(!is_row("1,0,free,0x1,5") && !is_row("1,0,free,0x1,5,0,9") && !is_row("x,0,free,0x1,5,0"));
    }

    #[test]
    fn a_log_is_mixed_if_other_lines_stand_between_its_rows() {
        let header = std::str::from_utf8(HEADER).unwrap();
        for (rest, expected) in [
            (format!("{ROW}hello\n{ROW}"), true),
            (format!("{ROW}{header}{ROW}"), true),
            (format!("{ROW}\n{ROW}hello\n"), false),
            (format!("1,0,free,0x1,-1,0\n{ROW}"), false),
            ("hello\n".to_owned(), false),
        ] {
            assert_eq!(is_mixed(format!("{header}{rest}").as_bytes()), expected, "{rest}");
        }
    }

    #[test]
    fn each_log_of_a_text_is_read_by_itself() {
        let header = std::str::from_utf8(HEADER).unwrap();
        let text = format!("hello\n{ROW}text, more\n{ROW}\n{header}{ROW}{header}");
        let mut mixed = Mixed::new(text.as_bytes(), 1);
        let mut logs = Vec::new();
        while let Some(line) = mixed.next_log(false).unwrap() {
            let mut log = String::new();
            mixed.read_to_string(&mut log).unwrap();
            logs.push((line, log));
        }
        let expected =
            [(1, format!("{header}{ROW}\n{ROW}\n")), (6, format!("{header}{ROW}")), (8, header.to_owned())];
        assert_eq!(logs, expected);
        assert_eq!((mixed.others, mixed.first_other), (2, Some(1)));
    }
}
