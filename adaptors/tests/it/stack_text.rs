//! Tests that every stack that can be built prints a text that builds an equal stack.
#![cfg(feature = "logging")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millpond_adaptors::logging::{Columns, Flush};
use millpond_adaptors::tracking::Stacks;
use millpond_adaptors::{
    AlignedLayer, AllocationLog, FallbackLayer, LimitingLayer, LoggingLayer, PrefetchLayer, RetryLayer,
    StatisticsLayer, ThreadSafeLayer, TrackingLayer,
};
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, ByteSize, DeviceMemoryResource, DeviceMemoryResourceExt, DriverHandle, ErrorKind, Result,
    find_trait,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{
    BinningLayer, BinningMemoryResource, CudaMemoryResource, Decay, FixedSizeLayer, ManagedMemoryResource,
    PagesMode, PoolLayer, Reuse,
};
use millpond_testkit::Rng;

const MIB: u64 = 1 << 20;

#[cfg(unix)]
fn name_of(bytes: &[u8]) -> std::ffi::OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec())
}

#[cfg(not(unix))]
fn name_of(bytes: &[u8]) -> std::ffi::OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}

fn layers() -> LayerTable {
    LayerTable::new(millpond_resources::LAYERS.iter().copied())
        .with(millpond_adaptors::LAYERS.iter().copied())
}

/// Builds stacks by the layers' own methods, with random values.
struct Random<'a> {
    rng: Rng,
    device: DriverHandle,
    folder: &'a Path,
    files: u64,
}

impl Random<'_> {
    fn one_of<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.rng.below(from.len() as u64) as usize].clone()
    }

    /// A file name that no other layer has: of characters that text uses itself, names in braces, and bytes
    /// that are not text.
    fn file(&mut self) -> std::path::PathBuf {
        const PARTS: [&[u8]; 30] = [
            b"+",
            b":",
            b",",
            b"=",
            b"(",
            b")",
            b"\"",
            b"'",
            b"\\",
            b"%",
            b"$",
            b" ",
            b"\t",
            b"\n",
            b"\xc2\xa0",
            b"\xc3\xa4",
            b"\xf0\x9f\x98\x80",
            b"a",
            b"1",
            b".",
            b"{",
            b"}",
            b"{pid}",
            b"{rank}",
            b"{device}",
            b"{x2b}",
            b"{x7b}pid}",
            b"{other}",
            b"\xff",
            b"\xc3",
        ];
        self.files += 1;
        let length = self.rng.below(6);
        let around: Vec<u8> = (0..length).flat_map(|_| self.one_of(&PARTS)).copied().collect();
        let number = self.files.to_string();
        self.folder.join(name_of(&[&around, number.as_bytes(), &around].concat()))
    }

    fn stack(&mut self, depth: u64) -> AnyResource {
        let base = Arc::clone(&self.device);
        let mut stack = match self.rng.below(4) {
            0 => ManagedMemoryResource::new(base).into_any(),
            _ => CudaMemoryResource::new(base).into_any(),
        };
        for _ in 0..self.rng.below(4) {
            // Some layers cannot go on top of some others.
            stack = self.layer(Arc::clone(&stack), depth).unwrap_or(stack);
        }
        stack
    }

    fn layer(&mut self, below: AnyResource, depth: u64) -> Result<AnyResource> {
        Ok(match self.rng.below(12) {
            0 => below.layer(self.pool())?.into_any(),
            1 => below.layer(self.fixed_size())?.into_any(),
            2 => below.layer(self.binning(depth))?.into_any(),
            3 => {
                let limit = match self.rng.below(3) {
                    0 => ByteSize::PercentOfFree(self.rng.below(1001) as f64 / 10.0),
                    1 => ByteSize::Bytes(u64::MAX),
                    _ => ByteSize::Bytes(self.rng.next_u64() >> self.rng.below(64)),
                };
                below.layer(LimitingLayer::new(limit))?.into_any()
            }
            4 => below.layer(StatisticsLayer::new())?.into_any(),
            5 => below.layer(ThreadSafeLayer::new())?.into_any(),
            6 => {
                let stacks = self.one_of(&[Stacks::On, Stacks::Off]);
                below.layer(TrackingLayer::new().stacks(stacks))?.into_any()
            }
            7 => below.layer(PrefetchLayer::new())?.into_any(),
            8 => {
                let timeout = Duration::from_nanos(self.rng.below(3_600_000_000_000) >> self.rng.below(40));
                below.layer(RetryLayer::new().timeout(timeout))?.into_any()
            }
            9 => {
                let layer = AlignedLayer::new(1 << self.rng.below(30));
                below.layer(layer.threshold_bytes(self.rng.below(MIB)))?.into_any()
            }
            10 => {
                let other = self.stack(depth.saturating_sub(1));
                below.layer(FallbackLayer::new(other))?.into_any()
            }
            _ => {
                let layer = LoggingLayer::new()
                    .file(self.file())
                    .columns(self.one_of(&[Columns::Rmm, Columns::Extended]))
                    .flush(self.one_of(&[Flush::EveryRow, Flush::Buffered, Flush::Async]));
                below.layer(layer)?.into_any()
            }
        })
    }

    fn pool(&mut self) -> PoolLayer {
        let reuse = self.one_of(&[Reuse::ALL, Reuse::OWN_STREAM]);
        let reuse = reuse.waited(self.rng.percent(50));
        let decay = match self.rng.below(3) {
            0 => Decay::Off,
            1 => Decay::default(),
            _ => Decay::Over(Duration::from_nanos(self.rng.between(1_000_000, 100_000_000_000))),
        };
        let mut layer = PoolLayer::new().reuse(reuse).decay(decay);
        layer = layer.pages(self.one_of(&[PagesMode::Auto, PagesMode::Off]));
        if self.rng.percent(50) {
            layer = layer.initial_bytes(self.rng.below(MIB));
        }
        if self.rng.percent(50) {
            layer = layer.maximum_bytes(self.rng.between(2 * MIB, 100 * MIB));
        }
        layer
    }

    fn fixed_size(&mut self) -> FixedSizeLayer {
        let (bytes, blocks) = (self.rng.between(1, MIB), self.rng.between(1, 200));
        let layer = FixedSizeLayer::new();
        let layer = if self.rng.percent(50) { layer.block_bytes(bytes) } else { layer };
        if self.rng.percent(50) { layer.blocks_per_region(blocks) } else { layer }
    }

    fn binning(&mut self, depth: u64) -> BinningLayer {
        let bins = self.rng.below(5);
        (1..=bins).fold(BinningLayer::new(), |layer, bin| {
            let bytes = bin * MIB - self.rng.below(MIB / 2);
            if depth > 0 && self.rng.percent(40) {
                layer.add_bin_with(bytes, self.stack(depth - 1))
            } else {
                layer.add_bin(bytes)
            }
        })
    }
}

/// Returns the names of the layers of a stack, including further upstreams.
fn parts(resource: &dyn DeviceMemoryResource) -> Vec<String> {
    let mut parts = vec![resource.to_string(), format!("{:?}", resource.memory_info().unwrap().total)];
    if let Some(log) = find_trait::<dyn AllocationLog>(resource) {
        parts.push(format!("{:?}", log.file()));
    }
    if let Some(binning) = millpond_core::downcast::<BinningMemoryResource<AnyResource>>(resource) {
        for (bytes, bin) in binning.bins() {
            parts.push(format!("a bin of {bytes}"));
            parts.extend(self::parts(bin));
        }
    }
    parts.extend(resource.upstream().map(self::parts).unwrap_or_default());
    parts
}

#[test]
fn issue_9_every_stack_prints_text_that_builds_an_equal_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut layers_built = 0;
    for seed in 0..400 {
        let device: DriverHandle = SimDevice::new(SimConfig::h200());
        let mut random =
            Random { rng: Rng::new(seed), device: Arc::clone(&device), folder: folder.path(), files: 0 };
        let built = random.stack(2);
        let text = built.to_string();
        layers_built += built.stack().count();
        let spec: StackSpec = text.parse().unwrap_or_else(|error| panic!("seed {seed}: `{text}`: {error}"));
        assert_eq!(spec.to_string(), text, "seed {seed}");
        let again = spec.build(&layers(), &device);
        let again = again.unwrap_or_else(|error| panic!("seed {seed}: `{text}`: {error}"));
        assert_eq!(parts(&again), parts(&built), "seed {seed}");
    }
    assert!(layers_built > 800, "only {layers_built} layers could be built");
}

#[test]
fn issue_9_a_bin_with_a_resource_of_its_own_is_in_the_text() {
    let device: DriverHandle = SimDevice::new(SimConfig::h200());
    let cuda = || CudaMemoryResource::new(Arc::clone(&device));
    let pool = cuda().layer(PoolLayer::new().maximum_bytes(64 * MIB)).unwrap().into_any();
    let layer = BinningLayer::new().add_bin(4096).add_bin_with(MIB, pool).add_bin(2 * MIB);
    let text = cuda().layer(layer).unwrap().to_string();
    assert_eq!(text, "cuda+binning:bins=4KiB/1MiB(cuda+pool:max=64MiB)/2MiB");
    let none = cuda().layer(BinningLayer::new()).unwrap().to_string();
    assert_eq!(none, "cuda+binning:bins=none");
    let build = |text: &str| text.parse::<StackSpec>()?.build(&layers(), &device);
    for same in [text, none] {
        assert_eq!(build(&same).unwrap().to_string(), same);
    }
    for (wrong, why) in [
        ("(cuda+pool)", "must follow the size"),
        ("1MiB(cuda)(cuda)", "must follow the size"),
        ("1MiB(cuda)2MiB", "`/` is missing"),
        ("1MiB/", "is not a size"),
        ("1MiB(pool)", "needs a resource below it"),
        ("1MiB(cuda+pol)", "there is no layer `pol`"),
    ] {
        let error = build(&format!("cuda+binning:bins={wrong}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidStack, "{wrong}: {error}");
        assert!(error.to_string().contains(why), "{wrong}: {error}");
    }
}

/// A stack that no text can build prints a text that can be read, but is refused when it is built.
#[test]
fn issue_9_a_log_that_goes_to_a_writer_is_not_built_as_something_else() {
    let device: DriverHandle = SimDevice::new(SimConfig::h200());
    let cuda = CudaMemoryResource::new(Arc::clone(&device));
    let text = cuda.layer(LoggingLayer::new().writer(std::io::sink())).unwrap().to_string();
    assert_eq!(text, "cuda+logging:to=writer");
    let error = text.parse::<StackSpec>().unwrap().build(&layers(), &device).unwrap_err();
    assert!(error.to_string().contains("file=log.csv"), "{error}");
}
