//! The options of a pool.

use std::fmt;
use std::str::FromStr;

use millpond_core::driver::{DeviceAttribute, PhysicalProps, call, has_attribute};
use millpond_core::{
    ALLOCATION_ALIGNMENT, ByteSize, DeviceMemoryResource, Driver, Error, ErrorKind, Result, downcast,
    format_bytes,
};

use millpond_driver::nvtx::MemoryChecker;

use crate::driver_memory::CudaMemoryResource;
use crate::heap::request::LARGEST_REQUEST;
use crate::pool::decay::Decay;
use crate::pool::peers::{Peers, Share};
use crate::store::pages::Backing;
use crate::stream_order::Reuse;
use crate::tuning::LEAST_PAGES;

/// The options of a [`PoolMemoryResource`](crate::PoolMemoryResource).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolOptions {
    /// The number of bytes that the pool allocates when it is built, rounded up to a multiple of 256.
    pub initial_bytes: u64,
    /// The most bytes that the pool may hold, rounded down to a multiple of 256; `None` for no limit.
    pub maximum_bytes: Option<u64>,
    /// Whether the pool maps physical memory itself, or allocates regions from upstream.
    pub pages: PagesMode,
    /// The time over which the pool returns unneeded memory to the driver.
    pub decay: Decay,
    /// Which other devices may access the memory that the pool maps.
    pub peers: Peers,
    /// Whether the pool's blocks can be exported to other processes.
    pub share: Share,
    /// The methods by which the pool may reuse blocks of other streams.
    pub reuse: Reuse,
}

/// Selects how a pool gets its memory: it maps physical memory with the driver's virtual memory management,
/// or allocates regions from upstream.
///
/// A pool that maps pages can build one block from free memory at several addresses. So such a pool holds
/// little more than its live bytes. Other processes cannot open its blocks with CUDA's legacy IPC handles. To
/// share blocks, use `pages=off` with these handles, or `share=fd` with file descriptors.
///
/// A pool maps pages only if it is directly above `cuda`. If a wrapper is below the pool, as in
/// `cuda+statistics+pool`, `auto` means `off`, and the pool logs a warning. So put wrappers above the pool.
///
/// NVIDIA's compute-sanitizer cannot check the blocks in mapped memory. So under that tool, `auto` means
/// `off`, unless the pool has `share=fd` or names its peers.
///
/// In the text of a stack: `pages=auto` (the default), `pages=on`, `pages=off`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum PagesMode {
    /// The pool maps pages if three conditions hold: the upstream is plain CUDA memory, the driver supports
    /// pages, and the pool's maximum is large enough.
    #[default]
    Auto,
    /// The pool always maps pages. If this is not possible, building the pool fails.
    On,
    /// The pool never maps pages.
    Off,
}

impl FromStr for PagesMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            other => Err(Error::invalid_argument(format!("`pages` must be auto, on or off, not `{other}`"))),
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
    millpond_core::setters! {
        initial_bytes: u64,
        maximum_bytes: Option<u64>,
        pages: PagesMode,
        decay: Decay,
        peers: Peers,
        share: Share,
        reuse: Reuse,
    }

    /// Returns how the pool creates its pages and which devices have access. `has_pages` says whether it maps
    /// pages.
    pub(super) fn backing(&self, driver: &dyn Driver, has_pages: bool) -> Result<Backing> {
        let share_fd = self.share == Share::Fd;
        if share_fd && !has_pages {
            return Err(Error::invalid_argument(
                "share=fd needs a pool that maps pages: directly over `cuda`, without pages=off; for CUDA's \
                 legacy IPC handles use pages=off without share",
            ));
        }
        if !has_pages {
            return Ok(Backing::default());
        }
        if share_fd && !has_attribute(driver, DeviceAttribute::PosixFdHandlesSupported)? {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this device's memory cannot be shared through file descriptors; leave share=fd out",
            ));
        }
        let rdma = has_attribute(driver, DeviceAttribute::RdmaOfPhysicalMemorySupported)?;
        let props = PhysicalProps::default().share_fd(share_fd).rdma(rdma);
        Ok(Backing::new(props, self.peers.named(driver)?, self.peers == Peers::Auto))
    }

    /// Returns the device's total bytes, if all of the pool's memory comes from there.
    pub(super) fn device_total(upstream: &dyn DeviceMemoryResource) -> Result<Option<u64>> {
        match downcast::<CudaMemoryResource>(upstream) {
            Some(cuda) => Ok(Some(call(&**cuda.driver(), |driver| driver.mem_get_info())?.total)),
            None => Ok(None),
        }
    }

    /// Returns the granularity of mappings in bytes, if the pool will map pages.
    pub(super) fn pages_over(&self, upstream: &dyn DeviceMemoryResource) -> Result<Option<u64>> {
        if self.pages == PagesMode::Off {
            return Ok(None);
        }
        let driver = upstream.driver();
        // A checker sees no blocks in mapped memory.
        let needs_pages =
            self.pages == PagesMode::On || self.share != Share::default() || self.peers != Peers::default();
        if !needs_pages && MemoryChecker::attached(driver.device()).is_some() {
            return Ok(None);
        }
        let refuse = |reason: &str| match self.pages {
            PagesMode::On => Err(Error::invalid_argument(format!(
                "the pool cannot map pages: {reason}; leave pages=on out"
            ))),
            _ => Ok(None),
        };
        if downcast::<CudaMemoryResource>(upstream).is_none() {
            return refuse("its upstream is not `cuda`");
        }
        if !has_attribute(&**driver, DeviceAttribute::VirtualMemoryManagementSupported)? {
            return refuse("the device has no virtual memory management");
        }
        let granularity = call(&**driver, |driver| driver.mem_get_allocation_granularity())?;
        if !granularity.is_power_of_two() {
            return refuse("the driver's granularity is not a power of two");
        }
        let most = self.maximum_bytes.unwrap_or(u64::MAX);
        if most < granularity || (self.pages == PagesMode::Auto && most / LEAST_PAGES < granularity) {
            let page = format_bytes(granularity);
            return refuse(&format!("its maximum is smaller than a page of {page}"));
        }
        Ok(Some(granularity))
    }

    /// Rounds the sizes, and checks them against the device.
    pub(crate) fn checked(self, upstream: &dyn DeviceMemoryResource) -> Result<Self> {
        let rounded = self.initial_bytes.checked_next_multiple_of(ALLOCATION_ALIGNMENT);
        let initial_bytes = rounded.filter(|bytes| *bytes <= LARGEST_REQUEST).ok_or_else(|| {
            Error::invalid_argument(
                "the pool's initial size is larger than any device's memory; write for example initial=1GiB",
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
            let driver = upstream.driver();
            let total = call(&**driver, |driver| driver.mem_get_info())?.total;
            // Memory that the host can access may exceed the device's.
            if maximum > total && !upstream.accessibility().host {
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

/// Prints the options as parameters of a stack's text. Options with their default value are left out.
impl fmt::Display for PoolOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let maximum = self.maximum_bytes.map(ByteSize::Bytes);
        f.write_str(&self.text(ByteSize::Bytes(self.initial_bytes), maximum))
    }
}

/// The parameters of a pool, with the sizes as the caller gave them.
struct Parameters<'a> {
    options: &'a PoolOptions,
    initial: ByteSize,
    maximum: Option<ByteSize>,
}

impl fmt::Display for Parameters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = ':';
        if self.initial != ByteSize::Bytes(0) {
            write!(f, "{separator}initial={}", self.initial)?;
            separator = ',';
        }
        if let Some(maximum) = self.maximum {
            write!(f, "{separator}max={maximum}")?;
            separator = ',';
        }
        self.options.write_others(f, separator)
    }
}

impl PoolOptions {
    /// Returns the parameters of the layer's text, with the sizes as the caller gave them.
    pub(crate) fn text(&self, initial: ByteSize, maximum: Option<ByteSize>) -> String {
        Parameters { options: self, initial, maximum }.to_string()
    }

    /// Writes the parameters other than sizes.
    fn write_others(&self, f: &mut fmt::Formatter<'_>, mut separator: char) -> fmt::Result {
        if self.pages != PagesMode::Auto {
            write!(f, "{separator}pages={}", self.pages)?;
            separator = ',';
        }
        if self.decay != Decay::default() {
            write!(f, "{separator}decay={}", self.decay)?;
            separator = ',';
        }
        if self.peers != Peers::Auto {
            write!(f, "{separator}peers={}", self.peers)?;
            separator = ',';
        }
        if self.share != Share::None {
            write!(f, "{separator}share={}", self.share)?;
            separator = ',';
        }
        if self.reuse != Reuse::ALL {
            write!(f, "{separator}reuse={}", self.reuse)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::DriverError;
    use millpond_driver::CallKind;
    use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};

    use super::*;

    #[test]
    fn a_maximum_of_few_pages_is_no_maximum_for_pages() {
        const PAGE: u64 = 2 << 20;
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pages_with = |pages, maximum_bytes| {
            let maximum_bytes = Some(maximum_bytes);
            PoolOptions { pages, maximum_bytes, ..PoolOptions::default() }.pages_over(&cuda)
        };
        for (mode, maximum, pages) in [
            (PagesMode::Auto, LEAST_PAGES * PAGE, Some(PAGE)),
            (PagesMode::Auto, LEAST_PAGES * PAGE - 256, None),
            (PagesMode::On, PAGE, Some(PAGE)),
        ] {
            assert_eq!(pages_with(mode, maximum).expect("it is possible"), pages, "{mode}, {maximum}");
        }
        assert!(pages_with(PagesMode::On, PAGE - 256).is_err());
    }

    /// A device is asked for its attributes. If it does not know one, it lacks it.
    #[test]
    fn a_device_without_virtual_memory_has_no_pages() {
        let device = SimDevice::new(SimConfig::h200());
        let cuda = CudaMemoryResource::new(device.clone());
        let pages_with = |pages| {
            device.set_faults(FaultPlan::nth_of(CallKind::Other, 0, DriverError::NOT_SUPPORTED));
            let answer = PoolOptions { pages, ..PoolOptions::default() }.pages_over(&cuda);
            device.set_faults(FaultPlan::none());
            answer
        };
        assert_eq!(pages_with(PagesMode::Auto).expect("the pool does without"), None);
        let error = pages_with(PagesMode::On).expect_err("there are none");
        assert!(error.to_string().contains("no virtual memory management"), "{error}");
        assert!(
            has_attribute(&*device, DeviceAttribute::VirtualMemoryManagementSupported).expect("it answers")
        );
        assert!(!has_attribute(&*device, DeviceAttribute::Integrated).expect("it answers"));
    }

    /// Sizes are multiples of 256 bytes: the initial size is rounded up, the maximum down.
    #[test]
    fn sizes_are_rounded_to_what_the_pool_can_hold() {
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::with_capacity(1 << 30)));
        let checked = |initial_bytes, maximum_bytes| {
            PoolOptions { initial_bytes, maximum_bytes, ..PoolOptions::default() }.checked(&cuda)
        };
        for (initial, maximum, rounded) in [
            (0, None, (0, None)),
            (1000, None, (1024, None)),
            (1024, Some(1025), (1024, Some(1024))),
            (1025, Some(1535), (1280, Some(1280))),
            (256, Some(1 << 30), (256, Some(1 << 30))),
        ] {
            let options = checked(initial, maximum).expect("the device has room");
            assert_eq!((options.initial_bytes, options.maximum_bytes), rounded);
        }
        for (initial, maximum) in
            [(1025, Some(1279)), (0, Some((1 << 30) + 256)), (LARGEST_REQUEST + 1, None), (u64::MAX, None)]
        {
            assert!(checked(initial, maximum).is_err(), "{initial}, {maximum:?}");
        }
        let all = PoolOptions { reuse: Reuse::OWN_STREAM, ..PoolOptions::default() };
        assert_eq!(all.checked(&cuda).expect("the device has room").reuse, all.reuse);
    }
}
