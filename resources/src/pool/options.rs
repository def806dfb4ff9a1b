use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use millpond_core::driver::DeviceAttribute;
use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{
    ALLOCATION_ALIGNMENT, ByteSize, DeviceMemoryResource, Driver, Error, Layer, Result, downcast,
    format_bytes,
};

use super::{Decay, PoolMemoryResource};
use crate::driver_memory::CudaMemoryResource;
use crate::ordered::{LARGEST_REQUEST, Reuse};

/// How `pool` is built from text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "pool",
    about: "best fit with coalescing, growing, in stream order",
    params: &[
        ("initial", "bytes to take at once (default 0); a size, or a percentage of free memory"),
        (
            "max",
            "bytes to hold at most (default: what upstream gives); a size, or a percentage of free memory",
        ),
        ("pages", "take physical pages from the driver: auto (default: if upstream is cuda), on, off"),
        ("decay", "time over which memory that is not needed goes back: 10s (default), 500ms, 2min, off"),
        ("reuse", "steps between streams: ordered/completed/waited (default), some of them, or own"),
    ],
    kind: LayerKind::Layer(|params, upstream| {
        let driver = upstream.driver().clone();
        let options = PoolOptions {
            initial_bytes: params.bytes("initial", &*driver)?.unwrap_or(0),
            maximum_bytes: params.bytes("max", &*driver)?,
            pages: params.get("pages")?.unwrap_or_default(),
            decay: params.get("decay")?.unwrap_or_default(),
            reuse: params.get("reuse")?.unwrap_or_default(),
        };
        Ok(Arc::new(PoolMemoryResource::new(upstream, options)?))
    }),
};

/// How a [`PoolMemoryResource`] is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolOptions {
    /// Bytes taken from upstream at once; rounded up to 256.
    pub initial_bytes: u64,
    /// Bytes held at most; rounded down to 256. `None` for what upstream gives.
    pub maximum_bytes: Option<u64>,
    /// Whether the pool maps physical memory itself.
    pub pages: PagesMode,
    /// Over which time memory that is not needed goes back to the driver.
    pub decay: Decay,
    /// Which steps of the reuse ladder between streams may be taken.
    pub reuse: Reuse,
}

/// Whether a pool maps physical memory itself, by the driver's virtual memory management, or takes regions
/// from upstream.
///
/// With pages, free memory in several places makes one block, so that the pool holds little more than what
/// is in use. Blocks of such a pool cannot be shared with another process by CUDA's IPC handles.
///
/// In text: `pages=auto` (the default), `pages=on`, `pages=off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PagesMode {
    /// Where upstream is plain CUDA memory, the driver can, and the pool may become large enough.
    #[default]
    Auto,
    /// Always; building the pool fails where that is not possible.
    On,
    /// Never.
    Off,
}

impl FromStr for PagesMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            other => Err(Error::invalid_argument(format!("pages are auto, on or off, not `{other}`"))),
        }
    }
}

impl fmt::Display for PagesMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl PoolOptions {
    /// The granularity of mappings and the device's memory, in bytes, if the pool is to map pages.
    pub(super) fn pages_over(&self, upstream: &dyn DeviceMemoryResource) -> Result<Option<(u64, u64)>> {
        /// A pool of fewer pages at most is better off without.
        const FEW: u64 = 64;
        if self.pages == PagesMode::Off {
            return Ok(None);
        }
        let driver = upstream.driver();
        let refuse = |reason: &str| match self.pages {
            PagesMode::On => Err(Error::invalid_argument(format!("the pool cannot map pages: {reason}"))),
            _ => Ok(None),
        };
        if downcast::<CudaMemoryResource>(upstream).is_none() {
            return refuse("its upstream must be cuda, from whose driver they come");
        }
        let has_pages = driver.attribute(DeviceAttribute::VirtualMemoryManagementSupported);
        if !matches!(has_pages, Ok(1)) {
            return refuse("the device has no virtual memory management");
        }
        let granularity = driver.mem_get_allocation_granularity()?;
        if !granularity.is_power_of_two() {
            return refuse("the driver's granularity is no power of two");
        }
        let most = self.maximum_bytes.unwrap_or(u64::MAX);
        if most < granularity || (self.pages == PagesMode::Auto && most / FEW < granularity) {
            return refuse("its maximum is too small");
        }
        Ok(Some((granularity, driver.mem_get_info()?.total)))
    }

    /// Rounds and checks against the device.
    pub(super) fn checked(self, driver: &dyn Driver) -> Result<Self> {
        let rounded = self.initial_bytes.checked_next_multiple_of(ALLOCATION_ALIGNMENT);
        let initial_bytes = rounded.filter(|bytes| *bytes <= LARGEST_REQUEST).ok_or_else(|| {
            Error::invalid_argument(
                "the pool's initial size is larger than any device; write for example initial=1GiB",
            )
        })?;
        let maximum_bytes = self.maximum_bytes.map(|bytes| bytes & !(ALLOCATION_ALIGNMENT - 1));
        if let Some(maximum) = maximum_bytes {
            if initial_bytes > maximum {
                return Err(Error::invalid_argument(format!(
                    "the pool's initial size of {} exceeds its maximum of {}; lower `initial` or raise `max`",
                    format_bytes(initial_bytes),
                    format_bytes(maximum)
                )));
            }
            let total = driver.mem_get_info()?.total;
            if maximum > total {
                return Err(Error::invalid_argument(format!(
                    "the pool's maximum of {} exceeds the {} that {} has; lower `max`, or leave it out",
                    format_bytes(maximum),
                    format_bytes(total),
                    driver.device()
                )));
            }
        }
        Ok(Self { initial_bytes, maximum_bytes, decay: self.decay.in_milliseconds(), ..self })
    }
}

/// As parameters of a stack's text; empty for the defaults.
impl fmt::Display for PoolOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = ':';
        if self.initial_bytes > 0 {
            write!(f, "{separator}initial={}", ByteSize::Bytes(self.initial_bytes))?;
            separator = ',';
        }
        if let Some(maximum) = self.maximum_bytes {
            write!(f, "{separator}max={}", ByteSize::Bytes(maximum))?;
            separator = ',';
        }
        if self.pages != PagesMode::Auto {
            write!(f, "{separator}pages={}", self.pages)?;
            separator = ',';
        }
        if self.decay != Decay::default() {
            write!(f, "{separator}decay={}", self.decay)?;
            separator = ',';
        }
        if self.reuse != Reuse::ALL {
            write!(f, "{separator}reuse={}", self.reuse)?;
        }
        Ok(())
    }
}

/// Puts a [`PoolMemoryResource`] on top of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct PoolLayer(PoolOptions);

impl PoolLayer {
    /// A pool that starts empty and grows as far as upstream lets it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes so many bytes at once.
    pub fn initial_bytes(mut self, bytes: u64) -> Self {
        self.0.initial_bytes = bytes;
        self
    }

    /// Holds so many bytes at most.
    pub fn maximum_bytes(mut self, bytes: u64) -> Self {
        self.0.maximum_bytes = Some(bytes);
        self
    }

    /// Maps pages, or does not.
    pub fn pages(mut self, pages: PagesMode) -> Self {
        self.0.pages = pages;
        self
    }

    /// Gives memory back that was not needed for so long, or never.
    pub fn decay(mut self, decay: Decay) -> Self {
        self.0.decay = decay;
        self
    }

    /// Allows these steps of the reuse ladder.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.0.reuse = reuse;
        self
    }
}

impl<R: DeviceMemoryResource> Layer<R> for PoolLayer {
    type Resource = PoolMemoryResource<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        PoolMemoryResource::new(upstream, self.0)
    }
}
