//! An arena: a pool that allocates a large part of the device's memory when it is built.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millpond_core::stack::{FilePath, LayerEntry, LayerKind, LayerSpec};
use millpond_core::{
    BlockInfo, ByteSize, DeviceMemoryResource, DevicePtr, DriverHandle, Error, FailureTally, Layer,
    LayerMemory, Layout, MemoryMap, ReportsMemory, Result, StreamRef, Traits, forward_to_upstream,
};
use parking_lot::Mutex;

use crate::debug_as_text::debug_as_text;
use crate::pool::{PoolMemoryResource, PoolOptions};

/// The least size of an arena in bytes, as in RMM: its smallest superblock.
const LEAST_BYTES: u64 = 1 << 20;

/// Builds `arena` from text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "arena",
    about: "a pool that allocates a large part of the device's memory when it is built, and grows later",
    params: &[
        (
            "size",
            "bytes that the arena allocates when it is built: a size, or a percentage of free memory \
             (default 50%)",
        ),
        (
            "max",
            "the most bytes that the arena may hold: a size, or a percentage of free memory (default: no \
             limit)",
        ),
        (
            "dump_log_on_failure",
            "a file to which the arena writes its state when it runs out of memory (default: no file); \
             `{pid}`, `{rank}` and `{device}` in the path stand for the process, its number in a job, and \
             the device",
        ),
    ],
    kind: LayerKind::ReadLayer(|params| {
        let layer = ArenaLayer {
            size: params.get("size")?,
            maximum: params.get("max")?,
            dump_log_on_failure: params.path("dump_log_on_failure")?,
        };
        Ok(Box::new(move |upstream, _| Ok(Arc::new(layer.layer(upstream)?))))
    }),
};

/// Options of an [`ArenaMemoryResource`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ArenaOptions {
    /// The number of bytes that the arena allocates when it is built: at least 1 MiB, rounded up to a
    /// multiple of 256. `None` stands for half of the device's free memory.
    pub size_bytes: Option<u64>,
    /// The most bytes that the arena may hold; `None` for no limit.
    pub maximum_bytes: Option<u64>,
    /// A file to which the arena writes its state when a request runs out of memory. Each such request
    /// overwrites the file.
    pub dump_log_on_failure: Option<PathBuf>,
}

impl ArenaOptions {
    millpond_core::setters! {
        size_bytes: Option<u64>,
        maximum_bytes: Option<u64>,
        dump_log_on_failure: Option<PathBuf>,
    }
}

/// Puts an [`ArenaMemoryResource`] on top of a resource.
///
#[doc = include_str!("../layers/arena.md")]
#[derive(Clone, PartialEq, Debug, Default)]
#[must_use]
pub struct ArenaLayer {
    size: Option<ByteSize>,
    maximum: Option<ByteSize>,
    dump_log_on_failure: Option<FilePath>,
}

impl ArenaLayer {
    /// Creates a layer whose arena allocates half of the device's free memory when the arena is built.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of bytes that the arena allocates when it is built.
    pub fn size_bytes(mut self, size: impl Into<ByteSize>) -> Self {
        self.size = Some(size.into());
        self
    }

    /// Sets the most bytes that the arena may hold.
    pub fn maximum_bytes(mut self, size: impl Into<ByteSize>) -> Self {
        self.maximum = Some(size.into());
        self
    }

    /// Sets the file to which the arena writes its state when a request runs out of memory. The path may
    /// contain the names in braces that [`FilePath`] lists.
    pub fn dump_log_on_failure(mut self, file: impl Into<PathBuf>) -> Self {
        self.dump_log_on_failure = Some(FilePath::new(file));
        self
    }
}

impl<R: DeviceMemoryResource> Layer<R> for ArenaLayer {
    type Resource = ArenaMemoryResource<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        let driver = DriverHandle::clone(upstream.driver());
        let resolve = |size: Option<ByteSize>| size.map(|size| size.resolve(&*driver)).transpose();
        let options = ArenaOptions {
            size_bytes: resolve(self.size)?,
            maximum_bytes: resolve(self.maximum)?,
            dump_log_on_failure: None,
        };
        let path = |file: &FilePath| file.resolve(Some(driver.device()));
        let dump = self.dump_log_on_failure.as_ref().map(path).transpose()?;
        ArenaMemoryResource::said(upstream, options, self, dump)
    }
}

/// An arena as in RMM. The arena allocates one large piece of memory when it is built. Threads and streams
/// get their memory from this piece.
///
/// The arena is a [pool](PoolMemoryResource) with an initial size, and works like RMM's arena:
/// - RMM's arena divides its memory into superblocks. The pool divides its memory into spans of up to 4 MiB.
///   Each thread has its own spans.
/// - The pool first offers a freed block to the stream that freed it.
/// - Requests larger than a span get memory that all threads share.
/// - Before the pool reports that memory is out, it merges the free memory of all threads and streams. RMM's
///   arena does the same when it defragments.
///
/// Two properties differ from RMM's arena. This arena grows beyond its initial size, and no free waits for a
/// stream.
///
/// ```
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{ArenaLayer, CudaMemoryResource};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let arena = CudaMemoryResource::new(device).layer(ArenaLayer::new().size_bytes(64 << 20))?;
/// assert!(arena.allocate_bytes(80 << 20, StreamRef::LEGACY).is_ok(), "it grows");
/// assert_eq!(arena.to_string(), "cuda+arena:size=64MiB");
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct ArenaMemoryResource<R: DeviceMemoryResource> {
    pool: PoolMemoryResource<R>,
    dump_log_on_failure: Option<PathBuf>,
    /// Held while a thread writes that file.
    dumping: Mutex<()>,
}

impl<R: DeviceMemoryResource> ArenaMemoryResource<R> {
    /// Builds an arena whose memory comes from `upstream`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the initial size is below 1 MiB or
    /// above the maximum; [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) if the upstream has too
    /// little memory for the initial size; and the driver's errors.
    pub fn new(upstream: R, options: ArenaOptions) -> Result<Self> {
        let ArenaOptions { size_bytes, maximum_bytes, dump_log_on_failure } = options;
        let literal = dump_log_on_failure.as_deref().map(FilePath::literal).transpose()?;
        let layer = ArenaLayer {
            size: size_bytes.map(ByteSize::Bytes),
            maximum: maximum_bytes.map(ByteSize::Bytes),
            dump_log_on_failure: literal,
        };
        let options = ArenaOptions { size_bytes, maximum_bytes, dump_log_on_failure: None };
        Self::said(upstream, options, layer, dump_log_on_failure)
    }

    /// Builds an arena of these sizes. `said` has the options as the caller gave them.
    fn said(upstream: R, options: ArenaOptions, said: ArenaLayer, dump: Option<PathBuf>) -> Result<Self> {
        let ArenaOptions { size_bytes, maximum_bytes, .. } = options;
        let size_bytes = match size_bytes {
            Some(bytes) => bytes,
            None => upstream.memory_info()?.free / 2,
        };
        if size_bytes < LEAST_BYTES {
            return Err(Error::invalid_argument(format!(
                "an arena of {size_bytes} bytes is too small: it needs at least 1MiB; raise `size`"
            )));
        }
        let of_pool = PoolOptions { initial_bytes: size_bytes, maximum_bytes, ..PoolOptions::default() };
        let of_pool = of_pool.checked(&upstream)?;
        let size = said.size.unwrap_or(ByteSize::Bytes(of_pool.initial_bytes));
        let mut layer = LayerSpec::new("arena").with("size", size.to_string());
        if let Some(maximum) = said.maximum {
            layer = layer.with("max", maximum.to_string());
        }
        if let Some(file) = &said.dump_log_on_failure {
            layer = layer.with("dump_log_on_failure", file.to_text()?);
        }
        let pool = PoolMemoryResource::build(upstream, of_pool, None, layer.to_string())?;
        Ok(Self { pool, dump_log_on_failure: dump, dumping: Mutex::new(()) })
    }

    /// Returns the pool that serves the arena's requests.
    pub fn pool(&self) -> &PoolMemoryResource<R> {
        &self.pool
    }

    /// Overwrites the dump file with the state. If several threads fail at once, one of them writes.
    fn dump(&self, file: &Path, error: &Error) -> io::Result<()> {
        let fragmentation = 100.0 * self.pool.statistics().unwrap_or_default().fragmentation();
        let text = format!("{error}\nfragmentation: {fragmentation:.1} %\n");
        let Some(_alone) = self.dumping.try_lock() else { return Ok(()) };
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        // Opening a pipe without a reader fails, and does not wait.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        options.open(file)?.write_all(text.as_bytes())
    }
}

impl<R: DeviceMemoryResource> fmt::Display for ArenaMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

debug_as_text!(ArenaMemoryResource<R: DeviceMemoryResource>);

// SAFETY: every call goes to the pool.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for ArenaMemoryResource<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        self.pool.allocate(layout, stream).inspect_err(|error| {
            let Some(file) = self.dump_log_on_failure.as_deref().filter(|_| error.is_out_of_memory()) else {
                return;
            };
            if let Err(why) = self.dump(file, error) {
                let file = file.display();
                tracing::warn!(target: "millpond::pool", %file, %why, "cannot write the arena's state");
            }
        })
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        self.pool.upstream()
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, FailureTally>(|it| it.pool.failures()).add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all parts but the pool.
        unsafe { traits.share_over(&[&self.pool]) };
    }

    forward_to_upstream!(self.pool, except allocate, upstream, provide);
}

impl<R: DeviceMemoryResource> ReportsMemory for ArenaMemoryResource<R> {
    fn layer_memory(&self) -> LayerMemory {
        self.pool.layer_memory()
    }

    fn layer_figures(&self) -> LayerMemory {
        self.pool.layer_figures()
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        self.pool.block_at(ptr)
    }

    fn memory_map(&self) -> Option<MemoryMap> {
        self.pool.memory_map()
    }
}
