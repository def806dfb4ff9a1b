//! The report of a resource that ran out of memory.

use std::fmt;

use crate::holder::{Holder, write_holders};
use crate::{DevicePtr, Layout, MemoryInfo, StreamRef, format_bytes};

/// The state of a resource when it had no memory for a request, and the remedies that would have helped.
///
/// It comes with an error ([`Error::out_of_memory_report`](crate::Error::out_of_memory_report)), is printed
/// with it, and is data: it can be decided on, and written with the feature `serde`. All sizes are in bytes.
/// It is true of the moment at which the request failed; other threads go on.
///
/// ```
/// use millpond_core::{Error, Layout, OutOfMemoryReport, Remedy, StreamRef};
/// let (layout, stream) = (Layout::new(3 << 20), StreamRef::LEGACY);
/// let mut report = OutOfMemoryReport::new(layout, stream);
/// report.short_bytes = Some(1 << 20);
/// report.remedies.push(Remedy::raise_maximum(1 << 20, true));
/// let error = Error::out_of_memory(layout, stream).with_report(report);
/// assert!(error.to_string().contains("it was 1MiB short"));
/// let report = error.out_of_memory_report().expect("it was added");
/// assert!(report.remedies.iter().any(|remedy| remedy.suffices));
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct OutOfMemoryReport {
    /// The size of the request in bytes.
    pub requested_bytes: u64,
    /// To what the block was to be aligned.
    pub alignment: u64,
    /// The raw handle of the stream that asked.
    pub stream: u64,
    /// Whether that stream was capturing a graph, during which a resource neither asks nor waits for others.
    pub is_capturing: bool,
    /// Whether no state of memory can serve the request: it is larger than any address space, than a limit,
    /// or than the blocks of the resource.
    #[cfg_attr(feature = "serde", serde(default))]
    pub is_impossible: bool,
    /// How many more bytes from upstream would have served the request; `None` if unknown.
    pub short_bytes: Option<u64>,
    /// Held from below: in use and free; 0 if the resource does not count its blocks.
    pub held_bytes: u64,
    /// In blocks that are handed out.
    pub live_bytes: u64,
    /// Blocks that are handed out.
    pub live_blocks: u64,
    /// The largest free block in bytes, of any stream.
    pub largest_free_block: u64,
    /// The most that the resource may hold, if that is limited.
    pub maximum_bytes: Option<u64>,
    /// The free memory of each stream.
    pub free: Vec<FreeMemory>,
    /// The device's memory, as the driver reported it.
    pub device: Option<MemoryInfo>,
    /// The host's memory, if the request was for memory of the host.
    #[cfg_attr(feature = "serde", serde(default))]
    pub host: Option<MemoryInfo>,
    /// The remedies that would have helped, the mildest first. Empty if the resource knows none.
    pub remedies: Vec<Remedy>,
    /// The held memory in the order of addresses, as letters: `#` in use, `+` partly, `.` free.
    pub map: Option<String>,
    /// The blocks in use, by the parts of the program that allocated them, those with most bytes first; where
    /// `tracking` is in the stack.
    pub holders: Vec<Holder>,
    /// The report of the resource below that refused memory to this one; its remedies are above.
    pub upstream: Option<Box<Self>>,
}

/// Free blocks of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FreeMemory {
    /// The stream's raw handle; `None` for what is free for any stream.
    pub stream: Option<u64>,
    /// Bytes in all of them.
    pub bytes: u64,
    /// How many there are.
    pub blocks: u64,
    /// The largest.
    pub largest_block: u64,
}

/// A block that is handed out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LiveBlock {
    /// Where it starts.
    pub address: u64,
    /// The requested size in bytes.
    pub bytes: u64,
}

/// A change that would have let the request succeed, computed from the state in which it failed. It is never
/// a step that the resource takes by itself before it fails (wait, synchronise, release, grow).
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Remedy {
    /// The change.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub action: RemedyAction,
    /// Whether this remedy alone is enough. If not, all such remedies of the report are needed together;
    /// [`RemedyAction::MapPages`] is never marked as enough, since the next run may place its blocks
    /// elsewhere.
    pub suffices: bool,
}

/// A change that would help a request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "action", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RemedyAction {
    /// Ask outside the capture: there the resource waits for this stream, which has a free block of
    /// `block_bytes`.
    WaitForStream {
        /// The stream's raw handle.
        stream: u64,
        /// The free block that fits.
        block_bytes: u64,
    },
    /// Ask outside the capture: there the resource synchronises, after which the `free_bytes` of all streams
    /// join.
    MergeStreams {
        /// The free bytes of all streams.
        free_bytes: u64,
    },
    /// Let the resource hold `bytes` more.
    RaiseMaximum {
        /// By how much.
        bytes: u64,
    },
    /// Free `bytes` of the device's memory that others hold: other resources, other processes.
    FreeDeviceMemory {
        /// How much.
        bytes: u64,
        /// The bytes that others hold.
        held_bytes: u64,
    },
    /// Give these blocks back, on the stream that asks or, outside a capture, on any.
    FreeBlocks {
        /// How many they are.
        number: u64,
        /// The requested bytes of all these blocks.
        bytes: u64,
        /// Each of them, by address; only the first thousand where they are more.
        blocks: Vec<LiveBlock>,
    },
    /// Build the pool with `pages=on`: it could have mapped these free pages, which lie apart, in a row.
    MapPages {
        /// How many pages.
        pages: u64,
        /// The bytes of a page.
        page_bytes: u64,
    },
}

impl Remedy {
    fn new(action: RemedyAction, suffices: bool) -> Self {
        Self { action, suffices }
    }

    /// [`RemedyAction::WaitForStream`], which suffices.
    pub fn wait_for_stream(stream: StreamRef, block_bytes: u64) -> Self {
        Self::new(RemedyAction::WaitForStream { stream: stream.handle(), block_bytes }, true)
    }

    /// [`RemedyAction::MergeStreams`], which suffices.
    pub fn merge_streams(free_bytes: u64) -> Self {
        Self::new(RemedyAction::MergeStreams { free_bytes }, true)
    }

    /// [`RemedyAction::RaiseMaximum`].
    pub fn raise_maximum(bytes: u64, suffices: bool) -> Self {
        Self::new(RemedyAction::RaiseMaximum { bytes }, suffices)
    }

    /// [`RemedyAction::FreeDeviceMemory`].
    pub fn free_device_memory(bytes: u64, held_bytes: u64, suffices: bool) -> Self {
        Self::new(RemedyAction::FreeDeviceMemory { bytes, held_bytes }, suffices)
    }

    /// [`RemedyAction::FreeBlocks`], which suffices.
    pub fn free_blocks(mut blocks: Vec<LiveBlock>) -> Self {
        const MOST: usize = 1000;
        blocks.sort_unstable();
        let (number, bytes) = (blocks.len() as u64, blocks.iter().map(|block| block.bytes).sum());
        blocks.truncate(MOST);
        blocks.shrink_to_fit();
        Self::new(RemedyAction::FreeBlocks { number, bytes, blocks }, true)
    }

    /// [`RemedyAction::MapPages`].
    pub fn map_pages(pages: u64, page_bytes: u64) -> Self {
        Self::new(RemedyAction::MapPages { pages, page_bytes }, false)
    }
}

impl OutOfMemoryReport {
    /// A report about this request that says nothing yet.
    pub fn new(layout: Layout, stream: StreamRef) -> Self {
        Self {
            requested_bytes: layout.bytes(),
            alignment: layout.alignment(),
            stream: stream.handle(),
            ..Self::default()
        }
    }

    /// The bytes that are held and not handed out.
    pub fn free_bytes(&self) -> u64 {
        self.held_bytes.saturating_sub(self.live_bytes)
    }

    /// Adds the device's memory, and by how much that is too little for the request.
    pub fn note_device(&mut self, device: Option<MemoryInfo>) {
        self.device = device;
        let Some(MemoryInfo { free, total }) = device else { return };
        let short = self.requested_bytes.saturating_sub(free);
        if short > 0 && self.requested_bytes <= total {
            self.short_bytes = Some(short);
            self.remedies.push(Remedy::free_device_memory(short, total.saturating_sub(free), false));
        }
    }

    /// Whether it says nothing but what device and host have, which a resource above finds out as well.
    pub fn is_of_driver(&self) -> bool {
        let only = Self { device: self.device, host: self.host, ..Self::default() };
        let asked = Self {
            requested_bytes: 0,
            alignment: 0,
            stream: 0,
            is_capturing: false,
            short_bytes: None,
            remedies: Vec::new(),
            ..self.clone()
        };
        asked == only
    }

    fn write_held(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut facts = Vec::new();
        if self.live_blocks == 0 && self.held_bytes == self.live_bytes && self.live_bytes > 0 {
            facts.push(format!("{} are in use", format_bytes(self.live_bytes)));
        } else if self.held_bytes > 0 || self.live_blocks > 0 {
            facts.push(format!(
                "it holds {}: {} in use in {}, {} free, at most {} in a row",
                format_bytes(self.held_bytes),
                format_bytes(self.live_bytes),
                counted(self.live_blocks, "block"),
                format_bytes(self.free_bytes()),
                format_bytes(self.largest_free_block)
            ));
        }
        facts.extend(self.maximum_bytes.map(|bytes| format!("its maximum is {}", format_bytes(bytes))));
        for (name, memory) in [("device", self.device), ("host", self.host)] {
            let has = |MemoryInfo { free, total }: MemoryInfo| {
                format!("the {name} has {} free of {}", format_bytes(free), format_bytes(total))
            };
            facts.extend(memory.map(has));
        }
        if !facts.is_empty() {
            write!(f, "\n  {}", facts.join("; "))?;
        }
        self.free.iter().try_for_each(|free| {
            match free.stream {
                Some(stream) => write!(f, "\n  free for stream {}", StreamName(stream))?,
                None => f.write_str("\n  free for any stream")?,
            }
            let (blocks, bytes) = (counted(free.blocks, "block"), format_bytes(free.bytes));
            write!(f, ": {bytes} in {blocks}, the largest {}", format_bytes(free.largest_block))
        })?;
        match &self.map {
            Some(map) => write!(f, "\n  [{map}] #: in use, +: partly, .: free"),
            None => Ok(()),
        }
    }

    fn write_remedies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (alone, others): (Vec<&Remedy>, Vec<&Remedy>) =
            self.remedies.iter().partition(|remedy| remedy.suffices);
        let (setups, together): (Vec<&Remedy>, Vec<&Remedy>) =
            others.into_iter().partition(|remedy| matches!(remedy.action, RemedyAction::MapPages { .. }));
        let mut list = |title: &str, remedies: &[&Remedy]| {
            if remedies.is_empty() {
                return Ok(());
            }
            write!(f, "\n  {title}:")?;
            remedies.iter().try_for_each(|remedy| write!(f, "\n  - {}", remedy.action))
        };
        list(
            if alone.len() > 1 { "any of these would have helped" } else { "this would have helped" },
            &alone,
        )?;
        list(
            if together.len() > 1 { "these would have helped together" } else { "this is needed" },
            &together,
        )?;
        list("this may help the next run", &setups)?;
        if !self.remedies.is_empty() {
            return Ok(());
        }
        match self.device {
            _ if self.is_impossible => f.write_str("\n  ask for less at a time"),
            Some(device) if device.total < self.requested_bytes && self.host.is_none() => {
                let total = format_bytes(device.total);
                write!(f, "\n  the device has {total} in all: ask for less at a time, or use managed memory")
            }
            _ => f.write_str("\n  nothing that can be seen from here would have helped"),
        }
    }
}

/// In several lines, the first of which goes on with the error's: how short it was, what would have helped,
/// and what is held.
impl fmt::Display for OutOfMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.short_bytes {
            Some(bytes) => write!(f, "it was {} short", format_bytes(bytes))?,
            None if self.is_impossible => f.write_str("no memory that is given back would help")?,
            None if self.is_capturing => {
                f.write_str("no block may be taken during the capture of a graph")?
            }
            None => f.write_str("no free block is large enough, and there is no more memory")?,
        }
        self.write_remedies(f)?;
        let mut level = Some(self);
        while let Some(report) = level {
            report.write_held(f)?;
            write_holders(f, &report.holders)?;
            level = report.upstream.as_deref();
            if let Some(upstream) = level {
                write!(f, "\n  below, where it asked for {}:", format_bytes(upstream.requested_bytes))?;
            }
        }
        Ok(())
    }
}

/// The most blocks that a message names; more would hide the rest.
const NAMED: usize = 4;

/// Prints the action as advice.
impl fmt::Display for RemedyAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitForStream { stream, block_bytes } => write!(
                f,
                "ask outside the capture and wait for stream {}, whose free block of {} fits",
                StreamName(*stream),
                format_bytes(*block_bytes)
            ),
            Self::MergeStreams { free_bytes } => write!(
                f,
                "ask outside the capture and merge the streams, of which {} are free",
                format_bytes(*free_bytes)
            ),
            Self::RaiseMaximum { bytes } => write!(f, "raise the maximum by {}", format_bytes(*bytes)),
            Self::FreeDeviceMemory { bytes, held_bytes } => write!(
                f,
                "trim or end what else is on the device: {} of the {} that others hold",
                format_bytes(*bytes),
                format_bytes(*held_bytes)
            ),
            Self::FreeBlocks { number, bytes, blocks } => {
                match number {
                    1 => f.write_str("give this block back:")?,
                    number => write!(f, "give {number} blocks back, {} in all:", format_bytes(*bytes))?,
                }
                for block in blocks.iter().take(NAMED) {
                    write!(f, " {} ({})", DevicePtr::new(block.address), format_bytes(block.bytes))?;
                }
                match number.saturating_sub(NAMED as u64) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            Self::MapPages { pages, page_bytes } => write!(
                f,
                "build the pool with pages=on, to remap {} of {} that lie free apart",
                counted(*pages, "page"),
                format_bytes(*page_bytes)
            ),
        }
    }
}

fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A stream as [`StreamRef`] prints it.
struct StreamName(u64);

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("0") } else { write!(f, "{:#x}", self.0) }
    }
}
