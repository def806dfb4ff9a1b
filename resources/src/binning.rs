//! Passes each request to the resource for its range of sizes.

mod direct;

use std::fmt;
use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind, LayerSpec, Params, Piece, ReadStack, Value};
use millpond_core::{
    ALLOCATION_ALIGNMENT, Accessibility, AnyResource, ByteSize, DeviceMemoryResource,
    DeviceMemoryResourceExt, DevicePtr, DriverHandle, Error, FailureTally, Layer, LayerMemory, Layout,
    LiveBlock, MemoryInfo, MemoryMap, OthersBelow, Remedy, RemedyAction, ReportsMemory, ResourceStatistics,
    Result, Stack, StreamRef, Traits, align_up, is_same, misuse, parse_block_bytes,
};

use crate::binning::direct::Direct;
use crate::debug_as_text::debug_as_text;
use crate::upstream::Returned;
use crate::{FixedSizeMemoryResource, FixedSizeOptions};
use millpond_core::driver::is_capturing;
use millpond_core::trim_upstream;

/// Builds `binning` from text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "binning",
    about: "serves some sizes with fixed-size blocks, and the rest from upstream",
    params: &[
        ("min", "the smallest bin serves up to 2^min bytes (default 18)"),
        ("max", "the largest bin serves up to 2^max bytes (default 22)"),
        (
            "bins",
            "the bins' sizes, as in 4KiB/64KiB/1MiB, or none (default: the sizes from min to max); a bin may \
             allocate from a stack: 1MiB(cuda+pool)",
        ),
    ],
    kind: LayerKind::ReadLayer(|params| {
        let bins = match params.value("bins") {
            Some(_) if params.value("min").or(params.value("max")).is_some() => {
                return Err(Error::invalid_stack(
                    "`binning` takes bins, or min and max, but not both; leave one out",
                ));
            }
            Some(bins) => read_bins(bins, params)?,
            None => {
                let exponents = (params.get("min")?.unwrap_or(18), params.get("max")?.unwrap_or(22));
                let layer = BinningLayer::new().exponents(exponents.0, exponents.1);
                layer.into_bins()?.into_iter().map(|(bytes, _)| (bytes, None)).collect()
            }
        };
        let sizes_only = bins.iter().fold(BinningLayer::new(), |layer, (bytes, _)| layer.add_bin(*bytes));
        sizes_only.into_bins()?;
        Ok(Box::new(move |upstream, building| {
            let mut layer = BinningLayer::new();
            for (bytes, stack) in bins {
                let resource = stack.map(|stack| stack.build(upstream.driver(), building)).transpose()?;
                layer.bins.push((bytes, resource));
            }
            Ok(Arc::new(layer.layer(upstream)?))
        }))
    }),
};

/// The text of `bins=` for no bins.
const NO_BINS: &str = "none";

/// Reads the value of `bins=`: sizes separated by `/`, each followed by its stack if it has one.
fn read_bins<'a>(bins: &'a Value, params: &Params<'a>) -> Result<Vec<(u64, Option<ReadStack<'a>>)>> {
    let mut read: Vec<(u64, Option<ReadStack<'a>>)> = Vec::new();
    if bins.as_text() == Some(NO_BINS) {
        return Ok(read);
    }
    let wrong = |why: &str| Error::invalid_stack(format!("`bins={bins}` of `binning`: {why}"));
    let mut follows_stack = false;
    for piece in bins.pieces() {
        match piece {
            Piece::Text(text) => {
                let sizes = if follows_stack { text.trim().strip_prefix('/') } else { Some(&**text) };
                let sizes = sizes.ok_or_else(|| wrong("a `/` is missing after a stack"))?;
                for size in sizes.split('/') {
                    read.push((parse_block_bytes(size).map_err(|error| wrong(error.message()))?, None));
                }
            }
            Piece::Stack(stack) => {
                let bin = read.last_mut().filter(|(_, stack)| stack.is_none());
                let (_, of_bin) = bin.ok_or_else(|| wrong("a stack must follow the size of its bin"))?;
                *of_bin = Some(params.read(stack)?);
            }
        }
        follows_stack = matches!(piece, Piece::Stack(_));
    }
    Ok(read)
}

/// Puts a [`BinningMemoryResource`] on top of a resource.
///
#[doc = include_str!("../layers/binning.md")]
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct BinningLayer {
    bins: Vec<(u64, Option<AnyResource>)>,
    exponents: Option<(u32, u32)>,
}

impl BinningLayer {
    /// Creates a layer without bins. Without bins, every request goes to the upstream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a bin of fixed-size blocks. The bin allocates its memory from the upstream. It serves requests of
    /// up to `bytes` bytes that are too large for the next smaller bin.
    pub fn add_bin(mut self, bytes: u64) -> Self {
        self.bins.push((bytes, None));
        self
    }

    /// Adds a bin that allocates its blocks from `resource`. The bin serves requests of up to `bytes` bytes
    /// that are too large for the next smaller bin.
    pub fn add_bin_with(mut self, bytes: u64, resource: AnyResource) -> Self {
        self.bins.push((bytes, Some(resource)));
        self
    }

    /// Adds a bin of 2^i bytes for each i from `min` to `max`. Both limits are included.
    pub fn exponents(mut self, min: u32, max: u32) -> Self {
        self.exponents = Some((min, max));
        self
    }

    /// Returns all bins, the smallest first.
    fn into_bins(mut self) -> Result<Vec<(u64, Option<AnyResource>)>> {
        if let Some((min, max)) = self.exponents {
            if min > max || max > 40 {
                return Err(Error::invalid_argument(format!(
                    "there are no bins from 2^{min} to 2^{max} bytes: min must be at most max, and max must \
                     be at most 40; write for example min=18,max=22"
                )));
            }
            self.bins.extend((min..=max).map(|exponent| (1 << exponent, None)));
        }
        for (bytes, _) in &mut self.bins {
            let rounded = align_up(*bytes, ALLOCATION_ALIGNMENT).filter(|rounded| *rounded > 0);
            *bytes = rounded.ok_or_else(|| {
                Error::invalid_argument(format!("a bin cannot have {bytes} bytes; write for example 64KiB"))
            })?;
        }
        self.bins.sort_by_key(|(bytes, _)| *bytes);
        match self.bins.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(Error::invalid_argument(format!(
                "there are two bins of {} bytes; leave one out",
                pair[0].0
            ))),
            None => Ok(self.bins),
        }
    }
}

impl<R: DeviceMemoryResource> Layer<R> for BinningLayer {
    type Resource = BinningMemoryResource<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        let upstream = Arc::new(upstream);
        let bins = self.into_bins()?.into_iter().map(|(bytes, resource)| {
            let source = match resource {
                Some(other) if other.device() != upstream.device() => {
                    return Err(Error::invalid_argument(format!(
                        "the bin of {bytes} bytes allocates on {}, but upstream on {}; use resources of one \
                         device",
                        other.device(),
                        upstream.device()
                    )));
                }
                Some(other) => Source::Given(other),
                None => {
                    let options = FixedSizeOptions { block_bytes: bytes, ..Default::default() };
                    Source::Blocks(Box::new(FixedSizeMemoryResource::new(Arc::clone(&upstream), options)?))
                }
            };
            Ok(Bin { bytes, source })
        });
        let bins = bins.collect::<Result<_>>()?;
        let is_counted = upstream.statistics().is_some_and(|known| !known.knows_only_misuses());
        Ok(BinningMemoryResource {
            upstream,
            bins,
            direct: (!is_counted).then(Direct::default),
            failures: FailureTally::default(),
        })
    }
}

#[derive(Debug)]
struct Bin<R: DeviceMemoryResource> {
    bytes: u64,
    source: Source<R>,
}

#[derive(Debug)]
enum Source<R: DeviceMemoryResource> {
    Blocks(Box<FixedSizeMemoryResource<Arc<R>>>),
    Given(AnyResource),
}

impl<R: DeviceMemoryResource> Bin<R> {
    fn resource(&self) -> &dyn DeviceMemoryResource {
        match &self.source {
            Source::Blocks(blocks) => &**blocks,
            Source::Given(other) => &**other,
        }
    }
}

/// Divides requests by their size between several bins and the upstream. A bin is a resource for requests up
/// to a certain size. Each request goes to the smallest bin that is large enough. If no bin is large enough,
/// the request goes to the upstream.
///
/// The bins never change after the resource is built. So a block always returns to the resource that
/// allocated it. A bin of fixed-size blocks allocates a few blocks at first, and more when requests need
/// them. Requests that are aligned to more than 256 bytes go to the upstream.
///
/// ```
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{BinningLayer, CudaMemoryResource, PoolLayer};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stack = CudaMemoryResource::new(device)
///     .layer(PoolLayer::new())?
///     .layer(BinningLayer::new().add_bin(64 << 10).add_bin(1 << 20))?;
/// assert_eq!(stack.to_string(), "cuda+pool+binning:bins=64KiB/1MiB");
/// assert!(stack.allocate_bytes(100 << 20, StreamRef::LEGACY).is_ok()); // from the pool
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct BinningMemoryResource<R: DeviceMemoryResource> {
    // Dropped before upstream, where their blocks came from.
    bins: Vec<Bin<R>>,
    upstream: Arc<R>,
    /// Counts the requests that upstream serves, if upstream keeps no statistics.
    direct: Option<Direct>,
    failures: FailureTally,
}

impl<R: DeviceMemoryResource> BinningMemoryResource<R> {
    /// Returns the bins, smallest first. For each bin, returns the largest request in bytes that the bin
    /// serves, and the resource of the bin.
    pub fn bins(&self) -> impl Iterator<Item = (u64, &dyn DeviceMemoryResource)> {
        self.bins.iter().map(|bin| (bin.bytes, bin.resource()))
    }

    /// Returns the bins, smallest first. For each bin, returns the largest request in bytes that the bin
    /// serves, and the resource that was passed to [`add_bin_with`](BinningLayer::add_bin_with). A bin of
    /// fixed-size blocks has `None` here.
    pub fn given(&self) -> impl Iterator<Item = (u64, Option<&AnyResource>)> {
        self.bins.iter().map(|bin| match &bin.source {
            Source::Blocks(_) => (bin.bytes, None),
            Source::Given(resource) => (bin.bytes, Some(resource)),
        })
    }

    /// Returns the bins' free regions to upstream, for a request on a stream if there is one.
    fn release_regions(&self, request: Option<StreamRef>) -> Returned {
        let blocks = self.bins.iter().filter_map(|bin| match &bin.source {
            Source::Blocks(blocks) => Some(blocks.pool().release_regions(request)),
            Source::Given(_) => None,
        });
        let returned: Returned = blocks.collect();
        let bytes = returned.bytes;
        tracing::debug!(target: "millpond::pool", stack = %self, bytes, "bins returned memory to upstream");
        returned
    }

    /// Replaces the bins' regions in an upstream's report by the callers' blocks in them.
    fn name_callers_blocks(&self, mut error: Error) -> Error {
        let Some(mut report) = error.take_out_of_memory_report() else { return error };
        let bins = || {
            self.bins.iter().filter_map(|bin| match &bin.source {
                Source::Blocks(blocks) => Some(blocks),
                Source::Given(_) => None,
            })
        };
        let is_capturing = report.is_capturing;
        let named = std::mem::take(&mut report.remedies).into_iter().filter_map(|remedy| {
            let RemedyAction::FreeBlocks { number, bytes, blocks } = &remedy.action else {
                return Some(remedy);
            };
            if *number != blocks.len() as u64 {
                return Some(remedy);
            }
            let of_callers = |block: &LiveBlock| {
                bins().find_map(|bin| bin.pool().live_in(block.address)).unwrap_or(vec![*block])
            };
            let of_callers: Vec<LiveBlock> = blocks.iter().flat_map(of_callers).collect();
            // If callers have no blocks there, the bins return the regions as soon as they may wait for their
            // streams.
            match of_callers.is_empty() {
                true => is_capturing.then(|| Remedy::merge_streams(*bytes)),
                false => Some(Remedy::free_blocks(of_callers)),
            }
        });
        report.remedies = named.collect();
        error.with_report(report)
    }

    /// Returns the bin that serves a request; `None` if upstream does.
    fn bin(&self, layout: Layout) -> Option<&Bin<R>> {
        let index = self.bins.partition_point(|bin| bin.bytes < layout.bytes());
        self.bins.get(index).filter(|_| layout.alignment() <= ALLOCATION_ALIGNMENT)
    }

    /// Returns the counters for a request that neither a bin nor upstream counts.
    fn counter(&self, layout: Layout) -> Option<&Direct> {
        self.direct.as_ref().filter(|_| self.bin(layout).is_none())
    }

    fn serve(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let resource = self.serving(layout);
        let mut refused = match resource.allocate(layout, stream) {
            Err(error) if error.is_out_of_memory() && !error.is_impossible() => error,
            other => return other,
        };
        let explain =
            |error| if self.bin(layout).is_none() { self.name_callers_blocks(error) } else { error };
        // Other bins may hold the missing memory, and so may the resource that serves other sizes.
        let of_bins = || self.release_regions(Some(stream));
        let of_others = || self.trim_others(resource, stream);
        for make_room in [&of_bins as &dyn Fn() -> Returned, &of_others] {
            let Returned { bytes, error } = make_room();
            if let Some(error) = error.filter(Error::is_sticky) {
                return Err(error);
            }
            if bytes > 0 {
                match resource.allocate(layout, stream) {
                    Err(again) if again.is_out_of_memory() => refused = again,
                    other => return other,
                }
            }
        }
        Err(explain(refused))
    }

    /// Trims all resources except the one that serves a request. A trim may wait, so it does nothing for a
    /// stream that captures a graph.
    fn trim_others(&self, serving: &dyn DeviceMemoryResource, stream: StreamRef) -> Returned {
        if !matches!(is_capturing(&**self.driver(), stream), Ok(false)) {
            return Returned::default();
        }
        let of_bins = self.bins.iter().filter_map(|bin| match &bin.source {
            Source::Blocks(_) => None,
            Source::Given(other) => Some(&**other as &dyn DeviceMemoryResource),
        });
        let others = of_bins.chain([&*self.upstream as &dyn DeviceMemoryResource]);
        let others = others.filter(|other| !std::ptr::addr_eq(*other, serving));
        others.map(|other| other.trim(0)).collect()
    }

    fn serving(&self, layout: Layout) -> &dyn DeviceMemoryResource {
        self.bin(layout).map_or(&*self.upstream as &dyn DeviceMemoryResource, Bin::resource)
    }
}

impl<R: DeviceMemoryResource> fmt::Display for BinningMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pieces = Vec::new();
        for bin in &self.bins {
            let separator = if pieces.is_empty() { "" } else { "/" };
            pieces.push(Piece::Text(format!("{separator}{}", ByteSize::Bytes(bin.bytes))));
            if let Source::Given(other) = &bin.source {
                let text = other.to_string();
                // Text cannot build a resource that does not print a stack.
                pieces.push(text.parse().map_or(Piece::Text(text), Piece::Stack));
            }
        }
        if pieces.is_empty() {
            pieces.push(Piece::Text(NO_BINS.to_owned()));
        }
        write!(f, "{}+{}", self.upstream, LayerSpec::new(ENTRY.name).with("bins", Value::from_iter(pieces)))
    }
}

debug_as_text!(BinningMemoryResource<R: DeviceMemoryResource>);

// SAFETY: each block returns to the resource that it came from, since the bins do not change. All resources
// keep the contract, over disjoint memory: the bins' regions are blocks of upstream.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for BinningMemoryResource<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let served = self.serve(layout, stream);
        if let Some(direct) = self.counter(layout) {
            match &served {
                Ok(_) => direct.allocated(layout.bytes()),
                Err(_) => direct.failed(),
            }
        }
        served.map_err(|error| self.failures.noted(error).in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        if !ptr.is_null() {
            // SAFETY: the caller's promises; the same layout leads to the same resource.
            let free = || unsafe { self.serving(layout).deallocate(ptr, layout, stream) };
            misuse::if_taken(ptr, free, || {
                if let Some(direct) = self.counter(layout) {
                    direct.deallocated(layout.bytes());
                }
            });
        }
    }

    fn driver(&self) -> &DriverHandle {
        self.upstream.driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(&*self.upstream)
    }

    /// Returns the upstream's memory. `free` also counts free bytes in bins, because trimming returns them to
    /// the upstream.
    fn memory_info(&self) -> Result<MemoryInfo> {
        let MemoryInfo { free, total } = self.upstream.memory_info()?;
        let binned = self.bins.iter().filter_map(|bin| bin.resource().statistics());
        let binned: u64 = binned.map(|statistics| statistics.bytes_free()).sum();
        Ok(MemoryInfo { free: (free + binned).min(total), total })
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn accessibility(&self) -> Accessibility {
        self.bins
            .iter()
            .map(|bin| bin.resource().accessibility())
            .fold(self.upstream.accessibility(), Accessibility::and)
    }

    /// Returns the upstream's statistics, with the misuses of the bins added.
    /// [`bins`](BinningMemoryResource::bins) gives access to the statistics of each bin. If the upstream
    /// keeps no statistics, returns the sum over the bins and the requests that the upstream serves. The
    /// peaks in this sum are sums of peaks, so the true peaks may be lower.
    fn statistics(&self) -> Option<ResourceStatistics> {
        let bins = self.bins.iter().filter_map(|bin| bin.resource().statistics());
        let upstream = self.upstream.statistics();
        let Some(direct) = &self.direct else {
            let misuses: u64 = bins.map(|statistics| statistics.misuses).sum();
            return upstream.map(|known| known.with_more_misuses(misuses));
        };
        let direct = direct.statistics().misuses(upstream.map_or(0, |known| known.misuses));
        Some(bins.fold(direct, ResourceStatistics::beside))
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let Returned { bytes: to_upstream, error } = self.release_regions(None);
        let mut returned = Returned { bytes: 0, error };
        self.given().filter_map(|(_, other)| other).for_each(|other| returned.add(other.trim(keep_bytes)));
        returned.add(trim_upstream(&*self.upstream, to_upstream, keep_bytes));
        returned.bytes()
    }

    fn provide(&self, traits: &mut Traits) {
        traits
            .add::<Self, FailureTally>(|it| &it.failures)
            .add::<Self, dyn OthersBelow>(|it| it)
            .add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all parts except upstream, and the bins that take their memory from it.
        unsafe { traits.share_over(&[&*self.upstream]) };
    }
}

impl<R: DeviceMemoryResource> OthersBelow for BinningMemoryResource<R> {
    fn others_below(&self) -> Vec<Stack<'_>> {
        self.given().filter_map(|(_, resource)| resource).map(DeviceMemoryResourceExt::stack).collect()
    }
}

/// Reports the memory of the bins. The layers of the upstream report their memory themselves.
impl<R: DeviceMemoryResource> ReportsMemory for BinningMemoryResource<R> {
    fn layer_memory(&self) -> LayerMemory {
        let bins = self.bins.iter().filter_map(|bin| bin.resource().statistics());
        let mut memory = LayerMemory::default();
        memory.statistics = bins.reduce(ResourceStatistics::beside);
        memory
    }

    fn memory_map(&self) -> Option<MemoryMap> {
        let maps = self.bins.iter().filter_map(|bin| match &bin.source {
            Source::Blocks(blocks) => ReportsMemory::memory_map(&**blocks),
            Source::Given(other) => other.memory_map(),
        });
        maps.reduce(MemoryMap::beside)
    }
}
