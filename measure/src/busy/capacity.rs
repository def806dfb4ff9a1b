//! How much of the device's memory a subject may use.

use std::str::FromStr;

use millpond_core::{DevicePtr, DriverHandle, Error, format_bytes, parse_memory};
use millpond_engine::Result;

/// How much of the device's memory is left to a subject. The benchmark programs in `benches/peers` read the
/// same texts (`busy.hpp`).
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Capacity {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the log's peak of live bytes.
    PercentOfLive(f64),
}

impl Capacity {
    /// Returns the capacity in bytes.
    pub(super) fn bytes(self, peak_live_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::PercentOfLive(percent) => (peak_live_bytes as f64 * percent / 100.0) as u64,
        }
    }
}

/// Reads a size, as in 3GiB, or a percentage of the log's peak of live bytes, as in 120%.
impl FromStr for Capacity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return parse_memory(text).map(Self::Bytes);
        };
        match percent.trim().parse::<f64>() {
            Ok(percent) if (1.0..=10_000.0).contains(&percent) => Ok(Self::PercentOfLive(percent)),
            _ => Err(Error::invalid_argument(format!(
                "`{text}` is not a percentage of the log's peak of live bytes; write a percentage from 1% to \
                 10000%, as in 120%"
            ))),
        }
    }
}

/// The page size in bytes of the memory that `cuMemAlloc` returns.
const PAGE_BYTES: u64 = 2 << 20;

/// A reservation of all device memory, except for a given amount. Dropping this value frees the reserved
/// memory.
pub(super) struct Reservation {
    driver: DriverHandle,
    block: Option<DevicePtr>,
}

impl Reservation {
    /// Reserves the device's free memory beyond `left` bytes, in whole pages.
    ///
    /// # Errors
    /// The device has less free memory than `left`, or the driver refuses.
    pub(super) fn but(left: u64, driver: &DriverHandle) -> Result<Self> {
        let failed = |error| Error::from(error).context("reserving all device memory except --capacity");
        let free = driver.mem_get_info().map_err(failed)?.free;
        let Some(rest) = free.checked_sub(left) else {
            let (left, free) = (format_bytes(left), format_bytes(free));
            let what = format!(
                "--capacity is {left}, but the device has only {free} free; choose a smaller capacity"
            );
            return Err(Error::invalid_argument(what).into());
        };
        let bytes = rest / PAGE_BYTES * PAGE_BYTES;
        let block = (bytes > 0).then(|| driver.mem_alloc(bytes)).transpose().map_err(failed)?;
        Ok(Self { driver: driver.clone(), block })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Some(block) = self.block else { return };
        // SAFETY: the block is ours, and nothing uses it.
        if let Err(error) = unsafe { self.driver.mem_free(block) } {
            tracing::warn!(target: "millpond::replay", %error, "the reserved memory was not freed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares_are_read() {
        let bytes = |text: &str| text.parse::<Capacity>().unwrap().bytes(1000);
        assert_eq!([bytes("4KiB"), bytes("120%"), bytes("99.5%")], [4096, 1200, 995]);
        for text in ["0%", "%", "-3%", "many", "nan%", ""] {
            assert!(text.parse::<Capacity>().is_err(), "{text}");
        }
    }
}
