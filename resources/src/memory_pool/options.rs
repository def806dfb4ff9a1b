//! The options of a new pool of the driver.

use std::fmt;
use std::str::FromStr;

use millpond_core::driver::{HandleTypes, MemAllocationType, MemLocation, MemPoolProps};
use millpond_core::{Error, Result};

/// How the driver may reuse memory that other streams have freed. By default, the driver may use all three
/// methods.
///
/// In text: `follow/opportunistic/internal`, one or two of these words, or `own` for no method.
///
/// ```
/// use millpond_resources::memory_pool::PoolReuse;
///
/// let reuse: PoolReuse = "follow/opportunistic".parse()?;
/// assert!(reuse.opportunistic && !reuse.internal_dependencies);
/// assert_eq!(PoolReuse::OWN_STREAM.to_string(), "own");
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct PoolReuse {
    /// Whether the driver may reuse memory that another stream freed, if an event orders the free before the
    /// request.
    pub follow_event_dependencies: bool,
    /// Whether the driver may reuse memory that another stream freed, if the free is already done on the
    /// device.
    pub opportunistic: bool,
    /// Whether the driver may reuse memory that another stream freed, even if the free is not done yet. The
    /// driver then makes the requesting stream wait for the free.
    pub internal_dependencies: bool,
}

impl PoolReuse {
    millpond_core::setters! {
        follow_event_dependencies: bool,
        opportunistic: bool,
        internal_dependencies: bool,
    }

    /// The driver does not reuse memory that other streams have freed.
    pub const OWN_STREAM: Self =
        Self { follow_event_dependencies: false, opportunistic: false, internal_dependencies: false };
    /// The driver may use all three methods to reuse memory of other streams. This is CUDA's default.
    pub const ALL: Self =
        Self { follow_event_dependencies: true, opportunistic: true, internal_dependencies: true };
}

impl Default for PoolReuse {
    fn default() -> Self {
        Self::ALL
    }
}

impl fmt::Display for PoolReuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.follow_event_dependencies, "follow"),
            (self.opportunistic, "opportunistic"),
            (self.internal_dependencies, "internal"),
        ];
        let on: Vec<&str> = names.into_iter().filter(|(is_on, _)| *is_on).map(|(_, name)| name).collect();
        f.write_str(&if on.is_empty() { "own".to_owned() } else { on.join("/") })
    }
}

impl FromStr for PoolReuse {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut reuse = Self::OWN_STREAM;
        if text == "own" {
            return Ok(reuse);
        }
        for name in text.split('/') {
            *match name {
                "follow" => &mut reuse.follow_event_dependencies,
                "opportunistic" => &mut reuse.opportunistic,
                "internal" => &mut reuse.internal_dependencies,
                _ => {
                    return Err(Error::invalid_argument(format!(
                        "`{name}` is none of follow, opportunistic and internal; write for example \
                         follow/opportunistic, or own"
                    )));
                }
            } = true;
        }
        Ok(reuse)
    }
}

/// The properties of a new [`MemoryPool`](super::MemoryPool).
///
/// ```
/// use millpond_core::driver::HandleTypes;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::memory_pool::{MemoryPool, MemoryPoolOptions};
///
/// let options = MemoryPoolOptions::new().max_bytes(1 << 30).handles(HandleTypes::POSIX_FD);
/// let pool = MemoryPool::new(SimDevice::new(SimConfig::h200()), options.release_threshold(u64::MAX))?;
/// assert_eq!(pool.release_threshold()?, u64::MAX);
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct MemoryPoolOptions {
    pub(super) props: MemPoolProps,
    pub(super) release_threshold: Option<u64>,
    pub(super) reuse: PoolReuse,
}

impl MemoryPoolOptions {
    /// Creates options with CUDA's defaults. The pool has device memory and no limit. Other processes cannot
    /// import the pool. At each synchronisation, the pool returns all free memory to the device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the location of the pool's memory.
    pub fn location(mut self, location: MemLocation) -> Self {
        self.props.location = location;
        self
    }

    /// Selects managed memory, which host and device use at the same address (since CUDA 13.0).
    pub fn managed(mut self) -> Self {
        self.props.kind = MemAllocationType::Managed;
        self
    }

    /// Sets the types of handles with which other processes can import the pool. The driver returns the
    /// memory of such a pool to the device only when the pool is destroyed. Trimming and the release
    /// threshold have no effect on such a pool.
    pub fn handles(mut self, handles: HandleTypes) -> Self {
        self.props.handles = handles;
        self
    }

    /// Sets the most bytes that the pool may hold (since CUDA 12.2). With 0, the default, the system decides,
    /// as in CUDA: the pool may hold all memory of its location.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.props.max_bytes = bytes;
        self
    }

    /// Sets whether the device's decompression engine can use the memory (since CUDA 12.8).
    pub fn hw_decompress(mut self, is_on: bool) -> Self {
        self.props.hw_decompress = is_on;
        self
    }

    /// Sets how many bytes the pool may keep reserved. If the pool holds more when the host waits for a
    /// stream, an event or the device, it returns free memory to the device. CUDA's default is 0.
    pub fn release_threshold(mut self, bytes: u64) -> Self {
        self.release_threshold = Some(bytes);
        self
    }

    /// Sets how the driver may reuse memory that other streams have freed.
    pub fn reuse(mut self, reuse: PoolReuse) -> Self {
        self.reuse = reuse;
        self
    }
}
