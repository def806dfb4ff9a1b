//! The memory of a whole stack at one moment.

use std::fmt;

use crate::driver::{Driver, DriverResult, call};
use crate::format::{counted, format_bytes};
use crate::{
    DeviceMemoryResource, DevicePtr, FailureCounts, FailureTally, FreeMemory, Holder, MemoryInfo, MemoryMap,
    ResourceStatistics, find::stack_of, holder::write_holders, provide::as_trait,
};

/// Reports the memory of a stack, layer by layer. For each layer, the report shows live memory, free memory
/// by stream, and memory that the layer could release to the device. All sizes are in bytes.
///
/// [`DeviceMemoryResourceExt::memory_report`](crate::DeviceMemoryResourceExt::memory_report) makes a report
/// at any time. A program can print the report (`Display`) or store it (with the feature `serde`).
/// [`trace`](Self::trace) emits the report as a `tracing` event. If other threads allocate while the report
/// is made, the numbers of different layers may come from different moments.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct MemoryReport {
    /// The text of the stack.
    pub stack: String,
    /// The device as text, for example `cuda:0`.
    pub device: String,
    /// The free and total bytes of the device; `None` if the driver does not report them, or if the device
    /// cannot access the stack's memory.
    pub device_memory: Option<MemoryInfo>,
    /// The free and total bytes of the host; `None` if the driver does not report them, or if the host cannot
    /// access the stack's memory.
    #[cfg_attr(feature = "serde", serde(default))]
    pub host_memory: Option<MemoryInfo>,
    /// The layers that report their memory, outermost first.
    pub layers: Vec<LayerMemory>,
}

/// The memory of one layer. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LayerMemory {
    /// The text of the layer, for example `pool:max=1GiB`.
    pub layer: String,
    /// The statistics of the layer; `None` if the layer keeps no statistics.
    pub statistics: Option<ResourceStatistics>,
    /// The requests that failed in the layer or below it; `None` if the layer does not count them.
    #[cfg_attr(feature = "serde", serde(default))]
    pub failures: Option<FailureCounts>,
    /// The size of the largest block that the layer has allocated so far.
    pub largest_allocation: Option<u64>,
    /// The most bytes that the layer may allocate or hold.
    pub limit_bytes: Option<u64>,
    /// The bytes that count against the layer's limit.
    pub limit_used_bytes: Option<u64>,
    /// The bytes that the layer could release to the device now, without waiting.
    pub reclaimable_bytes: Option<u64>,
    /// The bytes that the layer could release to the device after it has waited for all streams.
    pub reclaimable_after_sync_bytes: Option<u64>,
    /// Free bytes in the threads' caches. A thread can reuse these bytes only on the stream on which they
    /// were freed.
    pub cached_bytes: Option<u64>,
    /// The free memory by stream, without the memory in the caches of threads.
    pub free: Vec<FreeMemory>,
    /// The live blocks, in groups with the same tag and backtrace. The group with the most bytes comes first.
    pub holders: Vec<Holder>,
    /// The memory that belongs to captured graphs. The layer `capture_scopes` reports one entry for each
    /// scope.
    pub scopes: Vec<ScopeMemory>,
}

/// The memory of one capture scope. A capture scope keeps the memory of captured graphs separate from other
/// memory. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ScopeMemory {
    /// The number of the scope.
    pub id: u64,
    /// The number of streams whose requests the scope serves now.
    pub open_streams: usize,
    /// The number of live blocks.
    pub blocks: u64,
    /// The requested bytes of these blocks.
    pub bytes_in_use: u64,
    /// The bytes that the scope holds from upstream. No other request gets these bytes before the scope ends.
    pub bytes_held: u64,
    /// Whether the owner has dropped the scope. A dropped scope keeps only the memory of its live blocks.
    pub has_ended: bool,
}

/// The facts that the layers of a stack record about a live block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BlockInfo {
    /// The address at which the block starts.
    pub address: u64,
    /// The requested size in bytes.
    pub bytes: u64,
    /// The number of the allocation, counted from 0, if a layer counts allocations.
    pub sequence: Option<u64>,
    /// The raw handle of the stream on which the block was allocated, if a layer records the stream.
    pub stream: Option<u64>,
    /// The tag of the thread that allocated the block.
    pub tag: Option<String>,
    /// The backtrace of the allocation.
    pub backtrace: Option<String>,
    /// The number of the block's capture scope, if the block belongs to a captured graph.
    pub scope: Option<u64>,
}

/// A layer that reports its memory. The layer lists this trait in [`provide`](DeviceMemoryResource::provide).
pub trait ReportsMemory {
    /// Returns a report of this layer's memory. The caller of this method fills in
    /// [`layer`](LayerMemory::layer) and [`failures`](LayerMemory::failures).
    fn layer_memory(&self) -> LayerMemory;

    /// Returns the same report, but the lists `free`, `holders` and `scopes`, and figures that need a search,
    /// may be missing. A program that asks for figures again and again calls this method, so a layer whose
    /// [`layer_memory`](Self::layer_memory) takes long, or holds a lock for long, should implement it.
    fn layer_figures(&self) -> LayerMemory {
        self.layer_memory()
    }

    /// Returns the live block that starts at `ptr`; `None` if the layer does not record such a block.
    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        let _ = ptr;
        None
    }

    /// Returns every live block that the layer records, in any order; `None` if the layer records no blocks.
    fn live_blocks(&self) -> Option<Vec<BlockInfo>> {
        None
    }

    /// Returns the segments and blocks of this layer, without the layers below. Returns `None` if the layer
    /// does not record segments or blocks. [`MemoryMap`] explains how long this call may hold a lock.
    fn memory_map(&self) -> Option<MemoryMap> {
        None
    }

    /// Restarts the counters of the layer. Afterwards, the counters show the live blocks as if they had been
    /// allocated at this moment.
    fn clear_counters(&self) {}
}

impl MemoryReport {
    pub(crate) fn of(resource: &dyn DeviceMemoryResource) -> Self {
        let (driver, access) = (&**resource.driver(), resource.accessibility());
        let ask = |is_asked: bool, question: fn(&dyn Driver) -> DriverResult<MemoryInfo>| {
            if is_asked { call(driver, question).ok() } else { None }
        };
        let device_memory = ask(access.device, |driver| driver.mem_get_info());
        let host_memory = ask(access.host, |driver| driver.host_memory_info());
        Self { device_memory, host_memory, ..Self::of_layers(resource, |layer| layer.layer_memory()) }
    }

    /// Returns the report without lists, and without the memory of device and host.
    pub(crate) fn figures(resource: &dyn DeviceMemoryResource) -> Self {
        Self::of_layers(resource, |layer| layer.layer_figures())
    }

    /// Returns the report without the memory of device and host, for which the driver would have to be asked.
    pub(crate) fn of_layers(
        resource: &dyn DeviceMemoryResource,
        memory: impl Fn(&dyn ReportsMemory) -> LayerMemory,
    ) -> Self {
        let layers = stack_of(resource).filter_map(|layer| {
            let known = memory(as_trait::<dyn ReportsMemory>(layer)?);
            let failures = as_trait::<FailureTally>(layer).map(FailureTally::counts);
            Some(LayerMemory { layer: text_of(layer), failures, ..known })
        });
        Self {
            stack: resource.to_string(),
            device: resource.driver().device().to_string(),
            layers: layers.collect(),
            device_memory: None,
            host_memory: None,
        }
    }

    /// Emits the report as a `tracing` event at the level `INFO`.
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

/// Returns the text of the outermost layer alone.
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
        let has =
            |MemoryInfo { free, total }| format!("{} free of {}", format_bytes(free), format_bytes(total));
        match (self.device_memory.map(has), self.host_memory.map(has)) {
            (None, None) => {}
            (Some(device), None) => write!(f, ", which has {device}")?,
            (None, Some(host)) => write!(f, "; the host has {host}")?,
            (Some(device), Some(host)) => write!(f, ", which has {device}; the host has {host}")?,
        }
        self.layers.iter().try_for_each(|layer| write!(f, "\n{layer}"))
    }
}

impl fmt::Display for LayerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.layer)?;
        if let Some(known) = self.statistics {
            let (in_use, peak) = (format_bytes(known.bytes_in_use), format_bytes(known.peak_bytes_in_use));
            write!(f, " {in_use} in use in {}, peak {peak}", counted(known.blocks_in_use, "block"))?;
            if known.bytes_reserved > known.bytes_in_use {
                write!(
                    f,
                    "; {} reserved, {} free, largest free block {}, {:.1} % fragmented",
                    format_bytes(known.bytes_reserved),
                    format_bytes(known.bytes_free()),
                    format_bytes(known.largest_free_block),
                    100.0 * known.fragmentation()
                )?;
            }
            if known.misuses > 0 {
                write!(f, "; {} refused", counted(known.misuses, "wrong free"))?;
            }
        }
        if let Some(failures) = self.failures.filter(|failures| failures.total() > 0) {
            write!(f, "\n  failed: {}", counted(failures.total(), "request"))?;
        }
        if let Some(limit) = self.limit_bytes.map(format_bytes) {
            match self.limit_used_bytes.map(format_bytes) {
                Some(used) => write!(f, "\n  limit: {used} of {limit} in use")?,
                None => write!(f, "\n  limit: {limit}")?,
            }
        }
        let sizes = [
            ("largest block so far", self.largest_allocation),
            ("free in the caches of threads", self.cached_bytes),
            ("could be released now", self.reclaimable_bytes),
            ("could be released after waiting for all streams", self.reclaimable_after_sync_bytes),
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
            write!(f, ": {bytes} in {}, the largest {largest}", counted(free.blocks, "block"))?;
        }
        for scope in &self.scopes {
            let (in_use, held) = (format_bytes(scope.bytes_in_use), format_bytes(scope.bytes_held));
            let blocks = counted(scope.blocks, "block");
            write!(f, "\n  scope {}: {in_use} in use in {blocks}, {held} reserved", scope.id)?;
            match (scope.has_ended, scope.open_streams) {
                (true, _) => f.write_str("; the scope has ended")?,
                (false, 0) => {}
                (false, streams) => write!(f, "; open on {}", counted(streams as u64, "stream"))?,
            }
        }
        write_holders(f, &self.holders)
    }
}
