//! The options of a resource that makes its own pool.

use std::fmt;
use std::str::FromStr;

use millpond_core::driver::HandleTypes;
use millpond_core::{ByteSize, Driver, Error, Result};

use crate::memory_pool::PoolReuse;

/// Whether the device's decompression engine can use a pool's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum HwDecompress {
    /// The decompression engine can use the memory if the driver supports this (since CUDA 12.8).
    #[default]
    Auto,
    /// The decompression engine can use the memory. If the driver does not support this, building the
    /// resource fails.
    On,
    /// The decompression engine cannot use the memory.
    Off,
}

impl fmt::Display for HwDecompress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl FromStr for HwDecompress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(Error::invalid_argument("write auto, on or off")),
        }
    }
}

/// Reads the kinds of handles from text: `fd`, `fabric`, or `fd/fabric`.
pub(super) fn handles_of(text: &str, layer: &str) -> Result<HandleTypes> {
    text.split('/').try_fold(HandleTypes::NONE, |all, name| match name {
        "fd" => Ok(all | HandleTypes::POSIX_FD),
        "fabric" => Ok(all | HandleTypes::FABRIC),
        "none" if text == "none" => Ok(all),
        _ => Err(Error::invalid_stack(format!(
            "`handles={text}` of `{layer}`: `{name}` is not a kind of handle; write none, fd, fabric or \
             fd/fabric"
        ))),
    })
}

/// The options of a [`CudaAsyncMemoryResource`](crate::CudaAsyncMemoryResource).
///
/// ```
/// use millpond_resources::CudaAsyncOptions;
///
/// let options = CudaAsyncOptions::default().maximum_bytes(Some(1 << 30));
/// assert_eq!(options.to_string(), ":max=1GiB");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CudaAsyncOptions {
    /// The number of bytes that the pool allocates when it is created (default 0).
    pub initial_bytes: u64,
    /// The number of bytes that the pool keeps at a synchronisation. With `None` (the default), the pool
    /// keeps all memory, because releasing memory and allocating it again would stall the program.
    pub release_threshold: Option<u64>,
    /// The most bytes that the pool may hold. With `None` (the default), only the device's memory limits the
    /// pool.
    pub maximum_bytes: Option<u64>,
    /// How the driver may reuse memory that other streams have freed. By default, the driver may use all
    /// three methods that [`PoolReuse`] lists.
    pub reuse: PoolReuse,
    /// The types of handles with which other processes can import the pool (default: no types). If the set is
    /// not empty, the driver returns the pool's memory to the device only when the pool is destroyed.
    pub handles: HandleTypes,
    /// Whether the device's decompression engine can use the pool's memory.
    pub hw_decompress: HwDecompress,
}

/// The sizes among the options as the caller gave them: in bytes, or as shares.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Sizes {
    pub(super) initial: ByteSize,
    pub(super) release_threshold: Option<ByteSize>,
    pub(super) maximum: Option<ByteSize>,
}

impl Sizes {
    /// Returns the sizes of options, in bytes.
    pub(super) fn of(options: &CudaAsyncOptions) -> Self {
        Self {
            initial: ByteSize::Bytes(options.initial_bytes),
            release_threshold: options.release_threshold.map(ByteSize::Bytes),
            maximum: options.maximum_bytes.map(ByteSize::Bytes),
        }
    }

    /// Returns the options with these sizes on a device.
    pub(super) fn resolve(self, options: CudaAsyncOptions, driver: &dyn Driver) -> Result<CudaAsyncOptions> {
        let bytes = |size: Option<ByteSize>| size.map(|size| size.resolve(driver)).transpose();
        Ok(CudaAsyncOptions {
            initial_bytes: self.initial.resolve(driver)?,
            release_threshold: bytes(self.release_threshold)?,
            maximum_bytes: bytes(self.maximum)?,
            ..options
        })
    }
}

/// Prints the options as parameters of a stack's text. Options with their default value are left out.
impl fmt::Display for CudaAsyncOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(Sizes::of(self)))
    }
}

impl CudaAsyncOptions {
    millpond_core::setters! {
        initial_bytes: u64,
        release_threshold: Option<u64>,
        maximum_bytes: Option<u64>,
        reuse: PoolReuse,
        handles: HandleTypes,
        hw_decompress: HwDecompress,
    }

    /// Returns the parameters of a stack's text, with these sizes.
    pub(super) fn text(&self, sizes: Sizes) -> String {
        let Self { reuse, handles, hw_decompress, .. } = self;
        let mut parts = Vec::new();
        if sizes.initial != ByteSize::Bytes(0) {
            parts.push(format!("initial={}", sizes.initial));
        }
        if let Some(size) = sizes.release_threshold {
            parts.push(format!("release_threshold={size}"));
        }
        if let Some(size) = sizes.maximum {
            parts.push(format!("max={size}"));
        }
        if *reuse != PoolReuse::ALL {
            parts.push(format!("reuse={reuse}"));
        }
        let kinds = [(HandleTypes::POSIX_FD, "fd"), (HandleTypes::FABRIC, "fabric")];
        let named = kinds.into_iter().filter(|(kind, _)| handles.contains(*kind)).map(|(_, name)| name);
        let named: Vec<&str> = named.collect();
        if !named.is_empty() {
            parts.push(format!("handles={}", named.join("/")));
        }
        if *hw_decompress != HwDecompress::Auto {
            parts.push(format!("hw_decompress={hw_decompress}"));
        }
        if parts.is_empty() { String::new() } else { format!(":{}", parts.join(",")) }
    }
}
