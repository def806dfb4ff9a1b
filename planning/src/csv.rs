//! Reads buffers from minimalloc's CSV, and writes the same rows with offsets.

use std::error::Error;
use std::fmt;
use std::io::Read;

use csv::{ReaderBuilder, StringRecord, Terminator, Trim, Writer};

use crate::problem::greatest_common_divisor;
use crate::{Block, Problem, ProblemError};

/// The rows of a CSV file in the format of minimalloc.
///
/// The header names the columns, in any order. `id` (or `buffer`, `buffer_id`), `lower` (or `begin`,
/// `start`), `upper` and `size` are required. A column `end` may replace `upper`. It contains the last
/// position at which the buffer is live. `alignment`, `hint`, `gaps`, `offset` and `stream` are optional.
/// Other columns are an error.
///
/// ```
/// use millpond_planning::{MinimallocCsv, Options, plan};
///
/// let csv = MinimallocCsv::parse("id,lower,upper,size\na,0,4,100\nb,1,2,300\n")?;
/// let plan = plan(&csv.problem()?, &Options::default());
/// assert_eq!(csv.with_offsets(&plan.offsets), "id,lower,upper,size,offset\na,0,4,100,0\nb,1,2,300,100\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinimallocCsv {
    header: StringRecord,
    rows: Vec<MinimallocRow>,
}

/// One buffer of a [`MinimallocCsv`].
///
/// ```
/// let csv = millpond_planning::MinimallocCsv::parse("id,start,end,size,gaps\nx,3,4,64,3-4\n")?;
/// let row = &csv.rows()[0];
/// assert_eq!((row.lower, row.upper, row.gaps[0].lower), (3, 5, 3));
/// # Ok::<(), millpond_planning::CsvError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinimallocRow {
    /// The name of the buffer.
    pub id: String,
    /// The first position at which the buffer is live.
    pub lower: u64,
    /// The first position at which the buffer is no longer live. It is one more than `end` in the file.
    pub upper: u64,
    /// The size of the buffer in bytes.
    pub size: u64,
    /// The alignment of the buffer's offset in bytes; 1 if the file has no alignments.
    pub alignment: u64,
    /// The buffer's stream; 0 if the file has no streams. minimalloc does not have this column.
    pub stream: u64,
    /// An offset that a solver should try first. It is read but not used.
    pub hint: Option<u64>,
    /// The offset of the buffer in the file, for example from another solver. Placement does not keep it.
    pub offset: Option<u64>,
    /// The times when the buffer is not used. Placement ignores them: the buffer stays live.
    pub gaps: Vec<Gap>,
    /// The fields of the row as in the file, without the offset.
    fields: StringRecord,
}

/// A time when a buffer or a part of it is not used.
///
/// ```
/// let csv = millpond_planning::MinimallocCsv::parse("id,lower,upper,size,gaps\nx,0,9,64,3-4 5-7@0:32\n")?;
/// let gaps = &csv.rows()[0].gaps;
/// assert_eq!(gaps[0].window, None);
/// assert_eq!((gaps[1].lower, gaps[1].upper, gaps[1].window), (5, 7, Some((0, 32))));
/// # Ok::<(), millpond_planning::CsvError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "minimalloc's format has no other part")]
pub struct Gap {
    /// The first position of the gap.
    pub lower: u64,
    /// The first position after the gap.
    pub upper: u64,
    /// The part of the buffer that stays in use during the gap, as a range of bytes (low, high); `None` if no
    /// part does.
    pub window: Option<(u64, u64)>,
}

/// The reason why a CSV file was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvError {
    /// The number of the line, counted from 1.
    pub line: usize,
    what: String,
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl Error for CsvError {}

impl CsvError {
    fn new(line: usize, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Id,
    Lower,
    Upper,
    End,
    Size,
    Alignment,
    Hint,
    Gaps,
    Offset,
    Stream,
}

impl Column {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "id" | "buffer" | "buffer_id" => Self::Id,
            "lower" | "begin" | "start" => Self::Lower,
            "upper" => Self::Upper,
            "end" => Self::End,
            "size" => Self::Size,
            "alignment" => Self::Alignment,
            "hint" => Self::Hint,
            "gaps" => Self::Gaps,
            "offset" => Self::Offset,
            "stream" => Self::Stream,
            _ => return None,
        })
    }

    fn is_same(self, other: Self) -> bool {
        let whole = |column| if column == Self::End { Self::Upper } else { column };
        whole(self) == whole(other)
    }
}

impl MinimallocCsv {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Returns an error about the first wrong line, with the reason. The reasons are: an unknown, missing or
    /// duplicate column; a field that is not a number; a buffer that does not end after its start; a gap
    /// outside of its buffer.
    pub fn parse(text: &str) -> Result<Self, CsvError> {
        let mut reader = ReaderBuilder::new();
        reader.has_headers(false).flexible(true).trim(Trim::All);
        // Each row ends with `\n`, and after a row, the reader's position is after this `\n`.
        reader.terminator(Terminator::Any(b'\n'));
        let mut reader = reader.from_reader(text.as_bytes().chain(&b"\n"[..]));
        let (mut fields, mut names) = (StringRecord::new(), None);
        let (mut columns, mut rows) = (Vec::new(), Vec::new());
        while reader.read_record(&mut fields).map_err(|error| CsvError::new(1, error.to_string()))? {
            let line = reader.position().line() as usize - 1;
            if fields.len() == 1 && fields[0].is_empty() {
                continue;
            }
            if names.is_none() {
                columns = self::columns(line, &fields)?;
            }
            let kept = fields.iter().zip(&columns).filter(|(_, column)| **column != Column::Offset);
            let kept: StringRecord = kept.map(|(field, _)| field).collect();
            match names {
                None => names = Some(kept),
                Some(_) => rows.push(MinimallocRow { fields: kept, ..row(line, &fields, &columns)? }),
            }
        }
        let empty = || CsvError::new(1, "the file is empty; its first line must name the columns");
        Ok(Self { header: names.ok_or_else(empty)?, rows })
    }

    /// Returns the buffers, in the order of the file.
    #[must_use]
    pub fn rows(&self) -> &[MinimallocRow] {
        &self.rows
    }

    /// Returns the least common multiple of all alignments.
    ///
    /// # Errors
    /// The least common multiple exceeds 64 bits.
    pub fn alignment(&self) -> Result<u64, ProblemError> {
        self.rows.iter().try_fold(1u64, |all, row| {
            let common = greatest_common_divisor(all, row.alignment);
            (all / common).checked_mul(row.alignment).ok_or(ProblemError::TooLarge)
        })
    }

    /// Returns the buffers as blocks. Gaps are ignored: each buffer is live from `lower` to `upper`.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let block = |row: &MinimallocRow| Block {
            birth: row.lower,
            death: row.upper,
            size: row.size,
            stream: row.stream,
        };
        self.rows.iter().map(block).collect()
    }

    /// Returns the [`blocks`](Self::blocks) as a problem in host order. Each block has the common
    /// [`alignment`](Self::alignment).
    ///
    /// # Errors
    /// Returns the errors of [`Problem::new`], for example if the alignment exceeds 64 bits.
    pub fn problem(&self) -> Result<Problem, ProblemError> {
        Problem::new(self.blocks(), self.alignment()?)
    }

    /// Returns the original rows, with `offset` as the last column. A row without an offset in `offsets` is
    /// left out.
    #[must_use]
    pub fn with_offsets(&self, offsets: &[u64]) -> String {
        let with = |fields: &StringRecord, last: &str| fields.iter().chain([last]).collect();
        let rows = self.rows.iter().zip(offsets).map(|(row, offset)| with(&row.fields, &offset.to_string()));
        written(std::iter::once(with(&self.header, "offset")).chain(rows))
    }
}

impl Problem {
    /// Returns the blocks as minimalloc's CSV, with the given offsets. The id of a block is its index in the
    /// problem.
    #[must_use]
    pub fn to_minimalloc_csv(&self, offsets: Option<&[u64]>) -> String {
        let mut header = vec!["id", "lower", "upper", "size", "alignment", "stream"];
        header.extend(offsets.map(|_| "offset"));
        let rows = self.blocks().iter().enumerate().map(|(id, block)| {
            let Block { birth, death, size, stream } = *block;
            let offset = offsets.and_then(|offsets| offsets.get(id).copied());
            let row = [id as u64, birth, death, size, self.alignment(), stream].into_iter().chain(offset);
            row.map(|number| number.to_string()).collect()
        });
        let header = header.into_iter().map(str::to_owned).collect();
        written(std::iter::once(header).chain(rows))
    }
}

/// Returns rows as text.
fn written(rows: impl Iterator<Item = StringRecord>) -> String {
    let mut text = Writer::from_writer(Vec::new());
    // Writing to memory cannot fail, and strings stay valid UTF-8.
    rows.for_each(|row| drop(text.write_record(&row)));
    String::from_utf8(text.into_inner().unwrap_or_default()).unwrap_or_default()
}

fn columns(number: usize, header: &StringRecord) -> Result<Vec<Column>, CsvError> {
    let mut columns: Vec<Column> = Vec::new();
    for name in header {
        let column =
            Column::named(name).ok_or_else(|| CsvError::new(number, format!("unknown column `{name}`")))?;
        if columns.iter().any(|other| other.is_same(column)) {
            return Err(CsvError::new(number, format!("the column `{name}` appears twice")));
        }
        columns.push(column);
    }
    let needed =
        [(Column::Id, "id"), (Column::Lower, "lower"), (Column::Upper, "upper"), (Column::Size, "size")];
    for (column, name) in needed {
        if !columns.iter().any(|other| other.is_same(column)) {
            return Err(CsvError::new(number, format!("the column `{name}` is missing")));
        }
    }
    Ok(columns)
}

fn row(line: usize, fields: &StringRecord, columns: &[Column]) -> Result<MinimallocRow, CsvError> {
    let mut row = MinimallocRow {
        id: String::new(),
        lower: 0,
        upper: 0,
        size: 0,
        alignment: 1,
        stream: 0,
        hint: None,
        offset: None,
        gaps: Vec::new(),
        fields: StringRecord::new(),
    };
    if fields.len() != columns.len() {
        let noun = if fields.len() == 1 { "field" } else { "fields" };
        let what =
            format!("the row has {} {noun}, but the header has {} columns", fields.len(), columns.len());
        return Err(CsvError::new(line, what));
    }
    for (field, &column) in fields.iter().zip(columns) {
        match column {
            Column::Id => row.id = field.to_owned(),
            Column::Lower => row.lower = number(line, "lower", field)?,
            Column::Upper => row.upper = number(line, "upper", field)?,
            Column::End => {
                let last = number(line, "end", field)?;
                let upper = last.checked_add(1);
                row.upper = upper.ok_or_else(|| {
                    CsvError::new(line, "the position after `end` does not fit into 64 bits")
                })?;
            }
            Column::Size => row.size = number(line, "size", field)?,
            Column::Alignment => row.alignment = optional(line, "alignment", field)?.unwrap_or(1),
            Column::Stream => row.stream = number(line, "stream", field)?,
            Column::Hint => row.hint = optional(line, "hint", field)?,
            Column::Offset => row.offset = optional(line, "offset", field)?,
            Column::Gaps => row.gaps = gaps(line, field)?,
        }
    }
    if row.upper <= row.lower {
        let what =
            format!("the buffer begins at {} but ends at {}, which is not later", row.lower, row.upper);
        return Err(CsvError::new(line, what));
    }
    if row.alignment == 0 {
        return Err(CsvError::new(line, "the alignment is 0; write 1 for no alignment"));
    }
    if let Some(gap) = row.gaps.iter().find(|gap| gap.lower < row.lower || gap.upper > row.upper) {
        let what = format!("the gap {}-{} is not within the buffer's lifetime", gap.lower, gap.upper);
        return Err(CsvError::new(line, what));
    }
    Ok(row)
}

fn number(line: usize, column: &str, field: &str) -> Result<u64, CsvError> {
    field.parse().map_err(|_| {
        CsvError::new(
            line,
            format!("`{field}` in column `{column}` is not a whole number of at most 64 bits"),
        )
    })
}

/// Reads a field that may be empty. minimalloc writes -1 for an absent value.
fn optional(line: usize, column: &str, field: &str) -> Result<Option<u64>, CsvError> {
    if field.is_empty() || field == "-1" { Ok(None) } else { number(line, column, field).map(Some) }
}

fn gaps(line: usize, field: &str) -> Result<Vec<Gap>, CsvError> {
    let wrong = |gap: &str| {
        CsvError::new(line, format!("`{gap}` in column `gaps` is not of the form 3-5 or 3-5@0:64"))
    };
    let pair = |text: &str, mark| {
        let (low, high) = text.split_once(mark)?;
        let (low, high): (u64, u64) = (low.parse().ok()?, high.parse().ok()?);
        (low < high).then_some((low, high))
    };
    let mut gaps = Vec::new();
    for gap in field.split_whitespace() {
        let (time, window) = gap.split_once('@').map_or((gap, None), |(time, part)| (time, Some(part)));
        let (lower, upper) = pair(time, '-').ok_or_else(|| wrong(gap))?;
        let window = match window {
            None => None,
            Some(part) => Some(pair(part, ':').ok_or_else(|| wrong(gap))?),
        };
        gaps.push(Gap { lower, upper, window });
    }
    Ok(gaps)
}
