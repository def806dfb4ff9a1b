//! The report of a resource that ran out of memory.

use std::fmt;

use crate::format::counted;
use crate::holder::{Holder, write_holders};
use crate::{DevicePtr, FailureKind, Layout, MemoryInfo, StreamRef, format_bytes};

/// Describes why a resource could not serve a request: the resource's state, and the remedies that would have
/// helped.
///
/// [`Error::out_of_memory_report`](crate::Error::out_of_memory_report) returns the report of an error. The
/// text of the error includes the report. A program can also read the report's fields, or store the report
/// (with the feature `serde`). All sizes are in bytes. The report shows the moment at which the request
/// failed. Other threads may have allocated or freed memory since.
///
/// ```
/// use millpond_core::{Error, Layout, OutOfMemoryReport, Remedy, StreamRef};
/// let (layout, stream) = (Layout::new(3 << 20), StreamRef::LEGACY);
/// let mut report = OutOfMemoryReport::new(layout, stream);
/// report.short_bytes = Some(1 << 20);
/// report.remedies.push(Remedy::raise_maximum(1 << 20, true));
/// let error = Error::out_of_memory(layout, stream).with_report(report);
/// assert!(error.to_string().contains("1MiB more is needed"));
/// let report = error.out_of_memory_report().expect("it was added");
/// assert!(report.remedies.iter().any(|remedy| remedy.suffices));
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct OutOfMemoryReport {
    /// The size of the request in bytes.
    pub requested_bytes: u64,
    /// The requested alignment in bytes.
    pub alignment: u64,
    /// The raw handle of the requesting stream.
    pub stream: u64,
    /// What refused the request.
    #[cfg_attr(feature = "serde", serde(default))]
    pub kind: FailureKind,
    /// Whether the requesting stream was capturing a graph. During a capture, a resource neither queries
    /// other streams nor waits for them.
    pub is_capturing: bool,
    /// Whether the resource can never serve the request. Such a request exceeds the size of any address
    /// space, a limit of the resource, or the resource's largest block.
    #[cfg_attr(feature = "serde", serde(default))]
    pub is_impossible: bool,
    /// The number of bytes that were missing for the request; `None` if the number is unknown.
    pub short_bytes: Option<u64>,
    /// The bytes that the resource holds from upstream, live and free; 0 if the resource does not count them.
    pub held_bytes: u64,
    /// The bytes of the live blocks; 0 if the resource does not count them.
    pub live_bytes: u64,
    /// The number of live blocks; `None` if the resource does not count them, like `limiting` and `budget`,
    /// which count bytes only.
    pub live_blocks: Option<u64>,
    /// The size of the largest free block in bytes. The block may belong to any stream. `None` if the
    /// resource does not know its free blocks, like `cuda_async`, whose blocks the driver manages.
    pub largest_free_block: Option<u64>,
    /// The most bytes that the resource may hold; `None` if there is no limit.
    pub maximum_bytes: Option<u64>,
    /// The free memory of each stream.
    pub free: Vec<FreeMemory>,
    /// The memory of the device, as the driver reported it; `None` if the driver did not report it.
    pub device: Option<MemoryInfo>,
    /// The memory of the host, if the request was for host memory.
    #[cfg_attr(feature = "serde", serde(default))]
    pub host: Option<MemoryInfo>,
    /// The remedies that would have helped. The remedy that changes the program least comes first. Empty if
    /// the resource knows no remedy.
    pub remedies: Vec<Remedy>,
    /// A map of the memory that the resource holds, in the order of addresses. `#` is in use, `+` is partly
    /// in use, and `.` is free.
    pub map: Option<String>,
    /// The live blocks, in groups with the same tag and backtrace. The group with the most bytes comes first.
    /// Empty unless the stack contains `tracking`.
    pub holders: Vec<Holder>,
    /// The report of the upstream, if the upstream refused to give memory to this resource. The remedies of
    /// the upstream are listed in `remedies` of this report.
    pub upstream: Option<Box<Self>>,
}

/// The free blocks of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FreeMemory {
    /// The raw handle of the stream; `None` for memory that is free for any stream.
    pub stream: Option<u64>,
    /// The sum of the sizes of the free blocks, in bytes.
    pub bytes: u64,
    /// The number of free blocks.
    pub blocks: u64,
    /// The size of the largest free block in bytes.
    pub largest_block: u64,
}

impl FreeMemory {
    /// Describes `blocks` free blocks. The blocks are free for the stream with the raw handle `stream`, or
    /// for any stream. Sizes are in bytes.
    pub const fn new(stream: Option<u64>, bytes: u64, blocks: u64, largest_block: u64) -> Self {
        Self { stream, bytes, blocks, largest_block }
    }
}

/// A live block: its address and its size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(clippy::exhaustive_structs, reason = "an address and a size; `BlockInfo` says more")]
pub struct LiveBlock {
    /// The address at which the block starts.
    pub address: u64,
    /// The requested size in bytes.
    pub bytes: u64,
}

/// A change that would have let the request succeed. The resource computes the change from its state when the
/// request fails.
///
/// Before a request fails, the resource has already waited, synchronised, released memory, and grown as far
/// as its limits allow. So a remedy never repeats one of these actions.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Remedy {
    /// The change that would have helped.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub action: RemedyAction,
    /// Whether this remedy alone is enough. If `suffices` is `false`, the request also needs all other
    /// remedies of the report that have `false`.
    ///
    /// [`RemedyAction::MapPages`] is an exception: the other remedies are enough without it. Its `suffices`
    /// is always `false`, because it only helps the next run, which may place its blocks at other addresses.
    pub suffices: bool,
}

/// The change that a [`Remedy`] proposes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "action", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RemedyAction {
    /// Allocate outside the capture. The resource can then wait for this stream, which has a free block of
    /// `block_bytes`.
    WaitForStream {
        /// The raw handle of the stream.
        stream: u64,
        /// The size of the free block in bytes.
        block_bytes: u64,
    },
    /// Allocate outside the capture. The resource can then synchronise with the device, and merge the free
    /// blocks of all streams. Together these blocks have `free_bytes`.
    MergeStreams {
        /// The free bytes of all streams together.
        free_bytes: u64,
    },
    /// Raise the limit of the resource by `bytes`.
    RaiseMaximum {
        /// The number of bytes to add to the limit.
        bytes: u64,
    },
    /// Free `bytes` of the device memory that other resources or other processes hold.
    FreeDeviceMemory {
        /// The number of bytes to free.
        bytes: u64,
        /// The bytes that other resources and other processes hold.
        held_bytes: u64,
    },
    /// Free `bytes` of the device's memory in use. The resource does not count its own blocks, so the program
    /// itself may hold them.
    FreeUsedMemory {
        /// The bytes to free.
        bytes: u64,
        /// The bytes in use by this program and by others.
        used_bytes: u64,
    },
    /// Free these blocks. During a capture, free them on the requesting stream. Otherwise, free them on any
    /// stream.
    FreeBlocks {
        /// The number of blocks.
        number: u64,
        /// The sum of the requested sizes of all these blocks, in bytes.
        bytes: u64,
        /// The blocks, in the order of their addresses. If there are more than a thousand, only the first
        /// thousand are listed.
        blocks: Vec<LiveBlock>,
    },
    /// Build the pool with `pages=on`. Such a pool could have mapped the scattered free pages as one block.
    MapPages {
        /// The number of scattered free pages.
        pages: u64,
        /// The size of a page in bytes.
        page_bytes: u64,
    },
}

impl Remedy {
    fn new(action: RemedyAction, suffices: bool) -> Self {
        Self { action, suffices }
    }

    /// Creates a [`RemedyAction::WaitForStream`] that suffices.
    pub fn wait_for_stream(stream: StreamRef, block_bytes: u64) -> Self {
        Self::new(RemedyAction::WaitForStream { stream: stream.handle(), block_bytes }, true)
    }

    /// Creates a [`RemedyAction::MergeStreams`] that suffices.
    pub fn merge_streams(free_bytes: u64) -> Self {
        Self::new(RemedyAction::MergeStreams { free_bytes }, true)
    }

    /// Creates a [`RemedyAction::RaiseMaximum`].
    pub fn raise_maximum(bytes: u64, suffices: bool) -> Self {
        Self::new(RemedyAction::RaiseMaximum { bytes }, suffices)
    }

    /// Creates a [`RemedyAction::FreeDeviceMemory`].
    pub fn free_device_memory(bytes: u64, held_bytes: u64, suffices: bool) -> Self {
        Self::new(RemedyAction::FreeDeviceMemory { bytes, held_bytes }, suffices)
    }

    /// Creates a [`RemedyAction::FreeUsedMemory`] that does not suffice alone.
    pub fn free_used_memory(bytes: u64, used_bytes: u64) -> Self {
        Self::new(RemedyAction::FreeUsedMemory { bytes, used_bytes }, false)
    }

    /// Creates a [`RemedyAction::FreeBlocks`] that suffices.
    pub fn free_blocks(mut blocks: Vec<LiveBlock>) -> Self {
        const MOST: usize = 1000;
        blocks.sort_unstable();
        let (number, bytes) = (blocks.len() as u64, blocks.iter().map(|block| block.bytes).sum());
        blocks.truncate(MOST);
        blocks.shrink_to_fit();
        Self::new(RemedyAction::FreeBlocks { number, bytes, blocks }, true)
    }

    /// Creates a [`RemedyAction::MapPages`], which never suffices.
    pub fn map_pages(pages: u64, page_bytes: u64) -> Self {
        Self::new(RemedyAction::MapPages { pages, page_bytes }, false)
    }
}

impl OutOfMemoryReport {
    /// Creates a report about this request. The report contains no other facts yet.
    pub fn new(layout: Layout, stream: StreamRef) -> Self {
        Self {
            requested_bytes: layout.bytes(),
            alignment: layout.alignment(),
            stream: stream.handle(),
            ..Self::default()
        }
    }

    /// Returns what refused the request in the end: if the upstream refused to give memory to the resource,
    /// what refused it there.
    pub fn refused_by(&self) -> FailureKind {
        self.upstream.as_ref().map_or(self.kind, |upstream| upstream.refused_by())
    }

    /// Returns the number of free bytes among the bytes that the resource holds.
    pub fn free_bytes(&self) -> u64 {
        self.held_bytes.saturating_sub(self.live_bytes)
    }

    /// Adds the device's memory; set `held_bytes` first. If the device has too few free bytes for the
    /// request, also adds the number of missing bytes, and a remedy if others hold memory. If `held_bytes` is
    /// 0, the remedy is about all memory in use, because the resource may not count its own.
    pub fn note_device(&mut self, device: Option<MemoryInfo>) {
        self.device = device;
        let Some(MemoryInfo { free, total }) = device else { return };
        let short = self.requested_bytes.saturating_sub(free);
        if short > 0 && self.requested_bytes <= total {
            self.short_bytes = Some(short);
            let used = total.saturating_sub(free);
            let others = used.saturating_sub(self.held_bytes);
            match self.held_bytes {
                0 if used > 0 => self.remedies.push(Remedy::free_used_memory(short, used)),
                _ if others > 0 => self.remedies.push(Remedy::free_device_memory(short, others, false)),
                _ => {}
            }
        }
    }

    /// Returns whether the report contains only facts from the driver: the memory of the device and the host.
    /// Any layer can ask the driver for these facts, so a layer above can leave such a report out of
    /// its own.
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

    /// Whether the report says no more than the request.
    pub(crate) fn is_new(&self) -> bool {
        let (requested_bytes, alignment, stream) = (self.requested_bytes, self.alignment, self.stream);
        *self == Self { requested_bytes, alignment, stream, ..Self::default() }
    }

    fn write_held(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut facts = Vec::new();
        if self.live_blocks.is_none() && self.held_bytes == self.live_bytes && self.live_bytes > 0 {
            facts.push(format!("{} are in use", format_bytes(self.live_bytes)));
        } else if self.held_bytes > 0 || self.live_blocks.is_some_and(|blocks| blocks > 0) {
            let blocks = self.live_blocks.map(|blocks| format!(" in {}", counted(blocks, "block")));
            let largest = match self.largest_free_block {
                Some(bytes) => format!(", largest free block {}", format_bytes(bytes)),
                None if self.free_bytes() > 0 => ", largest free block unknown".to_owned(),
                None => String::new(),
            };
            facts.push(format!(
                "the resource holds {}: {} in use{}, {} free{largest}",
                format_bytes(self.held_bytes),
                format_bytes(self.live_bytes),
                blocks.unwrap_or_default(),
                format_bytes(self.free_bytes())
            ));
        }
        facts.extend(self.maximum_bytes.map(|bytes| format!("the maximum is {}", format_bytes(bytes))));
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

    /// Describes the shortage if the number of missing bytes is unknown.
    fn lack(&self) -> &'static str {
        match self.device.filter(|_| self.host.is_none() && self.held_bytes == 0) {
            Some(device) if device.total < self.requested_bytes => {
                "the request is larger than the device's memory"
            }
            Some(device) if device.free < self.requested_bytes => "the device has too little free memory",
            _ => "no free block is large enough, and there is no more memory",
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
            _ if self.is_impossible => f.write_str("\n  request less at a time"),
            Some(device) if device.total < self.requested_bytes && self.host.is_none() => {
                let total = format_bytes(device.total);
                write!(
                    f,
                    "\n  the device has {total} in all: request less at a time, or use managed memory if the \
                     device has it"
                )
            }
            _ => f.write_str("\n  no known remedy would have helped"),
        }
    }
}

/// Prints several lines for the end of an error's message: how many bytes were missing, then the remedies,
/// then the memory that the resource holds.
impl fmt::Display for OutOfMemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.short_bytes {
            Some(bytes) => write!(f, "{} more is needed", format_bytes(bytes))?,
            None if self.is_impossible => f.write_str("freeing memory would not help")?,
            None if self.is_capturing => f.write_str(
                "no free block is large enough, and the resource cannot wait for other streams while a graph \
                 is captured",
            )?,
            None => f.write_str(self.lack())?,
        }
        self.write_remedies(f)?;
        let mut level = Some(self);
        while let Some(report) = level {
            report.write_held(f)?;
            write_holders(f, &report.holders)?;
            level = report.upstream.as_deref();
            if let Some(upstream) = level {
                write!(
                    f,
                    "\n  the resource below, which refused a request for {}:",
                    format_bytes(upstream.requested_bytes)
                )?;
            }
        }
        Ok(())
    }
}

/// The most blocks that a message names, so that it stays readable.
const NAMED: usize = 4;

/// Prints the action as advice.
impl fmt::Display for RemedyAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitForStream { stream, block_bytes } => write!(
                f,
                "allocate outside the capture: the resource can then wait for stream {}, whose free block of \
                 {} fits",
                StreamName(*stream),
                format_bytes(*block_bytes)
            ),
            Self::MergeStreams { free_bytes } => write!(
                f,
                "allocate outside the capture: the resource can then merge the free memory of all streams, \
                 {} in all",
                format_bytes(*free_bytes)
            ),
            Self::RaiseMaximum { bytes } => write!(f, "raise the maximum by {}", format_bytes(*bytes)),
            Self::FreeDeviceMemory { bytes, held_bytes } => write!(
                f,
                "free {} of the {} of device memory that other resources or processes hold",
                format_bytes(*bytes),
                format_bytes(*held_bytes)
            ),
            Self::FreeUsedMemory { bytes, used_bytes } => write!(
                f,
                "free {} of the {} of device memory in use, by this program or by others",
                format_bytes(*bytes),
                format_bytes(*used_bytes)
            ),
            Self::FreeBlocks { number, bytes, blocks } => {
                match number {
                    1 => f.write_str("free this block:")?,
                    number => write!(f, "free {number} blocks, {} in all:", format_bytes(*bytes))?,
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
                "build the pool with pages=on, so that it can map {} of {}, which are free but scattered, as \
                 one block",
                counted(*pages, "page"),
                format_bytes(*page_bytes)
            ),
        }
    }
}

/// A stream as [`StreamRef`] prints it.
struct StreamName(u64);

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("0") } else { write!(f, "{:#x}", self.0) }
    }
}
