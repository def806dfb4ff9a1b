//! A row of a log. It can be read and written.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use millpond_core::{DeviceId, DevicePtr, Error, Result};
use serde::de::{self, Deserializer, Visitor};
use serde::ser::{self, SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};

use super::cells::{self, Digits};
use super::time_of_day::TimeOfDay;

/// The header of a log with RMM's columns.
pub const HEADER: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];

/// The header of a log with [`Columns::Extended`](super::Columns::Extended): RMM's columns and five more.
pub const EXTENDED_HEADER: [&str; 11] = [
    "Thread",
    "Time",
    "Action",
    "Pointer",
    "Size",
    "Stream",
    "Device",
    "Alignment",
    "Sequence",
    "MonotonicNs",
    "DurationNs",
];

/// One row of a log.
///
/// The crate `csv` reads and writes rows: use `Reader::deserialize` and `Writer::serialize` (without
/// headers). If a row comes from a log of RMM, the extended columns are `None`.
///
/// ```
/// use millpond_adaptors::logging::{Action, HEADER, Row};
///
/// let log = format!("{}\n140213,14:03:07.123456,free,0x7f3c20000000,1000,0x2\n", HEADER.join(","));
/// let mut reader = csv::Reader::from_reader(log.as_bytes());
/// let row: Row = reader.deserialize().next().unwrap()?;
/// assert_eq!((row.action, row.size, row.stream), (Action::Free, 1000, 2));
/// # Ok::<(), csv::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[non_exhaustive]
pub struct Row {
    /// The number that the operating system gives to the thread that made the logged call.
    pub thread: u64,
    /// The local time of day at which the row was written.
    #[serde(deserialize_with = "from_text")]
    pub time: TimeOfDay,
    /// The logged call and its outcome.
    #[serde(deserialize_with = "from_text")]
    pub action: Action,
    /// The address of the block. If there is no block, the log contains `(nil)`.
    #[serde(deserialize_with = "pointer_from_text")]
    pub pointer: DevicePtr,
    /// The requested size in bytes.
    pub size: u64,
    /// The raw handle of the stream.
    #[serde(deserialize_with = "stream_from_text")]
    pub stream: u64,
    /// The device of the memory. If it is `Some`, the extended columns are written.
    #[serde(default, deserialize_with = "device_from_text")]
    pub device: Option<DeviceId>,
    /// The requested alignment in bytes.
    #[serde(default)]
    pub alignment: Option<u64>,
    /// The number of the row, counted from 0.
    #[serde(default)]
    pub sequence: Option<u64>,
    /// The nanoseconds from the opening of the log to this row, on a monotonic clock.
    #[serde(default)]
    pub monotonic_ns: Option<u64>,
    /// The time that the upstream took for the allocation, in nanoseconds. A `free` has `None`, because the
    /// adaptor logs it before it calls the upstream.
    #[serde(default)]
    pub duration_ns: Option<u64>,
}

impl Row {
    /// Replaces the cells of `last` in `record` with the cells of this row. If the thread and the microsecond
    /// are the same, as in many consecutive rows, these cells stay.
    #[inline]
    pub(super) fn fill(&self, record: &mut csv::ByteRecord, last: Option<(u64, TimeOfDay)>) {
        let digits = &mut [0; 20];
        match last {
            Some(last) if last == (self.thread, self.time) => record.truncate(2),
            Some((thread, _)) if thread == self.thread => {
                record.truncate(1);
                record.push_field(&cells::time(self.time));
            }
            _ => {
                record.clear();
                record.push_field(cells::decimal(self.thread, digits));
                record.push_field(&cells::time(self.time));
            }
        }
        record.push_field(self.action.as_str().as_bytes());
        record.push_field(pointer_cell(self.pointer, digits));
        record.push_field(cells::decimal(self.size, digits));
        record.push_field(stream_cell(self.stream, digits));
        if let Some(device) = self.device {
            record.push_field(cells::device(device, digits));
            for number in [self.alignment, self.sequence, self.monotonic_ns, self.duration_ns] {
                record.push_field(number.map_or(b"", |number| cells::decimal(number, digits)));
            }
        }
    }
}

/// Serializes the cells of the row, as text.
impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let columns = if self.device.is_some() { EXTENDED_HEADER.len() } else { HEADER.len() };
        let digits = &mut [0; 20];
        let mut row = serializer.serialize_struct("Row", columns)?;
        row.serialize_field("Thread", &self.thread)?;
        row.serialize_field("Time", &self.time.to_string())?;
        row.serialize_field("Action", self.action.as_str())?;
        row.serialize_field("Pointer", text(pointer_cell(self.pointer, digits))?)?;
        row.serialize_field("Size", &self.size)?;
        row.serialize_field("Stream", text(stream_cell(self.stream, digits))?)?;
        if let Some(device) = self.device {
            row.serialize_field("Device", &device.to_string())?;
            row.serialize_field("Alignment", &self.alignment)?;
            row.serialize_field("Sequence", &self.sequence)?;
            row.serialize_field("MonotonicNs", &self.monotonic_ns)?;
            row.serialize_field("DurationNs", &self.duration_ns)?;
        }
        row.end()
    }
}

/// Formats a pointer as glibc's `%p` does, which RMM uses.
#[inline]
fn pointer_cell(pointer: DevicePtr, digits: &mut Digits) -> &[u8] {
    if pointer.is_null() { b"(nil)" } else { cells::hexadecimal(pointer.address(), digits) }
}

/// Formats a stream as [`StreamRef`](millpond_core::StreamRef) prints itself.
#[inline]
fn stream_cell(handle: u64, digits: &mut Digits) -> &[u8] {
    if handle == 0 { b"0" } else { cells::hexadecimal(handle, digits) }
}

fn text<E: ser::Error>(cell: &[u8]) -> Result<&str, E> {
    std::str::from_utf8(cell).map_err(E::custom)
}

/// The kind of call that a row records, and its outcome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Action {
    /// The upstream allocated a block: `allocate`.
    Allocate,
    /// The upstream refused a request: `allocate failure`.
    AllocateFailure,
    /// The program frees a block: `free`.
    Free,
}

impl Action {
    /// Returns the name of the action in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::AllocateFailure => "allocate failure",
            Self::Free => "free",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Action {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Allocate, Self::AllocateFailure, Self::Free]
            .into_iter()
            .find(|action| action.as_str() == text)
            .ok_or_else(|| {
                Error::invalid_argument(format!(
                    "`{text}` is not an action; write allocate, allocate failure or free"
                ))
            })
    }
}

struct Pointer(DevicePtr);

impl FromStr for Pointer {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let address = if text == "(nil)" { Some(0) } else { hexadecimal(text) };
        address.map(|address| Self(DevicePtr::new(address))).ok_or_else(|| {
            Error::invalid_argument(format!("`{text}` is not a pointer such as 0x7f3c20000000 or (nil)"))
        })
    }
}

struct Stream(u64);

impl FromStr for Stream {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let decimal = || text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        hexadecimal(text).or_else(decimal).map(Self).ok_or_else(|| {
            Error::invalid_argument(format!("`{text}` is not a stream such as 0, 0x2 or 0x55e8c0a1b2d0"))
        })
    }
}

struct Device(DeviceId);

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (kind, number) = text.split_once(':')?;
            DeviceId::of_kind(kind, number.parse().ok()?)
        };
        parse().map(Self).ok_or_else(|| {
            Error::invalid_argument(format!("`{text}` is not a device such as cuda:0 or sim:0"))
        })
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}

fn from_text<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err = Error>,
    D: Deserializer<'de>,
{
    struct Parse<T>(PhantomData<T>);

    impl<T: FromStr<Err = Error>> Visitor<'_> for Parse<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a cell of a log")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(|error: Error| E::custom(error.message()))
        }
    }

    deserializer.deserialize_str(Parse(PhantomData))
}

fn pointer_from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DevicePtr, D::Error> {
    from_text(deserializer).map(|Pointer(pointer)| pointer)
}

fn stream_from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    from_text(deserializer).map(|Stream(handle)| handle)
}

fn device_from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DeviceId>, D::Error> {
    struct Cell(Device);

    impl<'de> Deserialize<'de> for Cell {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            from_text(deserializer).map(Cell)
        }
    }

    Ok(Option::<Cell>::deserialize(deserializer)?.map(|Cell(Device(device))| device))
}
