//! The state of a calibration.

use std::collections::BTreeMap;

use millpond_core::driver::{DeviceAttribute, Driver, DriverResult};
use millpond_core::{DriverHandle, Error};
use millpond_driver::CallKind;
use millpond_driver::sim::{Costs, Curve, Profile};
use millpond_engine::Result;

use super::Calibration;
use super::samples::{Samples, Timed};

/// The most bytes of device memory for the measurement, unless a quarter of the free memory is less.
const MOST_BYTES: u64 = 6 << 30;

/// The measurements so far.
pub(super) struct Session<'a> {
    pub(super) timed: Timed<'a>,
    /// The most bytes of device memory that are in use at a time.
    pub(super) budget: u64,
    pub(super) costs: Costs,
    pub(super) calls: BTreeMap<CallKind, u64>,
    comments: BTreeMap<(String, Option<u64>), String>,
}

impl<'a> Session<'a> {
    pub(super) fn new(driver: &'a dyn Driver) -> DriverResult<Self> {
        Ok(Self {
            timed: Timed::new(driver),
            budget: MOST_BYTES.min(driver.mem_get_info()?.free / 4),
            costs: Costs::default(),
            calls: BTreeMap::new(),
            comments: BTreeMap::new(),
        })
    }

    pub(super) fn driver(&self) -> &'a dyn Driver {
        self.timed.driver
    }

    /// Returns how many blocks of a size are in use at a time.
    pub(super) fn blocks(&self, bytes: u64, most: u64) -> u64 {
        (self.budget / bytes).clamp(1, most)
    }

    pub(super) fn comment(&mut self, field: &str, bytes: Option<u64>, text: String) {
        self.comments.insert((field.to_owned(), bytes), text);
    }

    /// Stores the cost of a kind of call whose cost is constant.
    pub(super) fn constant(&mut self, kind: CallKind, samples: &Samples) {
        self.calls.insert(kind, samples.typical());
        self.comment(&format!("calls_ns.{kind}"), None, samples.describe());
    }

    /// Returns the typical cost for each size, in bytes and nanoseconds.
    pub(super) fn points(&mut self, field: &str, by_bytes: &[(u64, Samples)]) -> Vec<(u64, u64)> {
        let sampled = by_bytes.iter().filter(|(_, samples)| !samples.is_empty());
        let points = sampled.map(|(bytes, samples)| {
            self.comment(field, Some(*bytes), samples.describe());
            (*bytes, samples.typical())
        });
        points.collect()
    }

    /// Returns a curve through these points, minus `call_ns`, which is counted in another cost.
    pub(super) fn curve(&mut self, field: &str, by_bytes: &[(u64, Samples)], call_ns: u64) -> Option<Curve> {
        let points = self.points(field, by_bytes).into_iter();
        Curve::new(points.map(|(bytes, ns)| (bytes, ns.saturating_sub(call_ns))).collect()).ok()
    }

    pub(super) fn finish(mut self, driver: &DriverHandle) -> Result<Calibration> {
        self.costs.calls_ns = self.calls.iter().map(|(kind, ns)| (*kind, *ns)).collect();
        let attribute = |attribute| driver.attribute(attribute).map_err(Error::from);
        let capability = (
            attribute(DeviceAttribute::ComputeCapabilityMajor)?,
            attribute(DeviceAttribute::ComputeCapabilityMinor)?,
        );
        let version = driver.version().map_err(Error::from)?;
        let name = driver.name();
        let measured_on = format!("{name}, CUDA {}.{}", version / 1000, version % 1000 / 10);
        let profile = Profile::measured(
            format!("simulated {}", name.trim_start_matches("NVIDIA ").trim_start_matches("simulated ")),
            driver.mem_get_info().map_err(Error::from)?.total,
            attribute(DeviceAttribute::MultiprocessorCount)?,
            capability,
            measured_on,
            self.costs,
        );
        Ok(Calibration { profile, comments: self.comments })
    }
}
