//! The plan of a program, as text.
//!
//! ```text
//! millpond plan 1
//! log sha256:07ac…                  64 hexadecimal digits
//! alignment 256
//! streams 2
//! lane 1536                         the bytes of stream 0
//! lane 0                            the bytes of stream 1
//! bound 1536
//! ratio 1.00000                     all lanes over the bound
//! beside 256
//! allocations 3
//! bytes stream life offset
//! 1024 0 2 0                        lives until the second allocation from it on
//! 512 0 1 1024
//! 256 1 - -                         has no slot
//! ```

use std::fmt;
use std::io::{BufRead, Read};

use crate::program::{
    LogHash, MOST_ALLOCATIONS, MOST_STREAMS, PlanParts, PlannedAllocation, PlannedSlot, ProgramPlan,
    ProgramPlanError, check,
};

/// The longest line that is read, in bytes. A row of four 64-bit numbers has 83 bytes.
const LONGEST_LINE: u64 = 100;

const VERSION: &str = "1";

const COLUMNS: &str = "bytes stream life offset";

/// The number of lines before the lanes.
const BEFORE_LANES: usize = 4;

/// The number of lines from the last lane to the first allocation.
const AFTER_LANES: usize = 5;

impl ProgramPlan {
    /// Reads a plan that was written as text.
    ///
    /// Reading a wrong text takes no more time than reading a valid text of the same length. It needs at most
    /// about 200 bytes of memory for each line. At most [`MOST_ALLOCATIONS`] rows are read.
    ///
    /// # Errors
    /// Returns an error about the first wrong line, with the reason.
    ///
    /// ```
    /// use millpond_planning::ProgramPlan;
    ///
    /// let error = ProgramPlan::read(&b"millpond plan 2\n"[..]).unwrap_err();
    /// assert_eq!(error.to_string(), "line 1: unknown plan version 2; this millpond reads 1");
    /// ```
    pub fn read(text: impl BufRead) -> Result<Self, ProgramPlanError> {
        let mut lines = Lines { text, number: 0, line: Vec::new() };
        let parts = parts(&mut lines)?;
        let lanes = parts.lanes.len();
        check(&parts).map_err(|defect| match defect.allocation {
            Some(index) => wrong(BEFORE_LANES + lanes + AFTER_LANES + index + 1, &defect.what),
            None => ProgramPlanError(defect.what),
        })?;
        Ok(Self(parts))
    }
}

fn wrong(line: usize, what: &str) -> ProgramPlanError {
    ProgramPlanError(format!("line {line}: {what}"))
}

struct Lines<R> {
    text: R,
    number: usize,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    fn wrong(&self, what: impl AsRef<str>) -> ProgramPlanError {
        wrong(self.number, what.as_ref())
    }

    /// Returns the next line without its line end; `None` at the end of the text.
    fn next(&mut self) -> Result<Option<&str>, ProgramPlanError> {
        self.number += 1;
        self.line.clear();
        let read = self.text.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| self.wrong(format!("cannot read the line: {error}")))?;
        if read == 0 {
            return Ok(None);
        }
        if self.line.pop() != Some(b'\n') {
            let is_long = read as u64 == LONGEST_LINE;
            return Err(self.wrong(if is_long {
                "the line is too long"
            } else {
                "the file is truncated here"
            }));
        }
        let line = str::from_utf8(&self.line);
        Ok(Some(line.map_err(|_| wrong(self.number, "the line is not UTF-8 text"))?))
    }

    /// Returns the value in the next line, which begins with `key`.
    fn field(&mut self, key: &str) -> Result<String, ProgramPlanError> {
        let found = self.next()?.map(|line| line.split_once(' ').filter(|(word, _)| *word == key));
        match found {
            Some(Some((_, value))) => Ok(value.to_owned()),
            Some(None) => Err(self.wrong(format!("the line should begin with `{key} `"))),
            None => Err(self.wrong(format!("the file ends before its line `{key}`"))),
        }
    }

    /// Returns the number in the next line, which begins with `key`.
    fn number(&mut self, key: &str) -> Result<u64, ProgramPlanError> {
        let value = self.field(key)?;
        number(&value).map_err(|what| self.wrong(what))
    }

    /// Returns the count in the next line, which begins with `key`. The count is at most `most`.
    fn count(&mut self, key: &str, most: usize) -> Result<usize, ProgramPlanError> {
        let value = self.number(key)?;
        let count = usize::try_from(value).ok().filter(|count| *count <= most);
        count.ok_or_else(|| self.wrong(format!("{value} {key} exceed the limit of {most}")))
    }
}

/// Reads a 64-bit number without a sign and without leading zeros.
fn number(text: &str) -> Result<u64, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let number = text.parse().ok().filter(|_| is_plain);
    number.ok_or_else(|| format!("`{}` is not a whole number of at most 64 bits", text.escape_debug()))
}

fn parts<R: BufRead>(lines: &mut Lines<R>) -> Result<PlanParts, ProgramPlanError> {
    let first = lines.next()?.and_then(|line| line.strip_prefix("millpond plan ")).map(str::to_owned);
    match first.as_deref() {
        Some(VERSION) => {}
        Some(version) => {
            let version = version.escape_debug();
            return Err(lines.wrong(format!("unknown plan version {version}; this millpond reads {VERSION}")));
        }
        None => return Err(lines.wrong("this is not a plan; a plan begins with `millpond plan 1`")),
    }
    let hash = lines.field("log")?;
    let log = log_hash(&hash).ok_or_else(|| {
        let hash = hash.escape_debug();
        lines.wrong(format!("`{hash}` is not a hash; a hash is `sha256:` and 64 hexadecimal digits"))
    })?;
    let alignment = lines.number("alignment")?;
    let mut lanes = Vec::new();
    for _ in 0..lines.count("streams", MOST_STREAMS)? {
        lanes.push(lines.number("lane")?);
    }
    let bound = lines.number("bound")?;
    let mut parts = PlanParts { log, alignment, lanes, bound, beside: 0, allocations: Vec::new() };
    let (ratio, expected) = (lines.field("ratio")?, format!("{:.5}", parts.ratio()));
    if ratio != expected {
        let ratio = ratio.escape_debug();
        return Err(
            lines.wrong(format!("the ratio is {ratio}, but the lanes divided by the bound are {expected}"))
        );
    }
    parts.beside = lines.number("beside")?;
    let count = lines.count("allocations", MOST_ALLOCATIONS)?;
    if lines.next()? != Some(COLUMNS) {
        return Err(lines.wrong(format!("the line should be `{COLUMNS}`")));
    }
    for index in 0..count {
        let Some(row) = lines.next()? else {
            return Err(lines.wrong(format!("the file ends after {index} of {count} allocations")));
        };
        let row = allocation(row);
        parts.allocations.push(row.map_err(|what| lines.wrong(what))?);
    }
    match lines.next()? {
        None => Ok(parts),
        Some(_) => Err(lines.wrong("the file continues after its last allocation")),
    }
}

fn log_hash(text: &str) -> Option<LogHash> {
    let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64)?.as_bytes();
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
        let digit = |letter: u8| match letter {
            b'0'..=b'9' => Some(letter - b'0'),
            b'a'..=b'f' => Some(letter - b'a' + 10),
            _ => None,
        };
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(LogHash(hash))
}

fn allocation(row: &str) -> Result<PlannedAllocation, String> {
    let fields: Vec<&str> = row.split(' ').collect();
    let [bytes, stream, life, offset] = fields[..] else {
        return Err(format!(
            "the line needs 4 words, as in `{COLUMNS}`, but the number of its words is {}",
            fields.len()
        ));
    };
    let slot = match (life, offset) {
        ("-", "-") => None,
        ("-", _) | (_, "-") => return Err("life and offset must both be `-`, or both be numbers".to_owned()),
        _ => {
            let life = u32::try_from(number(life)?).ok().and_then(|life| life.try_into().ok());
            let life = life.ok_or("life must be at least 1 and fit into 32 bits")?;
            Some(PlannedSlot { life, offset: number(offset)? })
        }
    };
    let stream = u32::try_from(number(stream)?).map_err(|_| format!("there is no stream {stream}"))?;
    Ok(PlannedAllocation { bytes: number(bytes)?, stream, slot })
}

/// Writes the plan in the format that [`read`](ProgramPlan::read) reads.
impl fmt::Display for ProgramPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts();
        let PlanParts { log, alignment, lanes, bound, beside, allocations } = parts;
        writeln!(f, "millpond plan {VERSION}")?;
        writeln!(f, "log {log}\nalignment {alignment}\nstreams {}", lanes.len())?;
        lanes.iter().try_for_each(|lane| writeln!(f, "lane {lane}"))?;
        writeln!(f, "bound {bound}\nratio {:.5}\nbeside {beside}", parts.ratio())?;
        writeln!(f, "allocations {}\n{COLUMNS}", allocations.len())?;
        allocations.iter().try_for_each(|PlannedAllocation { bytes, stream, slot }| match slot {
            Some(PlannedSlot { life, offset }) => writeln!(f, "{bytes} {stream} {life} {offset}"),
            None => writeln!(f, "{bytes} {stream} - -"),
        })
    }
}
