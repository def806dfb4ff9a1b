//! The memory of a whole stack at one moment.

use std::fmt;

use crate::driver::call;
use crate::{
    DeviceMemoryResource, DevicePtr, FreeMemory, Holder, MemoryInfo, ResourceStatistics, find::stack_of,
    format_bytes, holder::write_holders, provide::as_trait,
};

/// The memory of a stack, layer by layer: what is in use, what is free and for which stream, and what could
/// go back to the device. All sizes are in bytes.
///
/// [`DeviceMemoryResourceExt::memory_report`](crate::DeviceMemoryResourceExt::memory_report) makes it at any
/// time. It is text (`Display`), data (with the feature `serde`), and an event of `tracing`
/// ([`trace`](Self::trace)). While other threads allocate, its parts are of different moments.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MemoryReport {
    /// The stack as text.
    pub stack: String,
    /// The device.
    pub device: String,
    /// Free and total bytes of the device; `None` where the driver does not say.
    pub device_memory: Option<MemoryInfo>,
    /// The layers that know something, outermost first.
    pub layers: Vec<LayerMemory>,
}

/// What one layer of a stack knows about its memory. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LayerMemory {
    /// The layer's text, as `pool:max=1GiB`.
    pub layer: String,
    /// Its counts; `None` if it counts nothing by itself.
    pub statistics: Option<ResourceStatistics>,
    /// The largest block that it handed out so far.
    pub largest_allocation: Option<u64>,
    /// The most that it may hand out or hold.
    pub limit_bytes: Option<u64>,
    /// What counts against a limit that the layer keeps.
    pub limit_used_bytes: Option<u64>,
    /// What it could give back to the device now, without waiting.
    pub reclaimable_bytes: Option<u64>,
    /// What it could give back after a wait for all streams.
    pub reclaimable_after_sync_bytes: Option<u64>,
    /// Free bytes that threads cache, each for one of its streams.
    pub cached_bytes: Option<u64>,
    /// The other free memory, of each stream.
    pub free: Vec<FreeMemory>,
    /// The blocks in use, by the parts of the program that allocated them, those with most bytes first.
    pub holders: Vec<Holder>,
    /// The memory that belongs to captured graphs, by scope.
    pub scopes: Vec<ScopeMemory>,
}

/// The memory of one scope for captured graphs. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ScopeMemory {
    /// The scope's number.
    pub id: u64,
    /// The number of streams that are open in it.
    pub open_streams: usize,
    /// The blocks that are handed out.
    pub blocks: u64,
    /// The bytes of these, as asked for.
    pub bytes_in_use: u64,
    /// The bytes that it holds from upstream, which no other part of the program gets before its end.
    pub bytes_held: u64,
    /// Whether its owner has dropped it: it holds what is still handed out.
    pub has_ended: bool,
}

/// A block in use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BlockInfo {
    /// Where it starts.
    pub address: u64,
    /// The requested size in bytes.
    pub bytes: u64,
    /// The number of the allocation, from 0, if a layer counts them.
    pub sequence: Option<u64>,
    /// The raw handle of the stream that it was allocated on, if a layer remembers it.
    pub stream: Option<u64>,
    /// The tag that the thread had.
    pub tag: Option<String>,
    /// The backtrace of the allocation.
    pub backtrace: Option<String>,
    /// The number of the scope for captured graphs that it belongs to.
    pub scope: Option<u64>,
}

/// A layer that can say what it knows about its memory. It names the trait in
/// [`provide`](DeviceMemoryResource::provide).
pub trait ReportsMemory {
    /// What this layer knows; [`layer`](LayerMemory::layer) is filled in by the caller.
    fn layer_memory(&self) -> LayerMemory;

    /// The block in use that starts at `ptr`.
    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        let _ = ptr;
        None
    }

    /// Begins peaks and totals anew, from what is in use now.
    fn clear_counters(&self) {}
}

impl MemoryReport {
    pub(crate) fn of(resource: &dyn DeviceMemoryResource) -> Self {
        let layers = stack_of(resource).filter_map(|layer| {
            let known = as_trait::<dyn ReportsMemory>(layer)?.layer_memory();
            Some(LayerMemory { layer: text_of(layer), ..known })
        });
        let driver = resource.driver();
        Self {
            stack: resource.to_string(),
            device: driver.device().to_string(),
            layers: layers.collect(),
            device_memory: call(&**driver, |driver| driver.mem_get_info()).ok(),
        }
    }

    /// Emits the report as an event of `tracing`, at the level of information.
    pub fn trace(&self) {
        let outermost = self.layers.iter().find_map(|layer| layer.statistics).unwrap_or_default();
        tracing::info!(
            target: "millpond::report",
            stack = self.stack,
            device = self.device,
            bytes_in_use = outermost.bytes_in_use,
            bytes_reserved = outermost.bytes_reserved,
            largest_free_block = outermost.largest_free_block,
            fragmentation = outermost.fragmentation(),
            "{self}"
        );
    }
}

/// The last layer of a resource's text.
fn text_of(layer: &dyn DeviceMemoryResource) -> String {
    let whole = layer.to_string();
    let below = layer.upstream().map(ToString::to_string).unwrap_or_default();
    match whole.strip_prefix(&below).map(|own| own.trim_start_matches('+')) {
        Some(own) if !own.is_empty() => own.to_owned(),
        _ => whole,
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of `{}` on {}", self.stack, self.device)?;
        if let Some(MemoryInfo { free, total }) = self.device_memory {
            write!(f, ", which has {} free of {}", format_bytes(free), format_bytes(total))?;
        }
        self.layers.iter().try_for_each(|layer| write!(f, "\n{layer}"))
    }
}

impl fmt::Display for LayerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.layer)?;
        if let Some(known) = self.statistics {
            let (in_use, peak) = (format_bytes(known.bytes_in_use), format_bytes(known.peak_bytes_in_use));
            write!(f, " {in_use} in use in {} blocks, at most {peak} so far", known.blocks_in_use)?;
            if known.bytes_reserved > known.bytes_in_use {
                write!(
                    f,
                    "; {} held, {} free, at most {} in a row, {:.1} % fragmented",
                    format_bytes(known.bytes_reserved),
                    format_bytes(known.bytes_free()),
                    format_bytes(known.largest_free_block),
                    100.0 * known.fragmentation()
                )?;
            }
            if known.misuses > 0 {
                write!(f, "; {} wrong frees refused", known.misuses)?;
            }
        }
        let sizes = [
            ("largest block so far", self.largest_allocation),
            ("limit", self.limit_bytes),
            ("free in the caches of threads", self.cached_bytes),
            ("could go back now", self.reclaimable_bytes),
            ("could go back after waiting for all streams", self.reclaimable_after_sync_bytes),
        ];
        for (what, bytes) in sizes {
            if let Some(bytes) = bytes {
                write!(f, "\n  {what}: {}", format_bytes(bytes))?;
            }
        }
        for free in &self.free {
            let (bytes, largest) = (format_bytes(free.bytes), format_bytes(free.largest_block));
            match free.stream {
                Some(stream) => write!(f, "\n  free for stream {stream:#x}")?,
                None => f.write_str("\n  free for any stream")?,
            }
            write!(f, ": {bytes} in {} blocks, the largest {largest}", free.blocks)?;
        }
        for scope in &self.scopes {
            let (in_use, held) = (format_bytes(scope.bytes_in_use), format_bytes(scope.bytes_held));
            write!(f, "\n  scope {}: {in_use} in use in {} blocks, {held} held", scope.id, scope.blocks)?;
            match (scope.has_ended, scope.open_streams) {
                (true, _) => f.write_str("; it has ended")?,
                (false, 0) => {}
                (false, streams) => write!(f, "; open on {streams} streams")?,
            }
        }
        write_holders(f, &self.holders)
    }
}
