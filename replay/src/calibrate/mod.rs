//! Measures what a device's driver calls cost, and writes a profile for a simulated one.
//!
//! Each call is made as a pool makes it: many blocks and mappings are alive, memory is taken in rows that use
//! what is really free, other work lies between calls, and the device does nothing meanwhile. A cost is the
//! mean of its samples without the slowest twentieth; medians stand beside it as comments. Then each kind of
//! call is scaled by what it takes in pools.
//!
//! | file | what it measures |
//! |---|---|
//! | `memory` | plain, managed and pinned memory, by size |
//! | `pages` | virtual memory management, by size and by number of mappings |
//! | `calls` | streams, events, pools of the driver, and other calls that cost the same always |
//! | `samples` | one call |
//! | `pools` | a made-up log through pools, here and simulated: what a kind's costs are scaled by |
//! | `check` | logs on the device and on the simulated one, side by side |

mod calls;
pub mod check;
mod memory;
mod pages;
mod pools;
mod samples;

use std::collections::BTreeMap;

use millpond_core::driver::{DeviceAttribute, Driver, DriverResult};
use millpond_core::{DriverHandle, Error, format_bytes};
use millpond_driver::CallKind;
use millpond_driver::sim::{Costs, Curve, Profile};

use crate::Result;
use samples::{Samples, Timed};

/// The most device memory that is taken for measuring: this, or a quarter of what is free.
const MOST_BYTES: u64 = 6 << 30;

/// The least that is needed.
const LEAST_BYTES: u64 = 256 << 20;

/// What a device costs, and what the samples say besides.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The profile for a simulated device.
    pub profile: Profile,
    /// What the samples say, by field and bytes.
    comments: BTreeMap<(String, Option<u64>), String>,
}

impl Calibration {
    /// Says beside the samples of a kind what its costs were scaled by.
    fn note_factor(&mut self, kind: CallKind, factor: f64) {
        let name = kind.name();
        let is_of_kind =
            |field: &str| field == format!("calls_ns.{name}") || field.split('.').next() == Some(name);
        for (_, text) in self.comments.iter_mut().filter(|((field, _), _)| is_of_kind(field)) {
            *text = format!("{factor:.2} of {text}");
        }
    }

    /// The profile as TOML, with what the samples of each cost say.
    pub fn to_toml(&self) -> String {
        self.profile.to_toml(|field, bytes| self.comments.get(&(field.to_owned(), bytes)).cloned())
    }
}

/// Measures the device of this driver, with up to 6 GiB of its memory, in some seconds. `say` is told what is
/// measured next.
///
/// # Errors
/// The device has too little free memory, or a call of the driver fails. What a device does not support is
/// left out of the profile.
pub fn calibrate(driver: &DriverHandle, say: &mut dyn FnMut(&str)) -> Result<Calibration> {
    let mut session = Session::new(&**driver).map_err(Error::from)?;
    if session.budget < LEAST_BYTES {
        let text = format!(
            "calibrating takes a quarter of the free memory, and that is less than {}; free some of it",
            format_bytes(LEAST_BYTES)
        );
        return Err(Error::invalid_argument(text).into());
    }
    let sections: [(&str, Section); 6] = [
        ("streams and events", calls::streams_and_events),
        ("other calls", calls::others),
        ("pools of the driver", calls::pools),
        ("plain memory", memory::plain),
        ("managed and pinned memory", memory::host),
        ("virtual memory", pages::all),
    ];
    for (what, measure) in sections {
        say(what);
        match measure(&mut session) {
            Err(error) if error.is_unsupported() => {}
            answer => answer.map_err(Error::from)?,
        }
    }
    let budget = session.budget;
    let mut calibration = session.finish(driver)?;
    if driver.virtual_time_ns().is_none() {
        say("calls of pools");
        pools::scale(&mut calibration, driver, budget)?;
    }
    Ok(calibration)
}

type Section = fn(&mut Session<'_>) -> DriverResult<()>;

/// What is measured so far.
struct Session<'a> {
    timed: Timed<'a>,
    /// The most device memory to hold at a time, in bytes.
    budget: u64,
    costs: Costs,
    calls: BTreeMap<CallKind, u64>,
    comments: BTreeMap<(String, Option<u64>), String>,
}

impl<'a> Session<'a> {
    fn new(driver: &'a dyn Driver) -> DriverResult<Self> {
        Ok(Self {
            timed: Timed::new(driver),
            budget: MOST_BYTES.min(driver.mem_get_info()?.free / 4),
            costs: Costs::default(),
            calls: BTreeMap::new(),
            comments: BTreeMap::new(),
        })
    }

    fn driver(&self) -> &'a dyn Driver {
        self.timed.driver
    }

    /// How many blocks of a size to hold at a time.
    fn blocks(&self, bytes: u64, most: u64) -> u64 {
        (self.budget / bytes).clamp(1, most)
    }

    fn comment(&mut self, field: &str, bytes: Option<u64>, text: String) {
        self.comments.insert((field.to_owned(), bytes), text);
    }

    /// The cost of a call that goes by nothing.
    fn constant(&mut self, kind: CallKind, samples: &Samples) {
        self.calls.insert(kind, samples.typical());
        self.comment(&format!("calls_ns.{kind}"), None, samples.describe());
    }

    /// What was sampled at each size, in bytes and nanoseconds.
    fn points(&mut self, field: &str, by_bytes: &[(u64, Samples)]) -> Vec<(u64, u64)> {
        let sampled = by_bytes.iter().filter(|(_, samples)| !samples.is_empty());
        let points = sampled.map(|(bytes, samples)| {
            self.comment(field, Some(*bytes), samples.describe());
            (*bytes, samples.typical())
        });
        points.collect()
    }

    /// A curve through that, less `call_ns`, which is counted elsewhere.
    fn curve(&mut self, field: &str, by_bytes: &[(u64, Samples)], call_ns: u64) -> Option<Curve> {
        let points = self.points(field, by_bytes).into_iter();
        Curve::new(points.map(|(bytes, ns)| (bytes, ns.saturating_sub(call_ns))).collect()).ok()
    }

    fn finish(mut self, driver: &DriverHandle) -> Result<Calibration> {
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

#[cfg(test)]
mod tests;
